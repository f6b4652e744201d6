"""Messages: what people send, and the whole history."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from app.core.messages import Msg
from app.core.records import Accepted
from app.engine.replies import Said
from app.http.dependencies import (
    CurrentCaller,
    Cursor,
    EngineParts,
    Idempotency,
    Limit,
    Patience,
    wants_events,
)
from app.http.schemas import List, NewMessage
from app.http.sse import DESCRIBED, stream

router = APIRouter(prefix="/v1/sessions/{session_id}/messages", tags=["messages"])


@router.post(
    "",
    status_code=202,
    response_model=Accepted,
    responses={
        200: {
            "description": "The events of the reply as a stream (`Accept: text/event-stream`), or its "
            "final message (`Prefer: wait=N`).",
            "model": Msg,
            "content": DESCRIBED,
        },
        409: {"description": "A reply is being written, and `on_busy` is `reject`."},
    },
)
async def send(
    session_id: str,
    message: NewMessage,
    request: Request,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
    patience: Patience,
) -> Response:
    """Send a message.

    It is answered whether or not you wait: a client that goes away cancels nothing.

    - `Accept: application/json`: 202 as soon as it is committed. With `Prefer: wait=N` the final
      message, or the 202 when the time is up or the reply waits for somebody.
    - `Accept: text/event-stream`: the events of the reply, until its `REPLY_END` or until it waits for
      somebody.

    While a reply is being written or waits, `on_busy` says what happens. A message that steers has the
    `reply_id` of the reply that it joins; if none is there to be joined, it is answered in its turn.
    """
    said = Said(
        name=message.name,
        content=message.blocks,
        on_busy=message.on_busy,
        context=message.context,
        max_iters=message.max_iters,
    )
    made = await engine.replies.submit(caller.tenant, session_id, said, once=once)
    accepted = made.value
    headers = {"Location": f"/v1/sessions/{session_id}/replies/{accepted.reply_id}"}
    if made.replayed:
        headers["Idempotency-Replayed"] = "true"
    if wants_events(request, default=False):
        entries = engine.replies.follow(session_id, accepted)
        return stream(entries, headers=headers, of_one_reply=True)
    if patience is not None:
        final = await engine.replies.wait(caller.tenant, session_id, accepted, patience=patience)
        if final is not None:
            headers["Preference-Applied"] = f"wait={int(patience.total_seconds())}"
            return JSONResponse(final.model_dump(mode="json"), 200, headers)
        reply = await engine.reply_store.get(caller.tenant, session_id, accepted.reply_id)
        accepted = accepted.model_copy(update={"status": reply.status})
    return JSONResponse(accepted.model_dump(mode="json"), 202, headers)


@router.get("")
async def page(
    session_id: str,
    engine: EngineParts,
    caller: CurrentCaller,
    limit: Limit = 50,
    cursor: Cursor = None,
    order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "asc",
) -> List[Msg]:
    """Page through the whole history; a reply that is being written shows its finished steps."""
    found = await engine.sessions.messages(
        caller.tenant, session_id, limit=limit, cursor=cursor, newest_first=order == "desc"
    )
    return List(data=list(found.data), next_cursor=found.next_cursor)
