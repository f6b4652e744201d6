"""Events: a session's log, as a stream that can be resumed or as pages."""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from app.core.errors import Invalid
from app.core.records import LogEntry
from app.http.dependencies import CurrentCaller, EngineParts, Limit, wants_events
from app.http.schemas import EventPage
from app.http.sse import DESCRIBED, stream

router = APIRouter(prefix="/v1/sessions/{session_id}/events", tags=["events"])

MOST = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}")


@router.get(
    "",
    response_model=EventPage,
    responses={
        200: {"description": "The log, as a stream or as a page.", "content": DESCRIBED},
        409: {"description": "The cursor is beyond the end of the log."},
        410: {"description": "Events behind the cursor are no longer kept."},
    },
)
async def read(
    session_id: str,
    request: Request,
    engine: EngineParts,
    caller: CurrentCaller,
    after: Annotated[
        int | None, Query(ge=0, le=MOST, description="The number of the last event you have.")
    ] = None,
    follow: Annotated[bool, Query(description="Wait at the end of the log.")] = True,
    limit: Limit = 50,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """Read the log behind a number; live and late readers get the same events in the same order.

    A stream unless `Accept: application/json` is asked for. `Last-Event-ID` wins over `after`, because
    a browser that reconnects sends its first address again.
    """
    cursor = _number(last_event_id) if last_event_id else after
    oldest, newest = await engine.logs.bounds(caller.tenant, session_id)
    if cursor is None:
        cursor = oldest - 1
    else:
        newest = await engine.logs.check_cursor(caller.tenant, session_id, cursor)
    if not wants_events(request, default=True):
        entries = await engine.logs.page(session_id, after=cursor, limit=limit)
        return _page(entries, after=cursor, newest=newest)
    return stream(engine.logs.tail(session_id, after=cursor, follow=follow))


def _page(entries: Sequence[LogEntry], *, after: int, newest: int) -> Response:
    """Put a page together from events that are encoded already."""
    end = entries[-1].seq if entries else after
    newest = max(newest, end)
    data = b",".join(entry.wire() for entry in entries)
    cursor = b'"%d"' % end if end < newest else b"null"
    return Response(
        b'{"data":[%b],"next_cursor":%b,"last_seq":%d}' % (data, cursor, newest),
        media_type="application/json",
    )


def _number(text: str) -> int:
    if _DIGITS.fullmatch(text) is None or int(text) > MOST:
        raise Invalid(
            "The header Last-Event-ID is not valid.",
            errors=[("/header/Last-Event-ID", "the number of the last event you have")],
        )
    return int(text)
