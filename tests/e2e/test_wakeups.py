"""Replicas that wake one another over Redis, and what is left when it is gone."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.adapters.postgres.database import Database
from app.engine import wakeups
from tests.e2e.test_interrupts import HANG, WHOLE, started
from tests.e2e.test_replicas import until_idle
from tests.support.checker import violations
from tests.support.model_server import model_server
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import process, serving, sse


@pytest.fixture
async def server() -> AsyncGenerator[RedisServer, None]:
    async with redis_server() as running:
        yield running


async def begin(client: httpx.AsyncClient) -> str:
    agent = (await client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
    return (await client.post("/v1/sessions", json={"agent_id": agent})).json()["id"]


@asynccontextmanager
async def reading(client: httpx.AsyncClient, session: str) -> AsyncGenerator[Callable, None]:
    """Read a session's events, and wait for one of a type."""
    async with client.stream("GET", f"/v1/sessions/{session}/events?after=0") as answer:
        events = sse(answer.aiter_lines())
        seen: list[dict[str, Any]] = []

        async def until(kind: str, count: int = 1) -> list[dict[str, Any]]:
            async with asyncio.timeout(20):
                while sum(each["type"] == kind for each in seen) < count:
                    seen.append(await anext(events))
            return seen

        yield until


async def test_a_reply_is_stopped_and_read_on_another_replica_without_any_polling(
    own_url: str,
    own_database: Database,
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "POLL_SECONDS", 3600)
    settings: dict[str, Any] = {
        "database_url": own_url,
        "wakeups_url": server.url,
        "lease_ttl": 120,  # a heartbeat finds out too, but not in the time that is waited here
    }
    async with model_server(HANG) as model:
        settings |= {"model": "openai:test", "model_base_url": model.base_url}
        async with serving(**settings) as one:
            session = await one.session()
            await one.client.post(f"/v1/sessions/{session}/messages", json={"content": "first"})
            await started(one.client, session, "half an answer")
            async with serving(**settings) as two:
                await server.listened_by(2)
                async with reading(two.client, session) as until:
                    await until("TEXT_BLOCK_DELTA")
                    answer = await two.client.post(f"/v1/sessions/{session}/interrupt")
                    seen = await until("REPLY_END")

    assert answer.json()["status"] == "interrupted"
    assert seen[-1]["finished_reason"] == "interrupted"
    assert await violations(own_database, session) == []


async def test_everything_goes_on_by_polling_when_redis_is_away(
    own_url: str, own_database: Database
) -> None:
    """Away at the start, there, killed in the middle of a reply, and there again."""
    async with (
        redis_server(started=False) as server,
        model_server(HANG, HANG, WHOLE) as model,
    ):
        settings = {
            "BEARINGS_MODEL": "openai:test",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
            "BEARINGS_WAKEUPS_URL": server.url,
        }
        async with process(own_url, **settings) as one:
            session = await begin(one.client)
            await one.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
            await started(one.client, session, "half an answer")
            async with process(own_url, **settings) as two:
                first = await stop_and_read(two.client, session, 1)
                await server.start()
                await server.listened_by(2)
                await two.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
                await started(two.client, session, "half an answer" * 2)
                await server.kill()
                second = await stop_and_read(one.client, session, 2)
                await server.start()
                await server.listened_by(2)
                await one.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
                await until_idle(two.client, session)
                one.child.terminate()
                two.child.terminate()
                codes = [await one.child.wait(), await two.child.wait()]

    assert (first, second) == ("interrupted", "interrupted")
    assert codes == [0, 0]
    assert await violations(own_database, session) == []


async def stop_and_read(client: httpx.AsyncClient, session: str, ends: int) -> str:
    """Stop a session's reply, read its end, and say what the interruption was answered."""
    async with reading(client, session) as until:
        answer = await client.post(f"/v1/sessions/{session}/interrupt")
        await until("REPLY_END", ends)
    return answer.json()["status"]
