"""State: what the agent of a session knows, as one document and in its parts."""

from fastapi import APIRouter, Response

from app.core.records import Environment as Values
from app.core.repair import repair
from app.core.state import AgentState, TasksContext
from app.http.dependencies import CurrentCaller, EngineParts, IfMatch
from app.http.schemas import Environment, StateDocument, check_environment, read_state

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["state"])


@router.get("/state")
async def get(
    session_id: str, response: Response, engine: EngineParts, caller: CurrentCaller
) -> AgentState:
    """Return the whole `AgentState`, as of the last finished step; AgentScope 2.0 reads it."""
    state, version = await engine.sessions.state(caller.tenant, session_id)
    response.headers["ETag"] = f'"{version}"'
    return state


@router.put("/state")
async def replace(
    session_id: str,
    document: StateDocument,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    if_match: IfMatch,
) -> AgentState:
    """Import a whole `AgentState`, only while the session is idle; AgentScope 2.0's load here.

    Calls without a result and results without a call are mended, so that a model takes the
    conversation. Fields that are not known here are ignored.
    """
    state = read_state(document)
    repair(state)
    version = await engine.sessions.import_state(
        caller.tenant, session_id, state, if_version=if_match
    )
    engine.wakeups.grown(session_id)
    response.headers["ETag"] = f'"{version}"'
    return state


@router.get("/tasks")
async def tasks(session_id: str, engine: EngineParts, caller: CurrentCaller) -> TasksContext:
    """Return what the agent plans."""
    state, _ = await engine.sessions.state(caller.tenant, session_id)
    return state.tasks_context


@router.get("/environment")
async def environment(session_id: str, engine: EngineParts, caller: CurrentCaller) -> Values:
    """Return the live values of the agent's surroundings."""
    return await engine.sessions.environment(caller.tenant, session_id)


@router.put("/environment")
async def change_environment(
    session_id: str, values: Environment, engine: EngineParts, caller: CurrentCaller
) -> Values:
    """Replace the live values; null removes one.

    They ride along with every injection. Those that the agent names in `injection.trigger_fields`
    cause one by themselves, at the next reasoning step after they change.
    """
    kept = {name: value for name, value in values.items() if value is not None}
    check_environment(kept, at="")
    stored = await engine.sessions.change_environment(caller.tenant, session_id, dict(kept))
    engine.wakeups.grown(session_id)
    return stored
