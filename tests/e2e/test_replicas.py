"""Several processes on one database: every message is answered once, in order, whatever dies."""

import asyncio
import json
import random
from itertools import pairwise
from typing import Any

import httpx
import pytest

from app.adapters.postgres.database import Database
from tests.support.checker import violations
from tests.support.model_server import ModelServer, model_server
from tests.support.service import Process, Service, process, read_log, sse


def chunk(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
DONE = {"_done": True}


async def until_idle(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    for _ in range(1200):
        snapshot = (await client.get(f"/v1/sessions/{session}")).json()
        if snapshot["status"] == "idle":
            return snapshot
        await asyncio.sleep(0.05)
    raise AssertionError(f"the session did not get idle: {snapshot}")


async def test_200_messages_from_two_processes_are_answered_one_by_one(
    own_url: str, own_database: Database
) -> None:
    async with process(own_url) as one, process(own_url) as two:
        agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
        made = await one.client.post("/v1/sessions", json={"agent_id": agent})
        session = made.json()["id"]

        async def send(number: int) -> str:
            client = (one, two)[number % 2].client
            answer = await client.post(
                f"/v1/sessions/{session}/messages", json={"content": f"echo number {number}."}
            )
            assert answer.status_code == 202, answer.text
            return answer.json()["reply_id"]

        replies = await asyncio.gather(*[send(number) for number in range(200)])
        await until_idle(one.client, session)
        log = await read_log(two.client, session)

    assert await violations(own_database, session) == []
    ends = [event["reply_id"] for event in log if event["type"] == "REPLY_END"]
    assert sorted(ends) == sorted(replies)
    assert all(
        event["finished_reason"] == "completed" for event in log if event["type"] == "REPLY_END"
    )


async def test_a_reply_goes_on_elsewhere_when_its_process_is_killed(
    own_url: str, own_database: Database
) -> None:
    hang = [chunk("half "), chunk("an answer"), {"_sleep": 600}]
    whole = [chunk("a whole "), chunk("answer"), STOP, USAGE, DONE]
    async with model_server(hang, whole, whole) as model:
        settings = {
            "BEARINGS_MODEL": "openai:test",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
            "BEARINGS_LEASE_TTL": "2",
        }
        async with process(own_url, **settings) as one:
            agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            seen = await _read_until_half(one, session)
            one.child.kill()
            await one.child.wait()
        async with process(own_url, **settings) as two:
            await until_idle(two.client, session)
            log = await read_log(two.client, session)
            final = await two.client.post(
                f"/v1/sessions/{session}/messages",
                json={"content": "and on"},
                headers={"Prefer": "wait=30"},
            )
            rest = await read_log(two.client, session, after=seen[-1]["seq"])

    assert final.json()["finished_reason"] == "completed"
    assert log[: len(seen)] == seen
    assert [event["seq"] for event in seen + rest] == list(range(1, len(seen + rest) + 1))
    resumed = next(event for event in log if event["type"] == "REPLY_RESUMED")
    begun = next(event for event in log if event["type"] == "TEXT_BLOCK_START")
    assert resumed["discard"] == [begun["block_id"]]
    assert await violations(own_database, session) == []
    said = [block["text"] for block in _last_said(model) if block["role"] == "assistant"]
    assert said == ["a whole answer"]


async def _read_until_half(one: Process, session: str) -> list[dict[str, Any]]:
    """Send a message and read its events until half an answer is there."""
    seen: list[dict[str, Any]] = []
    async with one.client.stream(
        "POST",
        f"/v1/sessions/{session}/messages",
        json={"content": "hello"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        async for event in sse(answer.aiter_lines()):
            seen.append(event)
            if "".join(each.get("delta", "") for each in seen) == "half an answer":
                return seen
    raise AssertionError(f"the stream ended: {seen}")


def _last_said(model: ModelServer) -> list[dict[str, Any]]:
    messages: Any = model.requests[-1]["messages"]
    return [{"role": each["role"], "text": each["content"]} for each in messages]


async def test_a_reply_goes_on_elsewhere_at_once_when_its_process_is_told_to_stop(
    own_url: str, own_database: Database
) -> None:
    hang = [chunk("half "), chunk("an answer"), {"_sleep": 600}]
    whole = [chunk("a whole answer"), STOP, USAGE, DONE]
    async with model_server(hang, whole) as model:
        settings = {
            "BEARINGS_MODEL": "openai:test",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
            "BEARINGS_LEASE_TTL": "120",
            "BEARINGS_DRAIN_GRACE": "0",
        }
        async with (
            process(own_url, **settings) as one,
            process(own_url, **settings) as two,
        ):
            agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            await _read_until_half(one, session)
            running = await own_database.first(
                "SELECT lease_until > clock_timestamp() AS held FROM sessions WHERE id = :id",
                {"id": session},
            )
            one.child.terminate()
            two.child.terminate()
            codes = [await one.child.wait(), await two.child.wait()]
        async with process(own_url, **settings) as three:
            await until_idle(three.client, session)

    assert running is not None
    assert running.held
    assert codes == [0, 0]
    assert await violations(own_database, session) == []


async def test_a_process_that_is_told_to_stop_ends_with_streams_and_waits_open(
    own_url: str,
) -> None:
    async with model_server([{"_sleep": 600}]) as model:
        settings = {
            "BEARINGS_MODEL": "openai:test",
            "BEARINGS_MODEL_BASE_URL": model.base_url,
            "BEARINGS_DRAIN_GRACE": "1",
        }
        async with process(own_url, **settings) as one:
            agent = (await one.client.post("/v1/agents", json={"name": "Friday"})).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            url = f"/v1/sessions/{session}"
            wait = asyncio.create_task(
                one.client.post(
                    f"{url}/messages", json={"content": "hi"}, headers={"Prefer": "wait=300"}
                )
            )
            while not model.requests:
                await asyncio.sleep(0.02)
            async with one.client.stream("GET", f"{url}/events") as stream:
                one.child.terminate()
                lines = [line async for line in stream.aiter_lines()]
            code = await asyncio.wait_for(one.child.wait(), 10)
            waited = await wait

    assert code == 0
    assert waited.status_code == 202
    assert lines[0] == "retry: 1000"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_reader_that_reconnects_at_random_sees_the_log(
    service: Service, database: Database, seed: int
) -> None:
    chance = random.Random(seed)
    session = await service.session()
    for content in ("long 3000", "plan a trip", "fail", "work"):
        await service.client.post(f"/v1/sessions/{session}/messages", json={"content": content})
    joined: list[dict[str, Any]] = []
    ended = 0
    while ended < 4:
        last = joined[-1]["seq"] if joined else 0
        headers = {"Last-Event-ID": str(last)} if last and chance.random() < 0.5 else {}
        url = f"/v1/sessions/{session}/events"
        async with service.client.stream(
            "GET", url, params={} if headers else {"after": last}, headers=headers
        ) as answer:
            patience = chance.randrange(1, 400)
            async for event in sse(answer.aiter_lines()):
                joined.append(event)
                ended += event["type"] == "REPLY_END"
                patience -= 1
                if not patience or ended == 4:
                    break
    await until_idle(service.client, session)

    assert joined == await service.log(session)
    assert await violations(database, session) == []


async def test_each_request_to_the_model_begins_with_the_whole_of_the_one_before(
    own_url: str, own_database: Database
) -> None:
    """Thirty turns with a tool call and an injection each: the prefix stays, so it stays cached."""
    turns: list[Any] = []
    for number in range(30):
        arguments = json.dumps({"subject": f"s{number}", "description": "d"})
        call = {
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": f"call_{number}",
                                "function": {"name": "TaskCreate", "arguments": arguments},
                            }
                        ]
                    },
                    "finish_reason": "tool_calls",
                }
            ]
        }
        turns += [[call, USAGE, DONE], [chunk(f"answer {number}"), STOP, USAGE, DONE]]
    async with model_server(*turns) as model:
        settings = {"BEARINGS_MODEL": "openai:test", "BEARINGS_MODEL_BASE_URL": model.base_url}
        async with process(own_url, **settings) as one:
            spec = {"name": "Friday", "injection": {"time_interval": 0}}
            agent = (await one.client.post("/v1/agents", json=spec)).json()["id"]
            made = await one.client.post("/v1/sessions", json={"agent_id": agent})
            session = made.json()["id"]
            for number in range(30):
                answer = await one.client.post(
                    f"/v1/sessions/{session}/messages",
                    json={"content": f"question {number}"},
                    headers={"Prefer": "wait=30"},
                )
                assert answer.json()["finished_reason"] == "completed", answer.text
            log = await read_log(one.client, session)

    requests: list[Any] = model.requests
    calls = [event["type"] for event in log].count("MODEL_CALL_START")
    assert (len(requests), calls) == (60, 60)
    for earlier, later in pairwise(requests):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert later["tools"] == earlier["tools"]
    assert sum(event["type"] == "HINT_BLOCK" for event in log) >= 30
    assert await violations(own_database, session) == []
