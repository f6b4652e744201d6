"""Two processes behind a real PgBouncer in transaction mode, alone and with Redis beside it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.adapters.postgres.database import Database
from tests.e2e.test_interrupts import HANG, started
from tests.e2e.test_replicas import until_idle
from tests.support.checker import violations
from tests.support.model_server import model_server
from tests.support.pgbouncer import pgbouncer
from tests.support.redis_server import redis_server
from tests.support.service import process, read_log, sse

POOL_SIZE = 3
"""Fewer than one process may use, so that clients do share connections."""


@asynccontextmanager
async def wakeups(carrier: str) -> AsyncGenerator[dict[str, str], None]:
    """What a process is told of where its wake-ups go."""
    if carrier == "postgres":
        yield {}
        return
    async with redis_server() as server:
        yield {"BEARINGS_WAKEUPS_URL": server.url}


async def begin(client: httpx.AsyncClient, **spec: Any) -> str:
    agent = (await client.post("/v1/agents", json={"name": "Friday"} | spec)).json()["id"]
    return (await client.post("/v1/sessions", json={"agent_id": agent})).json()["id"]


async def read_in_parts(
    client: httpx.AsyncClient, session: str, *, ends: int, part: int
) -> list[dict[str, Any]]:
    """Read a session's events until so many replies have ended, and come back after each part."""
    seen: list[dict[str, Any]] = []
    while sum(event["type"] == "REPLY_END" for event in seen) < ends:
        url = f"/v1/sessions/{session}/events"
        last = seen[-1]["seq"] if seen else 0
        async with client.stream("GET", url, params={"after": last}) as answer:
            count = 0
            async for event in sse(answer.aiter_lines()):
                seen.append(event)
                count += 1
                over = sum(each["type"] == "REPLY_END" for each in seen) == ends
                if count == part or over:
                    break
    return seen


@pytest.mark.parametrize("carrier", ["postgres", "redis"])
async def test_two_processes_behind_a_pooler_keep_every_promise(
    own_url: str, own_database: Database, carrier: str
) -> None:
    async with (
        pgbouncer(own_url, pool_size=POOL_SIZE) as pooled,
        wakeups(carrier) as more,
        model_server(HANG) as model,
    ):
        settings = {
            "BEARINGS_DATABASE_POOLER": "true",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
        } | more
        async with process(pooled, **settings) as one:
            hanging = await begin(one.client, model={"provider": "openai", "name": "test"})
            await one.client.post(f"/v1/sessions/{hanging}/messages", json={"content": "hi"})
            await started(one.client, hanging, "half an answer")
            async with process(pooled, **settings) as two:
                answer = await two.client.post(f"/v1/sessions/{hanging}/interrupt")
                stopped = await read_in_parts(two.client, hanging, ends=1, part=2)
                sessions, read = await _speak_and_read([one.client, two.client])
                logs = [await read_log(one.client, session) for session in sessions]

    assert answer.json()["status"] == "interrupted"
    assert stopped[-1]["finished_reason"] == "interrupted"
    assert read == logs
    for session in [hanging, *sessions]:
        assert await violations(own_database, session) == []


async def _speak_and_read(
    clients: list[httpx.AsyncClient],
) -> tuple[list[str], list[list[dict[str, Any]]]]:
    """Speak to four sessions from both processes at once, and read each in parts meanwhile."""
    sessions = [await begin(clients[number % 2]) for number in range(4)]

    async def say(number: int) -> None:
        answer = await clients[number % 2].post(
            f"/v1/sessions/{sessions[number // 2 % 4]}/messages",
            json={"content": f"echo number {number}."},
        )
        assert answer.status_code == 202, answer.text

    reads = [
        asyncio.create_task(read_in_parts(clients[at % 2], session, ends=10, part=7))
        for at, session in enumerate(sessions)
    ]
    await asyncio.gather(*[say(number) for number in range(40)])
    read = await asyncio.gather(*reads)
    for session in sessions:
        await until_idle(clients[0], session)
    return sessions, read
