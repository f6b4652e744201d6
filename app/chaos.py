"""`bearings chaos`: two replicas, one killed in the middle of a reply, and what a client saw of it."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import aiohttp

from app.adapters.postgres.embedded import EmbeddedPostgres

ANSWER = (
    "I was in the middle of this answer when the process that wrote it was gone. Another one found "
    "the session, took what was recorded, and asked me again; so here is all of it, once."
)
WORDS = re.findall(r"\s*\S+", ANSWER)
PAUSE_SECONDS = 0.1
"""Between two words of the model."""
SEEN_BEFORE_THE_KILL = 12
"""Words that the client has read when the replica dies."""
PATIENCE_SECONDS = 60
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class Seen:
    """What the client has read, over however many connections."""

    events: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    @property
    def last(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._number(self.events[-1]) if self.events else 0

    def words(self) -> str:
        """Put the answer together as a frontend does: what is withdrawn is dropped."""
        blocks: dict[object, list[str]] = {}
        for event in self.events:
            match event["type"]:
                case "TEXT_BLOCK_DELTA":
                    blocks.setdefault(event["block_id"], []).append(str(event["delta"]))
                case "REPLY_RESUMED":
                    discard = cast("list[str]", event.get("discard", []))
                    for block_id in discard:
                        blocks.pop(block_id, None)
                case _:
                    pass
        return "".join(text for parts in blocks.values() for text in parts)

    def faults(self) -> list[str]:
        """Say what a client would have to complain about."""
        numbers = [self._number(event) for event in self.events]
        found = [
            f"a gap or a double behind {one}" for one, two in pairwise(numbers) if two != one + 1
        ]
        ends = sum(event["type"] == "REPLY_END" for event in self.events)
        if ends != 1:
            found.append(f"{ends} ends")
        if self.words() != ANSWER:
            found.append(f"another answer: {self.words()!r}")
        return found

    @staticmethod
    def _number(event: dict[str, object]) -> int:
        return int(str(event["seq"]))


async def demonstrate(say: Callable[[str], None], *, ttl: float, gently: bool) -> bool:
    """Kill a replica in the middle of a reply, and tell what a client sees.

    Args:
        say: Prints a line.
        ttl: Seconds after which a dead replica's session is taken over.
        gently: Tell the replica to stop instead of killing it.

    Returns:
        Whether the client got every event once, in order, and the whole answer.
    """
    begun = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - begun:6.1f} s  {text}")

    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        postgres = EmbeddedPostgres(Path(folder))
        url = await postgres.start()
        stack.push_async_callback(postgres.stop)
        model = await stack.enter_async_context(_model())
        client = await stack.enter_async_context(aiohttp.ClientSession())
        replicas = {
            name: await stack.enter_async_context(_replica(url, model, ttl=ttl))
            for name in ("A", "B")
        }
        tell("a Postgres, a fake model, and the replicas A and B are there")
        for replica in replicas.values():
            await replica.ready(client)
        session = await _session(client, replicas["A"])
        await _post(
            client, f"{replicas['A'].url}/v1/sessions/{session}/messages", {"content": "hi"}
        )
        tell("the client has sent a message to A (202), and reads the events from A")
        seen = Seen()
        await _read(client, replicas["A"], session, seen, tell, words=SEEN_BEFORE_THE_KILL)
        number = signal.SIGTERM if gently else signal.SIGKILL
        replicas["A"].child.send_signal(number)
        at, heard = time.monotonic(), seen.last
        tell(f"A gets {number.name} behind event {heard}: {seen.words()!r}")
        tell(f"the client comes back at B, with Last-Event-ID: {heard}")
        await _read(client, replicas["B"], session, seen, tell, resumed_since=at)
        tell(f"the answer: {seen.words()!r}")
        faults = seen.faults()
        verdict = "; ".join(faults) or "no gap, no double, one end, the whole answer"
        tell(f"{seen.last} events over two connections: {verdict}")
        return not faults


async def _read(
    client: aiohttp.ClientSession,
    replica: "_Replica",
    session: str,
    seen: Seen,
    tell: Callable[[str], None],
    *,
    words: int | None = None,
    resumed_since: float = 0,
) -> None:
    """Read events behind the last one, until the reply ends or so many words were seen."""
    headers = {"Last-Event-ID": str(seen.last)} if seen.last else {}
    stream = client.get(f"{replica.url}/v1/sessions/{session}/events", headers=headers)
    async with asyncio.timeout(PATIENCE_SECONDS), stream as answer:
        async for line in answer.content:
            if not line.startswith(b"data: "):
                continue
            event: dict[str, object] = json.loads(line[6:])
            seen.events.append(event)
            match event["type"]:
                case "TEXT_BLOCK_DELTA":
                    if words is not None and len(seen.words().split()) >= words:
                        return
                case "REPLY_RESUMED":
                    waited = time.monotonic() - resumed_since
                    tell(
                        f"event {event['seq']} REPLY_RESUMED, {waited:.1f} s after the signal: drop "
                        f"{event.get('discard', [])}"
                    )
                case "REPLY_END":
                    tell(f"event {event['seq']} REPLY_END {event['finished_reason']}")
                    return
                case _:
                    pass


async def _session(client: aiohttp.ClientSession, replica: "_Replica") -> str:
    agent = await _post(client, f"{replica.url}/v1/agents", {"name": "Friday"})
    made = await _post(client, f"{replica.url}/v1/sessions", {"agent_id": agent["id"]})
    return str(made["id"])


async def _post(
    client: aiohttp.ClientSession, url: str, body: dict[str, object]
) -> dict[str, object]:
    async with client.post(url, json=body) as answer:
        answer.raise_for_status()
        made: dict[str, object] = await answer.json()
        return made


@dataclass
class _Replica:
    """One process of the service."""

    url: str
    child: asyncio.subprocess.Process

    async def ready(self, client: aiohttp.ClientSession) -> None:
        """Wait until it serves."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    async with client.get(f"{self.url}/readyz") as answer:
                        if answer.ok:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)


@asynccontextmanager
async def _replica(
    database_url: str, model_url: str, *, ttl: float
) -> AsyncGenerator[_Replica, None]:
    """Run a replica, and kill it at the end if nobody did before.

    Yields:
        The replica, not ready yet.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "app.cli",
        "serve",
        "--no-tour",
        env={
            **os.environ,
            "BEARINGS_HOST": "127.0.0.1",
            "BEARINGS_PORT": str(port),
            "BEARINGS_DATABASE_URL": database_url,
            "BEARINGS_MODEL": "openai:fake",
            "BEARINGS_MODEL_BASE_URL": model_url,
            "BEARINGS_LEASE_TTL": str(ttl),
            "BEARINGS_DRAIN_GRACE": "1",
            "BEARINGS_LOG_LEVEL": "error",
        },
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield _Replica(f"http://127.0.0.1:{port}", child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@asynccontextmanager
async def _model() -> AsyncGenerator[str, None]:
    """Serve a model that says the same words to everyone, slowly.

    Yields:
        Its base URL.
    """
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for word in WORDS:
            writer.write(_chunk({"delta": {"content": word}, "finish_reason": None}))
            await writer.drain()
            await asyncio.sleep(PAUSE_SECONDS)
        writer.write(_chunk({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass  # whoever asked is dead: that is the point
    finally:
        writer.close()


def _chunk(choice: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
