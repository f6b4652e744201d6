"""The only place that knows which adapter fills which port."""

import asyncio
import ipaddress
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import certifi
import structlog
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from app.adapters.models.fallback import FallbackModel
from app.adapters.models.openai import OpenAIModel
from app.adapters.models.retrying import RetryingModel
from app.adapters.models.scripted import ScriptedModel
from app.adapters.postgres.agents import PostgresAgents
from app.adapters.postgres.database import Database
from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.event_log import PostgresEventLog
from app.adapters.postgres.leases import PostgresLeases
from app.adapters.postgres.listen import PostgresCarrier
from app.adapters.postgres.migrating import migrate
from app.adapters.postgres.once import forget_old_keys
from app.adapters.postgres.replies import PostgresReplies
from app.adapters.postgres.sessions import PostgresSessions
from app.adapters.signals import Carrier, CoalescedSignals
from app.adapters.tools.tasks import task_tools
from app.config import Settings
from app.core.records import Agent
from app.core.specs import AgentSpec, ModelSpec, fitting_context
from app.core.values import JsonObject
from app.engine.equipment import Equipment
from app.engine.event_log import Logs
from app.engine.ids import new_id, utc_now
from app.engine.replies import Replies
from app.engine.wakeups import Wakeups
from app.engine.worker import Worker
from app.http.dependencies import Engine
from app.ports.models import ChatModel, ToolSchema
from app.ports.tools import Tool

log = structlog.get_logger()

OPENAI_URL = "https://api.openai.com/v1"
NOT_YET = "this release cannot do that yet; leave it out"
NOT_PUBLIC = "not a public address; the operator allows others with BEARINGS_EGRESS_ALLOW"
FORGET_EVERY = timedelta(hours=1)
PRUNE_EVERY = timedelta(minutes=10)


def check_settings(settings: Settings) -> None:
    """Make sure that what an operator set can be run.

    Raises:
        ValueError: It cannot; the text says what to do.
    """
    if settings.model.partition(":")[0] not in _PROVIDERS:
        known = ", ".join(sorted(_PROVIDERS))
        raise ValueError(f"BEARINGS_MODEL: no such provider; there are: {known}")


@asynccontextmanager
async def database(settings: Settings) -> AsyncGenerator[Database, None]:
    """Reach the database: the operator's, or one of our own.

    Yields:
        The database, not migrated yet.
    """
    embedded = None if settings.database_url else EmbeddedPostgres(settings.data_dir)
    url = settings.database_url or (await embedded.start() if embedded else "")
    reached = Database(url, pool_size=settings.database_pool, pooler=settings.database_pooler)
    try:
        yield reached
    finally:
        await reached.close()
        if embedded is not None:
            await embedded.stop()


@asynccontextmanager
async def engine(settings: Settings) -> AsyncGenerator[Engine, None]:
    """Put everything together, run it, and take it apart again.

    On the way out no session is taken any more, those held are given back behind their next step, and
    whoever else is there goes on with them at once.

    Yields:
        What the routes speak to.
    """
    async with database(settings) as reached, _model_client() as client:
        await migrate(reached)
        event_log = PostgresEventLog(reached)
        wakeups = Wakeups(event_log)
        signals = CoalescedSignals(
            _carrier(settings, reached), name=new_id("node"), on_signal=wakeups.heard
        )
        wakeups.join(signals)
        logs = Logs(event_log, wakeups)
        leases = PostgresLeases(reached)
        store = PostgresReplies(reached, leases)
        workshop = Workshop(settings, client)
        worker = Worker(
            leases,
            wakeups,
            workshop.equip,
            clock=utc_now,
            new_id=new_id,
            lease_ttl=settings.lease_time,
            capacity=settings.capacity,
        )
        ending = asyncio.Event()

        async def is_ready() -> bool:
            return not ending.is_set() and await reached.is_reachable()

        parts = Engine(
            agents=PostgresAgents(reached),
            sessions=PostgresSessions(reached),
            reply_store=store,
            replies=Replies(store, logs, wakeups, clock=utc_now, new_id=new_id, worker=worker),
            logs=logs,
            wakeups=wakeups,
            tools={
                name: [tool.schema for tool in group] for name, group in workshop.groups.items()
            },
            check=workshop.check,
            is_ready=is_ready,
            ending=ending,
            new_id=new_id,
        )
        chores = [
            asyncio.create_task(wakeups.poll()),
            asyncio.create_task(_again(FORGET_EVERY, lambda: forget_old_keys(reached))),
        ]
        if (age := settings.event_age) is not None:
            prune = asyncio.create_task(_again(PRUNE_EVERY, lambda: event_log.prune(age)))
            chores.append(prune)

        async def drain() -> None:
            await ending.wait()
            wakeups.close()
            await worker.stop(settings.grace)

        await signals.start()
        await worker.start()
        draining = asyncio.create_task(drain())
        try:
            yield parts
        finally:
            ending.set()
            await draining
            await signals.stop()
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)


