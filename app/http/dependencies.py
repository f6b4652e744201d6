"""What routes are given: the engine's parts, and the parts of a request that many of them read."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, TypeAlias, cast

from fastapi import Depends, Header, Query, Request

from app.core.errors import Invalid
from app.core.records import Agent
from app.core.specs import AgentSpec
from app.engine.event_log import Logs
from app.engine.ids import NewId
from app.engine.replies import Replies
from app.engine.wakeups import Wakeups
from app.http.accept import EVENTS, JSON, preferred
from app.http.auth import EVERYONE, Caller
from app.ports.models import ToolSchema
from app.ports.stores import Agents, Once, Sessions
from app.ports.stores import Replies as RepliesStore

LONGEST_WAIT = timedelta(minutes=5)


@dataclass(frozen=True)
class Engine:
    """What the routes speak to; bootstrap puts it together.

    Attributes:
        agents: Agents and their versions.
        sessions: Sessions, states and history.
        reply_store: Replies as they are kept.
        replies: Submits, waits and interrupts.
        logs: Events.
        wakeups: Who waits for what.
        tools: Built-in groups of tools, by name.
        check: Says what of a definition this installation cannot run, by JSON pointer.
        is_ready: Whether requests can be served.
        ending: Set when the process is told to stop: replies are given back, waits end.
        new_id: Makes ids.
    """

    agents: Agents
    sessions: Sessions
    reply_store: RepliesStore
    replies: Replies
    logs: Logs
    wakeups: Wakeups
    tools: Mapping[str, Sequence[ToolSchema]]
    check: Callable[[AgentSpec], Awaitable[list[tuple[str, str]]]]
    is_ready: Callable[[], Awaitable[bool]]
    ending: asyncio.Event
    new_id: NewId


# All of these are async, because FastAPI sends plain functions through a pool of threads.
async def _engine(request: Request) -> Engine:
    return cast("Engine", request.app.state.engine)


async def _caller() -> Caller:
    return EVERYONE


async def _once(
    request: Request,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="Makes a repeated request harmless: the same key and body give the first "
            "answer again, with `Idempotency-Replayed: true`. Kept for two days.",
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]+$",
        ),
    ] = None,
) -> Once | None:
    if key is None:
        return None
    scope = f"{request.method} {request.scope['path']}"
    body = hashlib.sha256(await request.body()).digest()
    return Once(key=key, scope=scope, fingerprint=body)


async def _if_match(
    etag: Annotated[
        str | None,
        Header(alias="If-Match", description='The version that you read, such as `"3"`.'),
    ] = None,
) -> int | None:
    if etag is None or etag.strip() == "*":
        return None
    version = etag.strip().removeprefix("W/").strip('"')
    if not version.isdecimal() or len(version) > 18:  # noqa: PLR2004 - what a bigint holds
        raise Invalid(
            "If-Match must be the ETag that you were given.",
            errors=[("/header/If-Match", 'a version in quotes, such as "3"')],
        )
    return int(version)


async def _patience(
    prefer: Annotated[
        str | None,
        Header(alias="Prefer", description="`wait=N`: wait up to N seconds (at most 300)."),
    ] = None,
) -> timedelta | None:
    for part in (prefer or "").replace(";", ",").split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isdecimal():
            return min(timedelta(seconds=min(int(value.strip()[:6]), 86_400)), LONGEST_WAIT)
    return None


EngineParts: TypeAlias = Annotated[Engine, Depends(_engine)]
CurrentCaller: TypeAlias = Annotated[Caller, Depends(_caller)]
Idempotency: TypeAlias = Annotated[Once | None, Depends(_once)]
IfMatch: TypeAlias = Annotated[int | None, Depends(_if_match)]
Patience: TypeAlias = Annotated[timedelta | None, Depends(_patience)]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=200, description="Most items of the page.")]
Cursor: TypeAlias = Annotated[
    str | None,
    Query(max_length=512, description="`next_cursor` of the page before."),
]


def wants_events(request: Request, *, default: bool) -> bool:
    """Tell whether a client would rather have a stream than JSON.

    Args:
        request: The request.
        default: The answer when it does not care.
    """
    offers = (EVENTS, JSON) if default else (JSON, EVENTS)
    return preferred(request.headers.getlist("accept"), offers) == EVENTS


async def checked(engine: Engine, spec: AgentSpec) -> AgentSpec:
    """Return a definition that this installation can run.

    Raises:
        Invalid: It names a model or tools that are not there.
    """
    if problems := await engine.check(spec):
        raise Invalid("This installation cannot run the agent.", errors=problems)
    return spec


def etag_of(agent: Agent) -> dict[str, str]:
    """Return the ETag header of an agent's version."""
    return {"ETag": f'"{agent.version}"'}
