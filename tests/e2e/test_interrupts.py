"""Stopping a reply: from any replica, in any state, and the answer is the truth."""

import asyncio
from typing import Any

import httpx
import pytest

from app.adapters.postgres.database import Database
from tests.e2e.test_replicas import DONE, STOP, USAGE, chunk, until_idle
from tests.support.checker import violations
from tests.support.model_server import model_server
from tests.support.service import Service, process, read_log, serving

HANG = [chunk("half "), chunk("an answer"), {"_sleep": 600}]
WHOLE = [chunk("whole"), STOP, USAGE, DONE]


async def started(client: httpx.AsyncClient, session: str, said: str) -> None:
    """Wait until the log shows a text."""
    while said not in "".join(event.get("delta", "") for event in await read_log(client, session)):
        await asyncio.sleep(0.02)


async def test_a_reply_that_speaks_is_stopped_and_what_it_said_stays(
    own_url: str, own_database: Database
) -> None:
    async with (
        model_server(HANG, WHOLE) as model,
        serving(
            database_url=own_url, model="openai:test", model_base_url=model.base_url
        ) as service,
    ):
        session = await service.session()
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
        await started(service.client, session, "half an answer")
        answer = await service.client.post(f"/v1/sessions/{session}/interrupt")
        again = await service.client.post(f"/v1/sessions/{session}/interrupt")
        await asyncio.wait_for(model.left.wait(), 5)
        messages = (await service.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
        final = await service.send(session, "and now?")

    assert (answer.json()["status"], again.json()["status"]) == ("interrupted", "idle")
    assert messages[-1]["finished_reason"] == "interrupted"
    assert messages[-1]["content"][-1]["text"] == "half an answer"
    assert final["content"][-1]["text"] == "whole"
    assert await violations(own_database, session) == []


async def test_a_reply_is_stopped_from_another_replica(
    own_url: str, own_database: Database
) -> None:
    async with model_server(HANG) as model:
        settings = {"BEARINGS_MODEL": "openai:test", "BEARINGS_MODEL_BASE_URL": model.base_url}
        async with process(own_url, **settings) as one:
            agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            await one.client.post(f"/v1/sessions/{session}/messages", json={"content": "hi"})
            await started(one.client, session, "half an answer")
            async with serving(database_url=own_url) as two:
                answer = await two.client.post(f"/v1/sessions/{session}/interrupt")

    assert answer.json()["status"] == "interrupted"
    assert await violations(own_database, session) == []


async def test_a_reply_that_waits_for_its_turn_is_stopped_before_it_begins(
    service: Service, database: Database
) -> None:
    session = await service.session()
    await database.run(
        "UPDATE sessions SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = :id",
        {"id": session},
    )
    await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "one"})
    await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "two"})
    answer = await service.client.post(f"/v1/sessions/{session}/interrupt")
    await database.run(
        "UPDATE sessions SET lease_until = '-infinity' WHERE id = :id", {"id": session}
    )
    await until_idle(service.client, session)
    replies = (await service.client.get(f"/v1/sessions/{session}/replies")).json()["data"]

    assert answer.json()["status"] == "interrupting"
    assert [reply["finished_reason"] for reply in replies] == ["completed", "interrupted"]
    assert await violations(database, session) == []


async def test_interrupt_idle_noop(service: Service) -> None:
    session = await service.session()
    answer = await service.client.post(f"/v1/sessions/{session}/interrupt")

    assert answer.json() == {"status": "idle", "reply_id": None}


async def test_a_client_that_goes_away_cancels_nothing(
    service: Service, database: Database
) -> None:
    session = await service.session()
    async with service.client.stream(
        "POST",
        f"/v1/sessions/{session}/messages",
        json={"content": "long 5000"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        async for line in answer.aiter_lines():
            if "TEXT_BLOCK_DELTA" in line:
                break
    await until_idle(service.client, session)
    log = await service.log(session)

    assert log[-1]["finished_reason"] == "completed"
    assert await violations(database, session) == []


@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_session_can_be_deleted_whatever_it_does(
    service: Service, database: Database, when: str
) -> None:
    session = await service.session()
    if when == "during":
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "long 5000"})
    else:
        await service.send(session, "hello")
    answer = await service.client.delete(f"/v1/sessions/{session}")
    gone = await service.client.get(f"/v1/sessions/{session}")
    left: dict[str, Any] = {}
    for table in ("events", "messages", "blocks", "replies"):
        rows = await database.all(
            f"SELECT count(*) AS n FROM {table} WHERE session_id = :id", {"id": session}
        )
        left[table] = rows[0].n

    assert (answer.status_code, gone.status_code) == (204, 404)
    assert left == {"events": 0, "messages": 0, "blocks": 0, "replies": 0}


async def test_terminated_connections_end_no_reply(service: Service, database: Database) -> None:
    """The database drops every connection of the service, again and again, in the middle of replies."""
    sessions = [await service.session() for _ in range(4)]
    for session in sessions:
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "long 4000"})
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": "plan it"})
    for _ in range(15):
        await database.all(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'bearings' AND pid <> pg_backend_pid() "
            "AND query NOT LIKE '%pg_terminate_backend%'",
            {},
        )
        await asyncio.sleep(0.05)
    for session in sessions:
        while True:
            answer = await service.client.get(f"/v1/sessions/{session}")
            assert answer.status_code in {200, 503}
            if answer.status_code == 200 and answer.json()["status"] == "idle":
                break
            await asyncio.sleep(0.05)

        assert await violations(database, session) == []