def _carrier(settings: Settings, reached: Database) -> Carrier:
    """Choose what takes wake-ups to the other replicas."""
    if settings.wakeups_url is None:
        return PostgresCarrier(reached)
    # The one import that waits: most installations have no Redis, and its library takes 80 ms of the
    # start and 6 MB.
    from app.adapters.redis.pubsub import RedisCarrier  # noqa: PLC0415

    return RedisCarrier(settings.wakeups_url.get_secret_value())


class Workshop:
    """Puts an agent's model and tools together, and says what of a definition is not there."""

    def __init__(self, settings: Settings, client: aiohttp.ClientSession) -> None:
        self._settings, self._client = settings, client
        self.groups: dict[str, list[Tool]] = {"tasks": list(task_tools())}
        self._ready: dict[tuple[str, int], Equipment] = {}

    def equip(self, agent: Agent) -> Equipment:
        """Return what an agent works with; the same for every reply of a version."""
        known = self._ready.get((agent.id, agent.version))
        if known is None:
            known = self._ready[agent.id, agent.version] = self._equip(agent)
            if len(self._ready) > 1000:  # noqa: PLR2004 - enough for a busy process
                self._ready.pop(next(iter(self._ready)))
        return known

    def _equip(self, agent: Agent) -> Equipment:
        tools = [tool for group in agent.tools.builtin for tool in self.groups.get(group, [])]
        model = self._retried(agent.model, agent.model_retries)
        if agent.fallback_model is not None:
            model = FallbackModel(model, self._retried(agent.fallback_model, agent.model_retries))
        return Equipment(
            name=agent.name,
            system_prompt=agent.system_prompt,
            model=model,
            tools={tool.schema.name: tool for tool in tools},
            injection=agent.injection,
            context=fitting_context(agent.context, agent.injection),
            max_iters=agent.react.max_iters,
            external={
                tool.name: ToolSchema(tool.name, tool.description, tool.parameters)
                for tool in agent.tools.external
            },
            asks={name: agent.decisions(name) for name in agent.interrupt_on},
        )

    async def check(self, spec: AgentSpec) -> list[tuple[str, str]]:
        """Say what this installation cannot run, by JSON pointer."""
        problems = [
            (
                f"/tools/builtin/{at}",
                f"no such group of tools; there are: {', '.join(sorted(self.groups))}",
            )
            for at, name in enumerate(spec.tools.builtin)
            if name not in self.groups
        ]
        problems += self._check_tools(spec)
        if spec.context.compression_tool_enabled:
            problems.append(("/context/compression_tool_enabled", NOT_YET))
        if spec.react.stop_on_reject:
            problems.append(("/react/stop_on_reject", NOT_YET))
        for field in ("model", "fallback_model"):
            model = cast("ModelSpec | None", getattr(spec, field))
            if model is None:
                continue
            if model.provider not in _PROVIDERS:
                known = ", ".join(sorted(_PROVIDERS))
                problems.append((f"/{field}/provider", f"no such provider; there are: {known}"))
            if model.base_url is not None and not await self._may_reach(model.base_url):
                problems.append((f"/{field}/base_url", NOT_PUBLIC))
        return problems

    def _check_tools(self, spec: AgentSpec) -> list[tuple[str, str]]:
        """Say which tools cannot be called, or are asked about and not there."""
        problems: list[tuple[str, str]] = []
        names = {
            tool.schema.name for group in spec.tools.builtin for tool in self.groups.get(group, [])
        }
        for at, tool in enumerate(spec.tools.external):
            if tool.name in names:
                problems.append((f"/tools/external/{at}/name", "another tool has this name"))
            names.add(tool.name)
            if wrong := _not_a_schema(tool.parameters):
                problems.append((f"/tools/external/{at}/parameters", wrong))
        problems += [
            (f"/interrupt_on/{name}", "the agent has no tool of this name")
            for name in spec.interrupt_on
            if name not in names
        ]
        return problems

    def _retried(self, spec: ModelSpec | None, retries: int) -> ChatModel:
        model = _PROVIDERS[spec.provider if spec else self._default.provider](self, spec)
        if not retries:
            return model
        return RetryingModel(model, retries=retries, random=_random, sleep=asyncio.sleep)

    @property
    def _default(self) -> ModelSpec:
        provider, _, name = self._settings.model.partition(":")
        return ModelSpec(provider=provider, name=name)

    def scripted(self, spec: ModelSpec | None) -> ChatModel:
        """Return the model that is none."""
        return ScriptedModel((spec or self._default).name)

    def openai(self, spec: ModelSpec | None) -> ChatModel:
        """Return a model behind the chat-completions protocol.

        The operator's key goes to the operator's address alone: an address in a definition is its
        author's.
        """
        settings = self._settings
        own = settings.model_base_url or OPENAI_URL
        base_url = spec.base_url if spec and spec.base_url else own
        key = settings.model_api_key if base_url == own else None
        return OpenAIModel(
            spec or self._default,
            client=self._client,
            base_url=base_url,
            api_key=key.get_secret_value() if key else None,
            proxy=_proxy_to(base_url),
        )

    async def _may_reach(self, url: str) -> bool:
        """Tell whether an address from a definition leads to public places, or where it may."""
        if url == self._settings.model_base_url:
            return True
        try:
            parts = urlsplit(url)
            found = await asyncio.get_running_loop().getaddrinfo(
                parts.hostname or "", parts.port or 443, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError, ValueError):
            return False
        allowed = self._settings.egress_allow
        return all(
            all(address.is_global for address in _addresses(str(each[4][0])))
            or any(
                ipaddress.ip_address(str(each[4][0]).partition("%")[0]) in net for net in allowed
            )
            for each in found
        )


