"""Messages over HTTP: sent in three ways, accepted once, read again in full."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from app.adapters.postgres.database import Database
from tests.http.problems import pointers, problem
from tests.support.service import Service, sse


async def post(service: Service, session: str, body: Any, **headers: str) -> Any:
    return await service.client.post(
        f"/v1/sessions/{session}/messages",
        json=body,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


async def streamed(service: Service, session: str, body: Any, **headers: str) -> list[Any]:
    async with service.client.stream(
        "POST",
        f"/v1/sessions/{session}/messages",
        json=body,
        headers={"Accept": "text/event-stream"}
        | {name.replace("_", "-"): value for name, value in headers.items()},
    ) as answer:
        assert answer.status_code == 200
        return [event async for event in sse(answer.aiter_lines())]


@asynccontextmanager
async def held(database: Database, session: str) -> AsyncGenerator[None, None]:
    """Keep a session from being answered, as if another replica held it."""
    statement = "UPDATE sessions SET lease_until = CAST(:until AS timestamptz) WHERE id = :id"
    await database.run(
        statement.replace("CAST(:until AS timestamptz)", "clock_timestamp() + interval '1 hour'"),
        {"id": session},
    )
    yield
    await database.run(
        "UPDATE sessions SET lease_until = '-infinity' WHERE id = :id", {"id": session}
    )


async def test_a_message_is_accepted_with_the_address_of_its_reply(service: Service) -> None:
    session = await service.session()
    answer = await post(service, session, {"content": "hello"})
    accepted = answer.json()
    reply = await service.client.get(answer.headers["location"])

    assert answer.status_code == 202
    assert set(accepted) == {"reply_id", "message_id", "after_seq", "status"}
    assert (accepted["after_seq"], accepted["status"]) == (0, "queued")
    assert (reply.json()["id"], reply.json()["message_id"]) == (
        accepted["reply_id"],
        accepted["message_id"],
    )


@pytest.mark.parametrize("prefer", ["wait=60", "respond-async, wait=60", "WAIT = 60; foo=bar"])
async def test_who_prefers_to_wait_gets_the_final_message(service: Service, prefer: str) -> None:
    session = await service.session()
    answer = await post(service, session, {"content": "hello"}, Prefer=prefer)

    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=60")
    assert answer.json()["role"] == "assistant"
    assert answer.json()["finished_reason"] == "completed"


@pytest.mark.parametrize(
    "prefer", ["wait=0", "wait=x", "wait", "wait=-1", "wait=1e9", "return=minimal", ""]
)
async def test_who_does_not_wait_gets_202(
    service: Service, database: Database, prefer: str
) -> None:
    session = await service.session()
    async with held(database, session):
        answer = await post(service, session, {"content": "hello"}, Prefer=prefer)

        assert answer.status_code == 202


async def test_when_the_wait_is_over_the_answer_is_202(
    service: Service, database: Database
) -> None:
    session = await service.session()
    async with held(database, session):
        answer = await post(service, session, {"content": "hello"}, Prefer="wait=1")

        assert answer.status_code == 202
        assert "preference-applied" not in answer.headers


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("application/json, text/event-stream;q=0.9", "application/json"),
        ("text/event-stream;q=0", "application/json"),
        ("text/html", "application/json"),
        ("text/event-stream, */*;q=0.1", "text/event-stream"),
    ],
)
async def test_the_form_of_the_answer_follows_accept(
    service: Service, accept: str, kind: str
) -> None:
    session = await service.session()
    answer = await post(service, session, {"content": "hello"}, Accept=accept)

    assert answer.headers["content-type"].partition(";")[0] == kind


async def test_a_stream_holds_the_events_of_its_reply_alone(service: Service) -> None:
    session = await service.session()
    await service.client.put(f"/v1/sessions/{session}/environment", json={"a": 1})
    both = await asyncio.gather(
        streamed(service, session, {"content": "one"}),
        streamed(service, session, {"content": "two"}),
    )
    log = await service.log(session)
    for events in both:
        reply = events[0]["reply_id"]

        assert events == [event for event in log if event.get("reply_id") == reply]
        assert (events[0]["type"], events[-1]["type"]) == ("MESSAGE_RECEIVED", "REPLY_END")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_what_is_wrong_is_a_problem_before_a_stream_begins(
    service: Service, accept: str
) -> None:
    session = await service.session()
    wrong = await post(service, session, {"content": ""}, Accept=accept)
    missing = await post(service, "ses_none", {"content": "x"}, Accept=accept)

    assert "/content" in pointers(wrong)
    problem(missing, 404, "not_found")
    assert await service.log(session) == []


async def test_a_busy_session_refuses_when_asked_to_and_names_the_reply(
    service: Service, database: Database
) -> None:
    session = await service.session()
    async with held(database, session):
        first = await post(service, session, {"content": "one"})
        refused = await post(service, session, {"content": "two", "on_busy": "reject"})
        enqueued = await post(service, session, {"content": "three"})

        found = problem(refused, 409, "session_busy")
        assert found["reply_id"] == first.json()["reply_id"]
        assert enqueued.status_code == 202


async def test_RC_085_one_key_gives_one_reply(service: Service) -> None:  # noqa: N802
    session, other = await service.session(), await service.session()
    key = uuid4().hex
    answers = await asyncio.gather(
        *[post(service, session, {"content": "x"}, Idempotency_Key=key) for _ in range(5)]
    )
    changed = await post(service, session, {"content": "y"}, Idempotency_Key=key)
    elsewhere = await post(service, other, {"content": "y"}, Idempotency_Key=key)
    events = await streamed(service, session, {"content": "x"}, Idempotency_Key=key)
    replies = (await service.client.get(f"/v1/sessions/{session}/replies")).json()["data"]

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.text for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 4
    problem(changed, 422, "idempotency_key_reused")
    assert (elsewhere.status_code, "idempotency-replayed" in elsewhere.headers) == (202, False)
    assert [reply["id"] for reply in replies] == [answers[0].json()["reply_id"]]
    assert (events[0]["type"], events[-1]["type"]) == ("MESSAGE_RECEIVED", "REPLY_END")


async def test_RC_001_a_nul_in_a_text_is_replaced_and_answered(service: Service) -> None:  # noqa: N802
    session = await service.session()
    await service.send(session, "what's the \u0000 weather")
    await service.send(session, "again")
    state = (await service.client.get(f"/v1/sessions/{session}/state")).json()
    log = await service.log(session)

    assert log[0]["message"]["content"][0]["text"] == "what's the \ufffd weather"
    assert state["context"][0]["content"][0]["text"] == "what's the \ufffd weather"
    assert [event["type"] for event in log].count("REPLY_END") == 2


async def test_RC_071_messages_at_once_are_all_taken_in_the_order_of_the_log(  # noqa: N802
    service: Service,
) -> None:
    session = await service.session()
    answers = await asyncio.gather(
        *[post(service, session, {"content": f"m{at}"}) for at in range(50)]
    )
    await service.send(session, "last")
    log = await service.log(session)
    received = [event["message"] for event in log if event["type"] == "MESSAGE_RECEIVED"]
    history, cursor = [], ""
    while cursor is not None:
        params = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        answer = await service.client.get(f"/v1/sessions/{session}/messages", params=params)
        history += answer.json()["data"]
        cursor = answer.json()["next_cursor"]

    assert {answer.status_code for answer in answers} == {202}
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert [message["id"] for message in history if message["role"] == "user"] == [
        message["id"] for message in received
    ]
    assert len({answer.json()["after_seq"] for answer in answers}) == 50


async def test_history_is_paged_from_either_end(service: Service) -> None:
    session = await service.session()
    for text in ("one", "two", "three"):
        await service.send(session, text)
    path = f"/v1/sessions/{session}/messages"
    whole = (await service.client.get(path)).json()["data"]
    backwards, cursor = [], ""
    while cursor is not None:
        params = {"limit": 2, "order": "desc"} | ({"cursor": cursor} if cursor else {})
        page = (await service.client.get(path, params=params)).json()
        backwards += page["data"]
        cursor = page["next_cursor"]

    assert backwards == whole[::-1]
    assert [message["role"] for message in whole][::2] == ["user"] * 3
    assert pointers(await service.client.get(path, params={"order": "up"})) == ["/query/order"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"content": "  \n"}, "/content"),
        ({"content": [{"type": "text", "text": " "}]}, "/content"),
        ({"content": "x" * 1_000_001}, "/content"),
        ({"content": [{"type": "text", "text": "x" * 1_000_001}]}, "/content"),
        ({"content": [{"type": "text", "text": "x"}] * 257}, "/content"),
        ({"content": "x", "name": "a\nb"}, "/name"),
        ({"content": "x", "on_busy": "panic"}, "/on_busy"),
        ({"content": "x", "max_iters": 0}, "/max_iters"),
        ({"content": "x", "max_iters": 1001}, "/max_iters"),
        ({"content": "x", "max_iters": 1.5}, "/max_iters"),
        ({"text": "x"}, "/text"),
    ],
)
async def test_a_message_that_says_nothing_or_too_much_is_refused(
    service: Service, body: dict[str, Any], pointer: str
) -> None:
    session = await service.session()

    assert pointer in pointers(await post(service, session, body))
    assert await service.log(session) == []


async def test_blocks_get_ids_and_times_of_the_service(service: Service) -> None:
    session = await service.session()
    content = [
        {"type": "text", "id": "mine", "created_at": "whenever", "text": "look"},
        {"type": "data", "source": {"type": "base64", "data": "AA==", "media_type": "image/png"}},
    ]
    await service.send(session, content)
    blocks = (await service.log(session))[0]["message"]["content"]

    assert [block["id"].startswith("blk_") for block in blocks] == [True, True]
    assert "whenever" not in str(blocks)
