"""Sessions: conversations with one agent each."""

from datetime import UTC, datetime
from typing import Annotated, NoReturn

from fastapi import APIRouter, Query, Response

from app.core.errors import Invalid
from app.core.records import Session, SessionStatus
from app.core.repair import repair
from app.core.sanitise import read_json
from app.core.values import JsonObject
from app.http.dependencies import (
    CurrentCaller,
    Cursor,
    EngineParts,
    Idempotency,
    Limit,
)
from app.http.schemas import (
    Fork,
    List,
    NewSession,
    SessionChange,
    check_environment,
    read_state,
)
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
    check_environment(new.environment, at="/environment")
    state = None if new.state is None else read_state(new.state, at=["state"])
    if state is not None:
        repair(state)
    beginning = stores.NewSession(
        agent_id=new.agent_id,
        follow_agent=new.agent_version == "follow",
        title=new.title,
        metadata=new.metadata,
        user_id=new.user_id,
        environment=dict(new.environment),
        state=state,
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


@router.post("/{session_id}/fork", status_code=201)
async def fork(
    session_id: str,
    copy: Fork,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
) -> Session:
    """Begin a session with the conversation of this one, up to a message or whole.

    The agent and its version, the live values and the plan are those of now. A reply that is being
    written is copied as far as its finished steps; calls without a result get an `interrupted` one. The
    session that is copied is not disturbed.
    """
    wanted = stores.Copy(copy.through_message_id, copy.title, copy.metadata)
    made = await engine.sessions.fork(
        caller.tenant, session_id, engine.new_id("ses"), wanted, once=once
    )
    response.headers["Location"] = f"/v1/sessions/{made.value.id}"
    if made.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return made.value


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
    engine.wakeups.deleted(session_id)


def _contained(text: str) -> JsonObject:
    try:
        value = read_json(text.encode())
    except (Invalid, UnicodeEncodeError):
        value = None
    if not isinstance(value, dict):
        _refuse("metadata", 'a JSON object, such as {"project":"x"}')
    return value


def _aware(name: str, moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        _refuse(name, "a time with its offset, such as 2026-07-01T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        _refuse(name, "a time between the years 1 and 9999 in UTC")


def _refuse(name: str, wanted: str) -> NoReturn:
    raise Invalid("The filter is not valid.", errors=[(f"/query/{name}", wanted)])