def _not_a_schema(parameters: JsonObject) -> str:
    """Say what is wrong with the JSON Schema of a tool's parameters; `""` for nothing."""
    if parameters.get("type") != "object":
        return 'a JSON Schema whose type is "object"'
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        return f"not a JSON Schema: {error.message[:200]}"
    return ""


def _addresses(text: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return an address and the IPv4 addresses that it carries inside, which gateways lead on to."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _V4_COMPATIBLE:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [address, *[each for each in inner if each is not None]]


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.ip_network("::/96")

_PROVIDERS: dict[str, Callable[[Workshop, ModelSpec | None], ChatModel]] = {
    "scripted": Workshop.scripted,
    "openai": Workshop.openai,
}


@asynccontextmanager
async def _model_client() -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Make the one HTTP client of the process, so that connections are used again.

    Yields:
        The client, which keeps no cookies: what it is told belongs to one session of ours alone.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=1000, ssl=_trusted()),
        timeout=aiohttp.ClientTimeout(total=None, connect=30, sock_connect=10, sock_read=120),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as client:
        yield client


def _trusted() -> ssl.SSLContext:
    """Say whom to believe that they are who they say: what an operator named, or the usual authorities.

    A system's own list is not taken, because slim images have none.
    """
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())


def _proxy_to(url: str) -> str | None:
    """Return the proxy that the environment names for an address, if it names one."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


_random = random.SystemRandom().random


async def _again(pause: timedelta, chore: Callable[[], Awaitable[object]]) -> None:
    """Do a chore for ever, about once in a while: replicas that start together do not collide."""
    while True:
        await asyncio.sleep(pause.total_seconds() * (0.5 + _random()))
        try:
            await chore()
        except Exception as error:  # noqa: BLE001 - it is tried again
            log.warning("a chore failed", error=str(error))


def configure_logging(settings: Settings) -> None:
    """Write logs as text for people or as JSON for machines."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            )
            if settings.log_format == "json"
            else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
