"""Tails a log into a response: server-sent events that every client can read and resume."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.core.errors import CursorGone, Unavailable
from app.core.records import LogEntry

HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
DESCRIBED = {
    "text/event-stream": {
        "schema": {
            "type": "string",
            "description": "Frames of `id:` (the event's number) and `data:` (the event), no `event:`; "
            "comments while nothing happens.",
        }
    }
}
"""A stream in the OpenAPI document."""
RETRY = b"retry: 1000\n\n"
AWAY = b": the log is out of reach; come back with your cursor\n\n"
HEARTBEAT = b": nothing new\n\n"
HEARTBEAT_SECONDS = 10
SEND_TIMEOUT_SECONDS = 30
"""A reader that takes nothing for so long is let go; it comes back with its cursor."""
END = "REPLY_END"


def stream(
    entries: AsyncGenerator[Sequence[LogEntry], None],
    *,
    headers: Mapping[str, str] | None = None,
    of_one_reply: bool = False,
) -> Response:
    """Answer with events as they come.

    Lines end with LF alone, because AG-UI clients split frames at two LFs only. When the log cannot be
    read for a while, or what comes next is no longer kept, the stream ends with a comment, and its
    reader comes back with its cursor.

    Args:
        entries: Events, at least one at a time. Closed when the stream ends or its reader leaves.
        headers: More headers.
        of_one_reply: The first events are there already, and the last is the reply's end. Both then
            go out together with what frames the stream.
    """
    return _EventStream(entries, headers=headers, of_one_reply=of_one_reply)


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        entries: AsyncGenerator[Sequence[LogEntry], None],
        *,
        headers: Mapping[str, str] | None,
        of_one_reply: bool,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, **(headers or {})})
        self._entries = entries
        self._of_one_reply = of_one_reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Stream until the log ends or the reader has left, which is no error of anybody's."""
        reader = _Reader(receive, send)
        async with aclosing(self._entries):
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._tell_while_it_stays(reader)

    async def _tell_while_it_stays(self, reader: "_Reader") -> None:
        stay = asyncio.timeout(None)
        try:
            async with stay:
                attending = asyncio.create_task(reader.attend(stay))
                try:
                    await self._tell(reader)
                finally:
                    attending.cancel()
        except TimeoutError:
            if not stay.expired():
                raise

    async def _tell(self, reader: "_Reader") -> None:
        opening = RETRY
        if not self._of_one_reply:
            await reader.take(RETRY)
            opening = b""
        try:
            async for batch in self._entries:
                frames = [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.wire()) for entry in batch]
                is_last = self._of_one_reply and batch[-1].type == END
                await reader.take(b"".join((opening, *frames)), more=not is_last)
                if is_last:
                    return
                opening = b""
        except (Unavailable, CursorGone):
            opening += AWAY
        await reader.take(opening, more=False)


class _Reader:
    """Whoever reads a stream: takes it, or has left."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._now = asyncio.get_running_loop().time
        self._is_taking = False
        self._since = self._now()
        """When it began to take, or when it had taken everything."""

    async def take(self, body: bytes, *, more: bool = True) -> None:
        """Send something; waits as long as the reader is behind."""
        self._is_taking, self._since = True, self._now()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._is_taking, self._since = False, self._now()

    async def attend(self, stay: asyncio.Timeout) -> None:
        """Fill silence with comments until the reader goes away or takes nothing; then end its stay."""
        with suppress(TimeoutError):
            while not await self._is_gone():
                if self._now() < self._due:  # something was sent meanwhile
                    continue
                if self._is_taking:
                    break
                async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                    await self.take(HEARTBEAT)
        stay.reschedule(0)

    async def _is_gone(self) -> bool:
        """Wait for the reader to go away; False when something is due before."""
        try:
            async with asyncio.timeout_at(self._due):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return False
        return True

    @property
    def _due(self) -> float:
        return self._since + (SEND_TIMEOUT_SECONDS if self._is_taking else HEARTBEAT_SECONDS)
