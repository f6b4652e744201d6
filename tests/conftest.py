"""What tests share: one embedded Postgres a run, and the service on it."""

from collections.abc import AsyncGenerator

import pytest

from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.migrating import migrate
from tests.support.service import Service, serving


@pytest.fixture(scope="session")
async def database_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    """The address of a Postgres that was migrated from empty."""
    postgres = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    url = await postgres.start()
    database = Database(url, pool_size=2)
    await migrate(database)
    await database.close()
    yield url
    await postgres.stop()


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
