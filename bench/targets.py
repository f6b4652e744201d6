"""What is measured: the service and two proxies, and how each is started and spoken to."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from bench.processes import Started, free_port, server

WORDS = "some words that were said before, about as many as people say at once "
_numbers = count(1)


@dataclass(kw_only=True)
class Target(ABC):
    """Something that answers messages with a stream of events."""

    name: str
    client: aiohttp.ClientSession
    model_url: str
    database_url: str | None = None
    started: Started | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Started, None]:
        """Start it, and stop it when the block ends."""
        port = free_port()
        environment = self.environment(port)
        async with server(self.client, port, *self.command(), **environment) as started:
            self.started = started
            yield started

    @property
    def url(self) -> str:
        assert self.started is not None, f"{self.name} does not run"
        return self.started.url

    @property
    def pid(self) -> int:
        assert self.started is not None, f"{self.name} does not run"
        return self.started.pid

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def environment(self, port: int) -> dict[str, str]: ...

    @abstractmethod
    async def session(self, model: str, *, held: int = 0, window: int | None = None) -> str:
        """Begin a session, and return its address.

        Args:
            model: Its name, which is what the model server plays.
            held: How many messages were said there before.
            window: How many of these the agent still sees; all when not given.
        """

    async def ask(self, method: str, url: str, body: object) -> Any:
        async with self.client.request(method, url, json=body) as answer:
            assert answer.status < 300, f"{method} {url}: {answer.status} {await answer.text()}"
            return await answer.json()


class Proxy(Target):
    """The model's chunks as events; with a database, messages and replies are kept too."""

    def command(self) -> list[str]:
        return ["-m", "bench.proxy"]

    def environment(self, port: int) -> dict[str, str]:
        kept = {} if self.database_url is None else {"BENCH_DATABASE_URL": self.database_url}
        return {"BENCH_PORT": str(port), "BENCH_MODEL_URL": self.model_url, **kept}

    async def session(self, model: str, *, held: int = 0, window: int | None = None) -> str:  # noqa: ARG002
        address = f"{self.url}/s{next(_numbers)}/{model}"
        if held:
            said = [{"role": _role(at), "text": WORDS} for at in range(held)]
            await self.ask("PUT", f"{address}/held", said)
        return address


@dataclass(kw_only=True)
class Bearings(Target):
    """The service, over HTTP, as `bearings serve` starts it."""

    data_dir: str
    model: str = "openai:text-1"
    _agents: dict[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        return ["-m", "app.cli", "serve", "--no-tour"]

    def environment(self, port: int) -> dict[str, str]:
        kept = {} if self.database_url is None else {"BEARINGS_DATABASE_URL": self.database_url}
        return {
            "BEARINGS_PORT": str(port),
            "BEARINGS_DATA_DIR": self.data_dir,
            "BEARINGS_MODEL": self.model,
            "BEARINGS_MODEL_BASE_URL": self.model_url,
            "BEARINGS_DRAIN_GRACE": "2",
            "BEARINGS_LOG_LEVEL": "error",
            **kept,
        }

    async def session(self, model: str, *, held: int = 0, window: int | None = None) -> str:
        """Begin a session whose agent is told where it stands, in a window that is never full."""
        if model not in self._agents:
            provider, _, name = model.rpartition(":")
            spec = {
                "name": "Friday",
                "model": {
                    "provider": provider or "openai",
                    "name": name,
                    "context_size": 10_000_000,
                },
                "tools": {"builtin": ["tasks"] if "tools" in model else []},
            }
            self._agents[model] = (await self.ask("POST", f"{self.url}/v1/agents", spec))["id"]
        asked = {"agent_id": self._agents[model]}
        made = await self.ask("POST", f"{self.url}/v1/sessions", asked)
        address = f"{self.url}/v1/sessions/{made['id']}"
        if held:
            context = [_message(at) for at in range(held)]
            await self.ask("PUT", f"{address}/state", {"context": context})
            if window is not None and window < held:
                await self.ask("PUT", f"{address}/state", {"context": context[-window:]})
        return address


def _role(at: int) -> str:
    return "user" if at % 2 == 0 else "assistant"


def _message(at: int) -> dict[str, Any]:
    return {
        "id": f"held-{at}",
        "name": "user" if at % 2 == 0 else "Friday",
        "role": _role(at),
        "content": [{"type": "text", "id": f"block-{at}", "text": WORDS}],
    }
