"""A Postgres for fault tests alone: it falls and rises while they run."""

from collections.abc import AsyncGenerator

import pytest

from tests.faults.postgres import Postgres, postgres_server


@pytest.fixture(scope="session")
async def postgres() -> AsyncGenerator[Postgres, None]:
    """A server that may be restarted."""
    async with postgres_server() as running:
        yield running
