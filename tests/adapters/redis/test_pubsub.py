"""Wake-ups over a Redis that goes, comes back, falls silent, and lets nobody in."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from structlog.testing import capture_logs

from app.adapters.redis.pubsub import RedisCarrier
from tests.support.redis_server import PASSWORD, RedisServer, redis_server
from tests.support.signals import meet, member


@pytest.fixture
async def server() -> AsyncGenerator[RedisServer, None]:
    async with redis_server() as running:
        yield running


async def test_a_server_that_is_away_at_the_start_is_found_when_it_comes() -> None:
    async with redis_server(started=False) as server:
        with capture_logs() as logs:
            async with (
                member(RedisCarrier(server.url), "one") as one,
                member(RedisCarrier(server.url), "two") as two,
            ):
                one.send("grown", "ses_1")
                while len(logs) < 3:  # both have failed to listen, and one to send
                    await asyncio.sleep(0.01)
                await server.start()
                await meet(one, two)

    assert PASSWORD not in repr(logs)
    assert {log["log_level"] for log in logs} == {"warning", "info"}


async def test_a_server_that_is_killed_and_started_again_carries_on(server: RedisServer) -> None:
    async with (
        member(RedisCarrier(server.url), "one") as one,
        member(RedisCarrier(server.url), "two") as two,
    ):
        await meet(one, two)
        await server.kill()
        one.send("grown", "ses_1")
        await server.start()
        await meet(one, two)


async def test_a_refused_password_is_logged_without_it(server: RedisServer) -> None:
    url = server.url.replace(PASSWORD, "wrong-and-secret")
    with capture_logs() as logs:
        async with member(RedisCarrier(url), "one") as one:
            one.send("grown", "ses_1")
            while len(logs) < 2:
                await asyncio.sleep(0.01)

    assert [log["log_level"] for log in logs] == ["warning", "warning"]
    assert "wrong-and-secret" not in repr(logs)


async def test_fleets_with_different_numbers_do_not_wake_one_another(server: RedisServer) -> None:
    other = server.url.removesuffix("0") + "7"
    async with (
        member(RedisCarrier(server.url), "one") as one,
        member(RedisCarrier(server.url), "two") as two,
        member(RedisCarrier(other), "three") as three,
        member(RedisCarrier(other), "four") as four,
    ):
        await meet(one, two)
        await meet(three, four)
        one.send("grown", "ses_1")
        await two.until("grown", "ses_1")
        await meet(three, four)

    assert three.heard == four.heard == []


@pytest.mark.parametrize(
    ("path", "rights"), [("", ["&bearings/0"]), ("/3", ["&bearings/3", "+select"])]
)
async def test_a_user_who_may_only_publish_and_subscribe_is_enough(
    server: RedisServer, path: str, rights: list[str]
) -> None:
    always = ("resetchannels", "-@all", "+publish", "+subscribe", "+ping")
    await server.ask("ACL", "SETUSER", "small", "on", ">secret", *always, *rights)
    url = f"redis://small:secret@127.0.0.1:{server.port}{path}"
    async with (
        member(RedisCarrier(url), "one") as one,
        member(RedisCarrier(url), "two") as two,
    ):
        await meet(one, two)

    assert await server.ask("ACL", "LOG") == []


def test_the_library_is_loaded_only_where_it_is_used() -> None:
    loads = "import app.main, sys; sys.exit('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", loads], check=False).returncode == 0
