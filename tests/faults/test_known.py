"""Faults of the service that the scenarios have found, each shown by itself."""

import asyncio
import random
import struct

import pytest

from app.adapters.postgres.database import Database
from app.core.errors import Unavailable
from tests.faults.postgres import Postgres
from tests.faults.relay import relaying


@pytest.mark.xfail(
    reason="InternalClientError of asyncpg is taken for a mistake of ours", strict=True
)
async def test_a_connection_that_the_server_is_just_ending_means_out_of_reach(
    postgres: Postgres,
) -> None:
    async with relaying(postgres.connect, random.Random(1)) as relay:
        url = postgres.through(await postgres.database(), relay.port)
        database = Database(url, pool_size=2)
        await database.first("SELECT 1", {})
        ((client, _),) = relay._open.values()
        # What pg_terminate_backend sends to an idle connection, whose end comes a moment later.
        fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
        client.write(b"E" + struct.pack("!I", len(fields) + 4) + fields)
        await client.drain()
        # The driver reads what has come before the next statement is sent.
        await asyncio.sleep(0.05)
        try:
            with pytest.raises(Unavailable):
                await database.first("SELECT 1", {})
        finally:
            await database.close()
