"""What is measured: the service and the two proxies, and how a message is sent to each."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / TICKS


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


@dataclass
class Target:
    """Something that answers messages with a stream of events."""

    name: str
    url: str
    pid: int
    client: aiohttp.ClientSession
    start_seconds: float = 0
    _agents: dict[str, str] = field(default_factory=dict)

    async def session(self, model: str) -> str:
        """Return the address to which messages of a new session are sent."""
        if self.name != "bearings":
            kind = "bare" if self.name == "proxy" else "kept"
            return f"{self.url}/{kind}/{os.urandom(6).hex()}/{model}"
        if model not in self._agents:
            spec = {
                "name": "Friday",
                "model": {"provider": "openai", "name": model, "context_size": 10_000_000},
                "tools": {"builtin": []},
            }
            self._agents[model] = (await self.post("/v1/agents", spec))["id"]
        made = await self.post("/v1/sessions", {"agent_id": self._agents[model]})
        return f"{self.url}/v1/sessions/{made['id']}/messages"

    async def post(self, path: str, body: object) -> Any:
        async with self.client.post(self.url + path, json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()


async def _ready(client: aiohttp.ClientSession, url: str) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() < begun + 60:
        try:
            async with client.get(f"{url}/readyz") as answer:
                if answer.status == 200:
                    return loop.time() - begun
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.01)
    raise RuntimeError(f"{url} did not get ready")


@asynccontextmanager
async def _process(
    *command: str, **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, env=os.environ | environment
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                await asyncio.wait_for(child.wait(), 10)
            except TimeoutError:
                child.kill()
                await child.wait()


@asynccontextmanager
async def running(data_dir: str, database_url: str) -> AsyncGenerator[dict[str, Target], None]:
    """Start the model server, the two proxies and the service on one database."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        model_port = free_port()
        await stack.enter_async_context(_process("-m", "bench.model_server", str(model_port)))
        model_url = f"http://127.0.0.1:{model_port}/v1"
        proxy_port, port = free_port(), free_port()
        proxy_url, url = f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{port}"
        bench = {"BENCH_MODEL_URL": model_url, "BENCH_DATABASE_URL": database_url}
        proxy = await stack.enter_async_context(
            _process("-m", "bench.proxy", BENCH_PORT=str(proxy_port), **bench)
        )
        proxy_start = await _ready(client, proxy_url)
        service = await stack.enter_async_context(
            _process(
                "-m",
                "app.cli",
                "serve",
                "--no-tour",
                BEARINGS_PORT=str(port),
                BEARINGS_DATABASE_URL=database_url,
                BEARINGS_DATA_DIR=data_dir,
                BEARINGS_MODEL="openai:text-1",
                BEARINGS_MODEL_BASE_URL=model_url,
                BEARINGS_LOG_LEVEL="error",
            )
        )
        start = await _ready(client, url)
        yield {
            "proxy": Target("proxy", proxy_url, proxy.pid, client, proxy_start),
            "proxy2": Target("proxy2", proxy_url, proxy.pid, client, proxy_start),
            "bearings": Target("bearings", url, service.pid, client, start),
        }
