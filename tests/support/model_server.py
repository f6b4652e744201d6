"""A model provider in the test's own process, which answers what a test wrote down.

A turn is a list of chunks, sent as server-sent events, and of specials: `{"_raw": text}` verbatim,
`{"_http": {status, headers, body}}` instead of a stream, `{"_cut": True}` breaks the connection,
`{"_sleep": seconds}`, `{"_done": True}` is `data: [DONE]`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

Turn = Sequence[dict[str, object]]


class ModelServer:
    """Answers each request with the next turn, and keeps what it was asked."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = list(turns)
        self._tasks: set[asyncio.Task[None]] = set()
        self.base_url = ""
        self.requests: list[dict[str, object]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.left = asyncio.Event()
        """Set when a client goes away while an answer is under way."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.left.set()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.strip().split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.paths.append(first.split(" ")[1])
        self.headers.append(headers)
        self.bodies.append(body)
        self.requests.append(json.loads(body))
        watch = asyncio.create_task(self._watch(reader, writer))
        try:
            return await self._answer(self._turns.pop(0), writer)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Reading to notice the end would take bytes of a next request.
        while not (reader.at_eof() or writer.transport.is_closing()):
            await asyncio.sleep(0.005)
        self.left.set()

    async def _answer(self, turn: Turn, writer: asyncio.StreamWriter) -> bool:
        if turn and "_http" in turn[0]:
            return await self._answer_plainly(turn[0]["_http"], writer)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for each in turn:
            if "_cut" in each:
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.transport.abort()
                return False
            if "_sleep" in each:
                await asyncio.sleep(float(each["_sleep"]))
            else:
                data = _event(each)
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _answer_plainly(
        self, answer: dict[str, object], writer: asyncio.StreamWriter
    ) -> bool:
        raw = answer.get("body", "")
        body = raw if isinstance(raw, bytes) else str(raw).encode("utf-8", "surrogatepass")
        headers = {"content-type": "application/json", **answer.get("headers", {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {answer['status']} Scripted\r\n{lines}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode("latin-1") + body)
        await writer.drain()
        return True


@asynccontextmanager
async def model_server(*turns: Turn) -> AsyncIterator[ModelServer]:
    """Serve turns on a free port.

    Yields:
        The server; when the block ends, so do its connections.
    """
    provider = ModelServer(turns)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield provider
    finally:
        server.close()
        await provider.close()
        await server.wait_closed()


def _event(each: dict[str, object]) -> bytes:
    if "_raw" in each:
        raw = each["_raw"]
        return raw if isinstance(raw, bytes) else str(raw).encode()
    if "_done" in each:
        return b"data: [DONE]\n\n"
    return b"data: " + json.dumps(each, separators=(",", ":")).encode() + b"\n\n"
