"""Faults of the service that the scenarios have found, each shown by itself; all are mended."""

import asyncio
import random
import struct
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from app.adapters.postgres import leases
from app.adapters.postgres.database import Database
from app.core.errors import Fenced, Unavailable
from app.engine.lease import LeasedJournal
from app.engine.worker import Worker
from tests.faults.postgres import Postgres
from tests.faults.relay import relaying
from tests.support.models import WrittenModel, call, say
from tests.support.replica import TENANT, Replica
from tests.support.tools import WrittenTool


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


async def test_a_session_that_is_taken_away_while_it_is_read_is_read_as_it_was_or_not_at_all(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(await postgres.database(), pool_size=5)
    here = Replica(database)
    session = await here.session()
    await here.send(session)
    claim = await here.leases.claim(owner="here", ttl=timedelta(seconds=20))
    assert claim is not None
    read = leases.read_context

    async def held_still(*args: Any, **more: Any) -> Any:
        """Be stopped between two statements, for longer than the lease lasts."""
        monkeypatch.setattr(leases, "read_context", read)
        await database.run("UPDATE sessions SET lease_until = '-infinity'", {})
        model = WrittenModel([call(("c1", "tool", '{"x": "1"}')), say("done")])
        await _served(here.worker(model, WrittenTool("tool")), here, session)
        return await read(*args, **more)

    monkeypatch.setattr(leases, "read_context", held_still)
    try:
        loaded = await here.leases.load(claim)
    except Fenced:
        return
    finally:
        await database.close()
    blocks = [block for message in loaded.standing.state.context for block in message.content]
    calls = Counter(block.id for block in blocks if block.type == "tool_call")
    assert all(count == 1 for count in calls.values()), calls


async def test_a_holder_whose_database_does_not_answer_gives_up_in_time(postgres: Postgres) -> None:
    ttl = timedelta(seconds=2)
    direct = Database(await postgres.database(), pool_size=2)
    async with relaying(postgres.connect) as relay:
        through = Database(postgres.through(direct.url, relay.port), pool_size=2)
        here = Replica(through)
        session = await here.session()
        await here.send(session)
        claim = await here.leases.claim(owner="here", ttl=ttl)
        assert claim is not None
        journal = LeasedJournal(
            here.leases,
            claim,
            await here.leases.load(claim),
            ttl=ttl,
            wakeups=here.wakeups,
            since=asyncio.get_running_loop().time(),
        )
        recording = asyncio.create_task(journal.write())
        # It has nothing to write, and renews; the next renewal is not answered.
        await asyncio.sleep(0.8)
        relay.deaf = True
        done, _ = await asyncio.wait({recording}, timeout=ttl.total_seconds() + 6)
        recording.cancel()
        relay.deaf = False
        await asyncio.gather(recording, return_exceptions=True)
        await through.close()
    await direct.close()

    assert done == {recording}


async def _served(worker: Worker, replica: Replica, session: str) -> None:
    """Let a worker write what waits."""
    await worker.start()
    async with asyncio.timeout(30):
        while (await replica.sessions.get(TENANT, session)).status != "idle":
            await asyncio.sleep(0.02)
    await worker.stop(timedelta(0))
