"""Events: a session's log, as a stream that can be resumed or as pages."""

from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from app.core.errors import Invalid
from app.http.dependencies import CurrentCaller, EngineParts, Limit
from app.http.schemas import EventPage
from app.http.sse import stream

router = APIRouter(prefix="/v1/sessions/{session_id}/events", tags=["events"])

MOST = 2**63 - 1


@router.get(
    "",
    response_model=EventPage,
    responses={
        200: {"content": {"text/event-stream": {}}},
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
    cursor = after if last_event_id is None else _number(last_event_id)
    oldest, newest = await engine.logs.bounds(caller.tenant, session_id)
    if cursor is None:
        cursor = oldest - 1
    else:
        newest = await engine.logs.check_cursor(caller.tenant, session_id, cursor)
    if "application/json" in request.headers.get("accept", ""):
        entries = await engine.logs.page(session_id, after=cursor, limit=limit)
        end = entries[-1].seq if entries else cursor
        page = EventPage(
            data=[orjson.loads(entry.wire()) for entry in entries],
            next_cursor=str(end) if end < newest else None,
            last_seq=newest,
        )
        return JSONResponse(page.model_dump(mode="json"))
    return stream(engine.logs.tail(session_id, after=cursor, follow=follow))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) > MOST:
        raise Invalid(
            "The header Last-Event-ID is not valid.",
            errors=[("/header/Last-Event-ID", "the number of the last event you have")],
        )
    return int(text)
