"""The relay breaks what it is told to break, and nothing else."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from app.adapters.postgres.database import Database
from app.core.errors import Unavailable
from tests.faults.postgres import Postgres
from tests.faults.relay import Relay, relaying


@pytest.fixture
async def relay(postgres: Postgres) -> AsyncGenerator[Relay, None]:
    async with relaying(postgres.connect) as running:
        yield running


@pytest.fixture
async def direct(postgres: Postgres) -> AsyncGenerator[Database, None]:
    database = Database(await postgres.database(), pool_size=2)
    await database.run("CREATE TABLE kept (number int)", {})
    yield database
    await database.close()


@pytest.fixture
async def through(
    postgres: Postgres, relay: Relay, direct: Database
) -> AsyncGenerator[Database, None]:
    database = Database(postgres.through(direct.url, relay.port), pool_size=2)
    await database.first("SELECT 1", {})
    yield database
    await database.close()


async def kept(database: Database) -> int:
    return len(await database.all("SELECT number FROM kept", {}))


async def test_a_lost_answer_may_be_that_of_a_write_that_happened(
    relay: Relay, direct: Database, through: Database
) -> None:
    relay.lose = 1.0
    with pytest.raises(Unavailable):
        await through.run("INSERT INTO kept VALUES (1)", {})

    assert relay.lost == 1
    assert await kept(direct) == 1


async def test_a_late_answer_comes(relay: Relay, through: Database) -> None:
    relay.delay = 0.2
    begun = time.monotonic()
    row = await through.first("SELECT 7 AS number", {})

    assert row is not None
    assert row.number == 7
    assert time.monotonic() - begun >= 0.2


async def test_nothing_passes_while_it_is_deaf(relay: Relay, through: Database) -> None:
    relay.deaf = True
    asked = asyncio.create_task(through.first("SELECT 7 AS number", {}))
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    relay.deaf = False
    row = await asked

    assert done == set()
    assert row is not None
    assert row.number == 7


async def test_what_is_collected_arrives_whole(relay: Relay, through: Database) -> None:
    relay.lump_bytes, relay.lump_seconds = 10_000, 0.05
    rows = await through.all("SELECT g, repeat('x', 100) AS x FROM generate_series(1, 2000) g", {})

    assert [row.g for row in rows] == list(range(1, 2001))
