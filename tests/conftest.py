"""What tests share: one embedded Postgres a run, and the service on it."""

import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.migrating import migrate
from tests.support.service import Service, serving


@pytest.fixture(scope="session")
async def database_url() -> AsyncGenerator[str, None]:
    """The address of a Postgres that was migrated from empty."""
    # Not in pytest's own folder: it removes those of runs that it takes for finished.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        url = await postgres.start()
        database = Database(url, pool_size=2)
        await migrate(database)
        await database.close()
        yield url
        await postgres.stop()


@pytest.fixture
async def own_url(database_url: str) -> str:
    """The address of an empty database, for tests whose replicas must not meet the shared one."""
    name = f"own_{uuid4().hex}"
    database = Database(database_url, pool_size=1)
    await database.run(f"CREATE DATABASE {name}", {})
    await database.close()
    own = re.sub(r"/postgres\b(?=\?|$)", f"/{name}", database_url, count=1)
    fresh = Database(own, pool_size=1)
    await migrate(fresh)
    await fresh.close()
    return own


@pytest.fixture
async def own_database(own_url: str) -> AsyncGenerator[Database, None]:
    """A pool of connections to that database."""
    opened = Database(own_url, pool_size=5)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
async def service(database_url: str) -> AsyncGenerator[Service, None]:
    """The service with the scripted model, shared by all tests: each makes its own session."""
    async with serving(database_url=database_url) as running:
        yield running


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database, None]:
    """A pool of connections of the test's own."""
    opened = Database(database_url, pool_size=5)
    yield opened
    await opened.close()
