"""Replies: what became of each message, and how to stop one."""

from datetime import timedelta

from fastapi import APIRouter

from app.core.records import Reply
from app.http.dependencies import CurrentCaller, Cursor, EngineParts, Limit
from app.http.schemas import Interruption, List

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["replies"])

INTERRUPT_PATIENCE = timedelta(seconds=2)


@router.get("/replies")
async def page(
    session_id: str,
    engine: EngineParts,
    caller: CurrentCaller,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> List[Reply]:
    """List a session's replies, newest first."""
    found = await engine.reply_store.page(caller.tenant, session_id, limit=limit, cursor=cursor)
    return List(data=list(found.data), next_cursor=found.next_cursor)


@router.get("/replies/{reply_id}")
async def get(session_id: str, reply_id: str, engine: EngineParts, caller: CurrentCaller) -> Reply:
    """Return a reply: status, times, why it ended, what it cost."""
    return await engine.reply_store.get(caller.tenant, session_id, reply_id)


@router.post("/interrupt")
async def interrupt(session_id: str, engine: EngineParts, caller: CurrentCaller) -> Interruption:
    """Stop the reply that is being written, or that comes next; harmless when repeated.

    `interrupted`: it has ended. `interrupting`: it has been told to, and will. `idle`: there was none.
    What it had said stays.
    """
    stopping = await engine.replies.interrupt(
        caller.tenant, session_id, patience=INTERRUPT_PATIENCE
    )
    if stopping.reply_id is None:
        return Interruption(status="idle")
    status = "interrupted" if stopping.ended else "interrupting"
    return Interruption(status=status, reply_id=stopping.reply_id)
