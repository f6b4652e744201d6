"""How a stream treats its reader, asked without a server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.core.errors import Unavailable
from app.core.records import LogEntry
from app.http.sse import AWAY, HEARTBEAT, RETRY, stream

GET = {"type": "http", "method": "GET"}
ONE = LogEntry(1, "REPLY_START", "r", b'{"type":"REPLY_START"}')
TWO = LogEntry(2, "REPLY_END", "r", b'{"type":"REPLY_END"}')
FRAMES = [
    b'id: 1\ndata: {"type":"REPLY_START","seq":1}\n\n',
    b'id: 2\ndata: {"type":"REPLY_END","seq":2}\n\n',
]


class Log:
    """Events that come as a test says, and whether somebody still waits for more."""

    def __init__(self, *batches: Sequence[LogEntry], then: Exception | None = None) -> None:
        self.batches, self.then = batches, then
        self.closed = False

    async def entries(self) -> AsyncGenerator[Sequence[LogEntry], None]:
        try:
            for batch in self.batches:
                yield batch
            if self.then is not None:
                raise self.then
            await asyncio.Event().wait()
        finally:
            self.closed = True


class Client:
    """A client that takes so many bodies, and then no more."""

    def __init__(self, takes: int = 1000) -> None:
        self.takes = takes
        self.bodies: list[bytes] = []
        self.ends = 0
        self.left = asyncio.Event()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
            return
        if len(self.bodies) == self.takes:
            await asyncio.Event().wait()
        self.bodies.append(message["body"])
        self.ends += not message["more_body"]


async def read(log: Log, client: Client, **options: Any) -> None:
    async with asyncio.timeout(10):
        await stream(log.entries(), **options)(GET, client.receive, client.send)
    assert log.closed


async def test_what_frames_one_reply_goes_out_with_its_events() -> None:
    client = Client()
    await read(Log([ONE], [TWO], [ONE]), client, of_one_reply=True, headers={"Location": "/r"})

    assert client.bodies == [RETRY + FRAMES[0], FRAMES[1]]
    assert client.ends == 1
    assert client.headers[b"location"] == b"/r"
    assert client.headers[b"content-type"].startswith(b"text/event-stream")


async def test_a_log_is_open_before_anything_happens_in_it() -> None:
    log, client = Log(), Client()
    reading = asyncio.create_task(read(log, client))
    await asyncio.sleep(0.01)
    assert client.bodies == [RETRY]
    client.left.set()
    await reading


async def test_a_stream_goes_on_behind_the_end_of_a_reply() -> None:
    client = Client()
    await read(Log([ONE, TWO], [ONE], then=Unavailable("away")), client)

    assert client.bodies == [RETRY, b"".join(FRAMES), FRAMES[0], AWAY]
    assert client.ends == 1


@pytest.mark.parametrize("options", [{}, {"of_one_reply": True}])
async def test_a_reader_that_leaves_ends_its_stream(options: dict[str, bool]) -> None:
    log, client = Log([ONE]), Client()
    reading = asyncio.create_task(read(log, client, **options))
    await asyncio.sleep(0.01)
    client.left.set()
    await reading

    assert client.ends == 0


@pytest.mark.parametrize("takes", [1, 2])
async def test_a_reader_that_takes_nothing_is_let_go(
    monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    monkeypatch.setattr("app.http.sse.SEND_TIMEOUT_SECONDS", 0.05)
    client = Client(takes)
    await read(Log([ONE], [TWO]), client)

    assert len(client.bodies) == takes


async def test_a_reader_that_does_not_even_take_a_comment_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.http.sse.SEND_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("app.http.sse.HEARTBEAT_SECONDS", 0.01)
    client = Client(4)
    await read(Log([ONE]), client)

    assert client.bodies == [RETRY, FRAMES[0], HEARTBEAT, HEARTBEAT]


async def test_a_slow_reader_is_no_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.sse.HEARTBEAT_SECONDS", 0.01)
    log, client = Log([ONE]), Client(1)
    reading = asyncio.create_task(read(log, client))
    await asyncio.sleep(0.1)

    assert client.bodies == [RETRY]
    client.left.set()
    await reading


async def test_who_cancels_a_stream_has_cancelled_it() -> None:
    log, client = Log([ONE]), Client()
    reading = asyncio.create_task(read(log, client))
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert log.closed


async def test_a_mistake_of_the_log_is_not_hidden() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        await read(Log([ONE], then=TimeoutError("mine")), Client())
