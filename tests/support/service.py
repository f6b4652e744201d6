"""The service as a test meets it: over HTTP, on a real Postgres."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn

from app.config import Settings
from app.main import create_app

ROOT = Path(__file__).parents[2]


@dataclass
class Service:
    """A running service and a client that speaks to it."""

    url: str
    client: httpx.AsyncClient
    app: Any

    @property
    def engine(self) -> Any:
        return self.app.state.engine

    async def agent(self, **spec: Any) -> str:
        answer = await self.client.post("/v1/agents", json={"name": "Friday"} | spec)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    async def session(self, agent_id: str | None = None, **more: Any) -> str:
        body = {"agent_id": agent_id or await self.agent()} | more
        answer = await self.client.post("/v1/sessions", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    async def send(self, session_id: str, content: Any, **more: Any) -> dict[str, Any]:
        """Send a message and wait for its final message."""
        answer = await self.client.post(
            f"/v1/sessions/{session_id}/messages",
            json={"content": content} | more,
            headers={"Prefer": "wait=60"},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def log(self, session_id: str, after: int = 0) -> list[dict[str, Any]]:
        """Read the log to its end."""
        return await read_log(self.client, session_id, after)


async def read_log(
    client: httpx.AsyncClient, session_id: str, after: int = 0
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    cursor: str | None = str(after)
    while cursor is not None:
        answer = await client.get(
            f"/v1/sessions/{session_id}/events",
            params={"after": cursor, "limit": 200},
            headers={"Accept": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        events += page["data"]
        cursor = page["next_cursor"]
    return events


async def sse(lines: AsyncGenerator[str, None]) -> AsyncGenerator[dict[str, Any], None]:
    """Read server-sent events strictly: an id and one data line a frame."""
    number: int | None = None
    async for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            event = orjson.loads(line[6:])
            assert event["seq"] == number
            yield event
        else:
            assert line == "" or line.startswith((":", "retry: ")), line


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[Service, None]:
    """Run the service in this process, behind a real server on a free port."""
    app = create_app(Settings(log_level="error", **settings))
    config = uvicorn.Config(
        app, port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    # Named TCP: only then does asyncio switch off Nagle's delay, which is 40 ms an answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with app.router.lifespan_context(app):
            config.lifespan = "off"
            running = asyncio.create_task(server.serve([listening]))
            while not server.started:
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=url, timeout=90) as client:
                try:
                    yield Service(url, client, app)
                finally:
                    server.should_exit = True
                    await running


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@asynccontextmanager
async def process(
    database_url: str, *, port: int | None = None, **environment: str
) -> AsyncGenerator["Process", None]:
    """Run the service as a process of its own, as an operator would."""
    port = port or free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "app.cli",
        "serve",
        "--no-tour",
        cwd=ROOT,
        env=os.environ
        | {"BEARINGS_DATABASE_URL": database_url, "BEARINGS_PORT": str(port)}
        | environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=90) as client:
        running = Process(child, client)
        try:
            await running.ready()
            yield running
        finally:
            if child.returncode is None:
                child.kill()
            await child.communicate()


@dataclass
class Process:
    child: asyncio.subprocess.Process
    client: httpx.AsyncClient

    async def ready(self) -> None:
        for _ in range(600):
            try:
                if (await self.client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
        raise AssertionError("the service did not get ready")
