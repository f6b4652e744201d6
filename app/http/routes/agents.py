"""Agents: definitions with versions."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.core.records import Agent
from app.core.specs import AgentSpec
from app.http.dependencies import (
    CurrentCaller,
    Cursor,
    EngineParts,
    Idempotency,
    IfMatch,
    Limit,
    checked,
    etag_of,
)
from app.http.schemas import List

router = APIRouter(prefix="/v1/agents", tags=["agents"])


@router.post("", status_code=201)
async def create(
    spec: AgentSpec,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    once: Idempotency,
) -> Agent:
    """Define an agent, as version 1."""
    await checked(engine, spec)
    made = await engine.agents.create(caller.tenant, engine.new_id("agt"), spec, once=once)
    response.headers["Location"] = f"/v1/agents/{made.value.id}"
    response.headers.update(etag_of(made.value))
    if made.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return made.value


@router.get("")
async def page(
    engine: EngineParts, caller: CurrentCaller, limit: Limit = 50, cursor: Cursor = None
) -> List[Agent]:
    """List agents, newest first, each in its newest version."""
    found = await engine.agents.page(caller.tenant, limit=limit, cursor=cursor)
    return List(data=list(found.data), next_cursor=found.next_cursor)


@router.get("/{agent_id}")
async def get(
    agent_id: str,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Agent:
    """Return an agent, in its newest version unless another is asked for."""
    agent = await engine.agents.get(caller.tenant, agent_id, version=version)
    response.headers.update(etag_of(agent))
    return agent


@router.put("/{agent_id}")
async def replace(
    agent_id: str,
    spec: AgentSpec,
    response: Response,
    engine: EngineParts,
    caller: CurrentCaller,
    if_match: IfMatch,
) -> Agent:
    """Make a new version; sessions that are pinned to another keep theirs."""
    await checked(engine, spec)
    agent = await engine.agents.replace(caller.tenant, agent_id, spec, if_version=if_match)
    response.headers.update(etag_of(agent))
    return agent


@router.delete("/{agent_id}", status_code=204)
async def delete(agent_id: str, engine: EngineParts, caller: CurrentCaller) -> None:
    """Take an agent out of lists and new sessions; sessions that have it go on."""
    await engine.agents.delete(caller.tenant, agent_id)


@router.get("/{agent_id}/versions")
async def versions(
    agent_id: str,
    engine: EngineParts,
    caller: CurrentCaller,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> List[Agent]:
    """List an agent's versions, newest first."""
    found = await engine.agents.versions(caller.tenant, agent_id, limit=limit, cursor=cursor)
    return List(data=list(found.data), next_cursor=found.next_cursor)
