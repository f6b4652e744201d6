"""Sessions: conversations with one agent each."""

from datetime import datetime
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Response

from app.core.errors import Invalid
from app.core.records import Session, SessionStatus
from app.core.repair import repair
from app.core.values import JsonObject
from app.http.dependencies import (
    CurrentCaller,
    Cursor,
    EngineParts,
    Idempotency,
    Limit,
)
from app.http.schemas import List, NewSession, SessionChange
from app.ports import stores

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("", status_code=201)
async def create(
    new: NewSession,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
) -> Session:
    """Begin a session."""
    if new.state is not None:
        repair(new.state)
    beginning = stores.NewSession(
        agent_id=new.agent_id,
        follow_agent=new.agent_version == "follow",
        title=new.title,
        metadata=new.metadata,
        user_id=new.user_id,
        environment=dict(new.environment),
        state=new.state,
    )
    made = await engine.sessions.create(caller.tenant, engine.new_id("ses"), beginning, once=once)
    response.headers["Location"] = f"/v1/sessions/{made.value.id}"
    if made.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return made.value


@router.get("")
async def page(
    engine: EngineParts,
    caller: CurrentCaller,
    limit: Limit = 50,
    cursor: Cursor = None,
    agent_id: Annotated[str | None, Query(max_length=128)] = None,
    user_id: Annotated[str | None, Query(max_length=128)] = None,
    status: SessionStatus | None = None,
    metadata: Annotated[
        str | None,
        Query(max_length=4096, description="A JSON object that the metadata must contain."),
    ] = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
) -> List[Session]:
    """List sessions, newest first."""
    which = stores.SessionFilter(
        agent_id=agent_id,
        user_id=user_id,
        status=status,
        metadata=None if metadata is None else _contained(metadata),
        created_after=_aware("created_after", created_after),
        created_before=_aware("created_before", created_before),
    )
    found = await engine.sessions.page(caller.tenant, which, limit=limit, cursor=cursor)
    return List(data=list(found.data), next_cursor=found.next_cursor)


@router.get("/{session_id}")
async def get(session_id: str, engine: EngineParts, caller: CurrentCaller) -> Session:
    """Return a snapshot: what the session does, how far its log is, what it cost."""
    return await engine.sessions.get(caller.tenant, session_id)


@router.patch("/{session_id}")
async def change(
    session_id: str, change: SessionChange, engine: EngineParts, caller: CurrentCaller
) -> Session:
    """Change a session's title or metadata."""
    wanted = stores.SessionChange(title=change.title, metadata=change.metadata)
    return await engine.sessions.change(caller.tenant, session_id, wanted)


@router.delete("/{session_id}", status_code=204)
async def delete(session_id: str, engine: EngineParts, caller: CurrentCaller) -> None:
    """Delete a session with everything in it; a reply that is being written stops."""
    await engine.sessions.delete(caller.tenant, session_id)
    engine.wakeups.grown(session_id)


def _contained(text: str) -> JsonObject:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _no_object() from error
    if not isinstance(value, dict) or "\\u0000" in text:
        raise _no_object()
    return value  # pyright: ignore[reportUnknownVariableType] - it was read from JSON


def _no_object() -> Invalid:
    return Invalid(
        "The filter is not valid.",
        errors=[("/query/metadata", 'a JSON object, such as {"project":"x"}')],
    )


def _aware(name: str, moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise Invalid(
            "The filter is not valid.",
            errors=[(f"/query/{name}", "a time with its offset, such as 2026-07-01T12:00:00Z")],
        )
    return moment
