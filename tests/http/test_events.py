"""Events over HTTP: the same log as a stream and as pages, from any number on."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from app.adapters.postgres.database import Database
from app.core.errors import Unavailable
from app.core.records import LogEntry
from app.http.sse import stream
from tests.http.problems import pointers, problem
from tests.support.service import Service, sse


async def raw(service: Service, session: str, **headers: str) -> tuple[Any, str]:
    """Read a stream to the end of the log, byte by byte as it came."""
    answer = await service.client.get(
        f"/v1/sessions/{session}/events", params={"follow": "false"}, headers=headers
    )
    return answer, answer.content.decode()


async def numbers(service: Service, session: str, query: str = "", **headers: str) -> list[int]:
    answer = await service.client.get(
        f"/v1/sessions/{session}/events?follow=false{query}",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )
    assert answer.status_code == 200, answer.text
    return [int(line[4:]) for line in answer.text.split("\n") if line.startswith("id: ")]


def nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(nulls, value.values()))
    return any(map(nulls, value)) if isinstance(value, list) else value is None


async def test_a_stream_is_framed_as_every_client_reads_it(service: Service) -> None:
    session = await service.session()
    await service.send(session, "line\r\none\u2028two\n\ndata: x")
    answer, text = await raw(service, session)
    frames = text.split("\n\n")
    log = await service.log(session)

    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "connection" not in answer.headers
    assert "\r" not in text
    assert (frames[0], frames[-1]) == ("retry: 1000", "")
    assert len(frames) == len(log) + 2
    for frame, event in zip(frames[1:-1], log, strict=True):
        first, second = frame.split("\n")
        assert first == f"id: {event['seq']}"
        assert second.startswith(f'data: {{"type":"{event["type"]}","seq":{event["seq"]}')


async def test_no_event_of_a_reply_holds_a_null(service: Service) -> None:
    session = await service.session()
    for text in ("plan a party", "think", "fail", "work"):
        await service.send(session, text)

    assert not any(map(nulls, await service.log(session)))


async def test_a_reader_begins_behind_the_number_it_names(service: Service) -> None:
    session = await service.session()
    await service.send(session, "hello")
    everything = await numbers(service, session)
    end = everything[-1]

    assert everything == list(range(1, end + 1))
    assert await numbers(service, session, "&after=3") == everything[3:]
    assert await numbers(service, session, Last_Event_ID="4") == everything[4:]
    assert await numbers(service, session, "&after=1", Last_Event_ID="4") == everything[4:]
    assert await numbers(service, session, "&after=1", Last_Event_ID="") == everything[1:]
    assert await numbers(service, session, f"&after={end}") == []
    assert await numbers(service, session, "&after=0", Last_Event_ID="0004") == everything[4:]


@pytest.mark.parametrize(
    "number",
    ["abc", "-1", "1e9", "%00", "1.0", "1,2", "٣".encode(), "9" * 20, "9" * 5000,
     "0" * 20 + "9" * 5000, "1; data: spoof", "x\tdata: spoof"],
)  # fmt: skip
async def test_RC_017_a_last_event_id_that_is_no_number_is_refused(  # noqa: N802
    service: Service, number: str
) -> None:
    session = await service.session()
    answer = await service.client.get(
        f"/v1/sessions/{session}/events", headers={"Last-Event-ID": number}
    )

    assert pointers(answer) == ["/header/Last-Event-ID"]
    assert "spoof" not in answer.text


@pytest.mark.parametrize("after", ["abc", "-1", "1e9", "", "9" * 19, "9" * 5000, "%00"])
async def test_an_after_that_is_no_number_is_refused(service: Service, after: str) -> None:
    session = await service.session()
    answer = await service.client.get(f"/v1/sessions/{session}/events?after={after}")

    assert answer.status_code == 422
    assert after == "%00" or pointers(answer) == ["/query/after"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_cursor_beyond_the_end_is_refused(service: Service, accept: str) -> None:
    session = await service.session()
    answer = await service.client.get(
        f"/v1/sessions/{session}/events", params={"after": 1}, headers={"Accept": accept}
    )

    problem(answer, 409, "cursor_ahead")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_RC_106_events_that_are_no_longer_kept_are_told_with_the_way_on(  # noqa: N802
    service: Service, database: Database, accept: str
) -> None:
    session = await service.session()
    await service.send(session, "hello")
    await database.run("DELETE FROM events WHERE session_id = :id AND seq < 5", {"id": session})
    await database.run("UPDATE sessions SET oldest_seq = 5 WHERE id = :id", {"id": session})
    path = f"/v1/sessions/{session}/events"
    gone = await service.client.get(path, params={"after": 1}, headers={"Accept": accept})
    snapshot = (await service.client.get(f"/v1/sessions/{session}")).json()

    assert f"/v1/sessions/{session}" in problem(gone, 410, "cursor_gone")["detail"]
    assert await numbers(service, session, f"&after={snapshot['last_seq']}") == []
    assert (await numbers(service, session))[0] == 5
    assert (await numbers(service, session, "&after=4"))[0] == 5


async def test_a_page_is_what_the_stream_is(service: Service) -> None:
    session = await service.session()
    await service.send(session, "plan it")
    _, text = await raw(service, session)
    pages: list[str] = []
    cursor = "0"
    while cursor:
        page = await service.client.get(
            f"/v1/sessions/{session}/events",
            params={"after": cursor, "limit": 3},
            headers={"Accept": "application/json"},
        )
        pages.append(page.text)
        cursor = page.json()["next_cursor"]
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]

    assert all(line in "".join(pages) for line in lines)
    assert page.headers["content-type"] == "application/json"
    assert page.json()["last_seq"] == len(lines)


async def test_a_late_and_a_live_reader_get_the_same(service: Service) -> None:
    session = await service.session()

    async def read(after: int, last: int) -> list[Any]:
        found = []
        async with service.client.stream(
            "GET", f"/v1/sessions/{session}/events", params={"after": after}
        ) as answer:
            async for event in sse(answer.aiter_lines()):
                found.append(event)
                if event["type"] == "REPLY_END":
                    last -= 1
                if not last:
                    return found
        return found

    live = asyncio.create_task(read(0, 2))
    await service.send(session, "one")
    middle = (await service.log(session))[-1]["seq"]
    behind = asyncio.create_task(read(middle, 1))
    await service.send(session, "two")
    log = await service.log(session)

    assert await live == log
    assert await behind == log[middle:]


async def test_a_stream_ends_when_its_session_is_deleted(service: Service) -> None:
    session = await service.session()
    await service.send(session, "hello")
    async with service.client.stream("GET", f"/v1/sessions/{session}/events") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        deleted = await service.client.delete(f"/v1/sessions/{session}")
        assert deleted.status_code == 204, deleted.text
        async with asyncio.timeout(10):
            rest = [line async for line in lines]

    assert rest[-1] == ""


async def test_RC_097_streams_hold_no_connection(service: Service) -> None:  # noqa: N802
    session = await service.session()
    await service.send(session, "hello")
    async with AsyncExitStack() as stack:
        for _ in range(40):
            answer = await stack.enter_async_context(
                service.client.stream("GET", f"/v1/sessions/{session}/events")
            )
            async for event in sse(answer.aiter_lines()):
                if event["type"] == "REPLY_END":
                    break
        listed = await service.client.get("/v1/sessions")

        # The pool is smaller than the crowd of readers.
        assert listed.status_code == 200


async def test_RC_110_reading_begins_no_work(service: Service) -> None:  # noqa: N802
    session = await service.session()
    await service.send(session, "hello")
    before = (await service.client.get(f"/v1/sessions/{session}")).json()
    await asyncio.gather(*[numbers(service, session, "&after=1") for _ in range(20)])
    after = (await service.client.get(f"/v1/sessions/{session}")).json()

    assert after == before


async def test_RC_115_a_stream_is_not_compressed(service: Service) -> None:  # noqa: N802
    session = await service.session()
    await service.send(session, "long 500")
    answer, _ = await raw(service, session, **{"Accept-Encoding": "gzip, br"})

    assert "content-encoding" not in answer.headers


async def test_a_log_out_of_reach_ends_the_stream_with_a_comment() -> None:
    async def entries() -> Any:
        yield [LogEntry(1, "CUSTOM", "", b'{"type":"CUSTOM"}')]
        raise Unavailable

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    await stream(entries())({"type": "http", "method": "GET"}, receive, send)

    assert b"".join(sent) == (
        b'retry: 1000\n\nid: 1\ndata: {"type":"CUSTOM","seq":1}\n\n'
        b": the log is out of reach; come back with your cursor\n\n"
    )


async def test_silence_is_filled_with_comments(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.sse.HEARTBEAT_SECONDS", 0.05)
    session = await service.session()
    async with service.client.stream("GET", f"/v1/sessions/{session}/events") as answer:
        comments = 0
        async with asyncio.timeout(10):
            async for line in answer.aiter_lines():
                comments += line.startswith(":")
                assert line == "" or line.startswith((":", "retry"))
                if comments == 3:
                    break

    assert comments == 3
