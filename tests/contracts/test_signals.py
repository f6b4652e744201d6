"""What every carrier of wake-ups promises, asked of each on its real server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import pytest

from app.adapters.postgres import database, listen
from app.adapters.postgres.database import Database
from app.adapters.postgres.listen import PostgresCarrier
from app.adapters.redis import pubsub
from app.adapters.redis.pubsub import RedisCarrier
from app.adapters.signals import Carrier
from tests.support.redis_server import redis_server
from tests.support.relay import relay
from tests.support.signals import Member, meet, member


@dataclass
class Wire:
    """A server that carries wake-ups."""

    carrier: Callable[[], Carrier]
    drop: Callable[[], Awaitable[object]]
    """Break every connection that carries."""
    deafen: Callable[[], None]
    """Let nothing come over them any more, though they stay open."""


@asynccontextmanager
async def postgres(url: str) -> AsyncGenerator[Wire, None]:
    parts = urlsplit(url)
    socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    async with relay(lambda: asyncio.open_unix_connection(socket)) as passing:
        pool = Database(f"postgresql://postgres@127.0.0.1:{passing.port}{parts.path}", pool_size=3)

        async def drop() -> None:
            await pool.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
                {},
            )

        yield Wire(lambda: PostgresCarrier(pool), drop, passing.deafen)
        await pool.close()


@asynccontextmanager
async def redis(which: str) -> AsyncGenerator[Wire, None]:
    async with (
        redis_server(which) as server,
        relay(lambda: asyncio.open_connection("127.0.0.1", server.port)) as passing,
    ):
        url = server.url.replace(str(server.port), str(passing.port))

        async def drop() -> None:
            await server.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await server.ask("CLIENT", "KILL", "TYPE", "normal")

        yield Wire(lambda: RedisCarrier(url), drop, passing.deafen)


@pytest.fixture(params=["postgres", "redis", "valkey"])
async def wire(request: pytest.FixtureRequest, own_url: str) -> AsyncGenerator[Wire, None]:
    chosen = postgres(own_url) if request.param == "postgres" else redis(request.param)
    async with chosen as made:
        yield made


@pytest.fixture
async def members(wire: Wire) -> AsyncGenerator[list[Member], None]:
    """Three replicas that hear one another."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(member(wire.carrier(), name))
            for name in ("one", "two", "three")
        ]
        await meet(*made)
        yield made


async def test_what_one_sends_the_others_hear_and_it_does_not(members: list[Member]) -> None:
    one, two, three = members
    one.send("stop", "ses_1/rep_2")
    await two.until("stop", "ses_1/rep_2")
    await three.until("stop", "ses_1/rep_2")
    two.send("grown", "ses_1")
    await one.until("grown", "ses_1")

    assert one.heard == [("grown", "ses_1")]


async def test_a_wake_up_is_sent_once_however_often_it_is_asked_for(members: list[Member]) -> None:
    one, two, _ = members
    for _ in range(100):
        one.send("grown", "ses_1")
    one.send("work", "ses_1")
    await two.until("work", "ses_1")

    assert two.heard == [("grown", "ses_1"), ("work", "ses_1")]


async def test_thousands_at_once_are_all_heard_in_their_order(members: list[Member]) -> None:
    one, two, _ = members
    sent = [("grown", f"ses_{number}") for number in range(3000)]
    for topic, subject in sent:
        one.send(topic, subject)
    await two.until(*sent[-1])

    assert two.heard == sent


async def test_what_waits_is_sent_before_the_end(members: list[Member]) -> None:
    one, two, _ = members
    one.send("grown", "ses_1")
    one.send("work", "ses_1")
    await one.signals.stop()
    await two.until("work", "ses_1")

    assert two.heard == [("grown", "ses_1"), ("work", "ses_1")]


async def test_connections_that_break_are_made_again(members: list[Member], wire: Wire) -> None:
    for _ in range(2):
        await wire.drop()
        members[0].send("grown", "ses_1")
        await meet(*members)


async def test_connections_that_went_silent_are_given_up(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (listen, pubsub):
        monkeypatch.setattr(room, "QUIET_SECONDS", 0.2)
        monkeypatch.setattr(room, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 1.0)
    async with (
        member(wire.carrier(), "one") as one,
        member(wire.carrier(), "two") as two,
    ):
        await meet(one, two)
        wire.deafen()
        await meet(one, two)


async def test_sending_outside_of_start_and_stop_is_harmless(wire: Wire) -> None:
    never = Member(wire.carrier(), "never")
    never.send("grown", "ses_1")
    await never.signals.stop()
    never.send("grown", "ses_1")
    async with member(wire.carrier(), "over") as over:
        pass
    over.send("grown", "ses_1")
    await over.signals.stop()
