"""Tails a log into a response: server-sent events that every client can read and resume."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

import anyio
from sse_starlette import EventSourceResponse

from app.core.errors import Unavailable
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
HEARTBEAT_SECONDS = 10
SEND_TIMEOUT_SECONDS = 30
"""A reader that takes nothing for so long is let go; it comes back with its cursor."""
SHUTDOWN_SECONDS = 1


def stream(
    entries: AsyncIterator[Sequence[LogEntry]], *, headers: Mapping[str, str] | None = None
) -> EventSourceResponse:
    """Answer with events as they come.

    Lines end with LF alone, because AG-UI clients split frames at two LFs only. When the log cannot be
    read for a while the stream ends with a comment, and its reader comes back with its cursor.
    """
    response = EventSourceResponse(
        _frames(entries),
        headers={**HEADERS, **(headers or {})},
        sep="\n",
        ping=HEARTBEAT_SECONDS,
        send_timeout=SEND_TIMEOUT_SECONDS,
        # Told to stop, the log lets its readers go; a moment for that, and they are cut off.
        shutdown_event=anyio.Event(),
        shutdown_grace_period=SHUTDOWN_SECONDS,
    )
    # Hop by hop, and illegal in HTTP/2.
    del response.headers["Connection"]
    return response


async def _frames(entries: AsyncIterator[Sequence[LogEntry]]) -> AsyncGenerator[bytes, None]:
    yield RETRY
    try:
        async for batch in entries:
            yield b"".join(b"id: %d\ndata: %b\n\n" % (entry.seq, entry.wire()) for entry in batch)
    except Unavailable:
        yield AWAY
