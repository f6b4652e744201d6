"""Replicas as processes: they are started, killed, held still and let go."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.support.service import ROOT

READY_SECONDS = 60


@dataclass
class Replica:
    """One place in the fleet: the same address and name, whatever process is there."""

    name: str
    port: int
    log: Path
    environment: dict[str, str]
    nursery: "Nursery"
    pid: int = 0
    starts: int = 0
    was_ready: bool = False
    ended: asyncio.Future[int] = field(default_factory=asyncio.Future)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, **more: str) -> None:
        self.was_ready = False
        self.pid, self.ended = await self.nursery.bear(self.log, self.environment | more)
        self.starts += 1

    def signal(self, number: int) -> None:
        assert not self.ended.done(), f"{self.name} has ended by itself: {self.ended.result()}"
        os.kill(self.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended

    async def ready(self) -> None:
        """Wait until it answers; one whose database broke while it started is started again."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert time.monotonic() < deadline, f"{self.name} did not get ready: see {self.log}"
            if self.ended.done():
                assert not self.was_ready, f"{self.name} has ended by itself"
                await self.start()
            if await self.answers():
                self.was_ready = True
                return
            await asyncio.sleep(0.02)

    async def answers(self) -> bool:
        """Tell whether it is ready now."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"{self.url}/readyz", timeout=ALIVE) as answer,
            ):
                return answer.status == 200
        return False


ALIVE = aiohttp.ClientTimeout(total=2)


class Nursery:
    """The process that makes replicas quickly."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._bearing = asyncio.Lock()

    async def bear(
        self, log: Path, environment: Mapping[str, str]
    ) -> tuple[int, asyncio.Future[int]]:
        """Make a process, and return its number and how it will end."""
        order = {"log": str(log), "environment": dict(environment)}
        assert self._process.stdin is not None
        async with self._bearing:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            await self._process.stdin.drain()
            pid = await asyncio.wait_for(self._born.get(), 30)
        return pid, self._ended[pid]

    async def listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "born" in said:
                self._ended[said["born"]] = asyncio.get_running_loop().create_future()
                self._born.put_nowait(said["born"])
            else:
                self._ended[said["ended"]].set_result(said["code"])


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """Keep a process from which replicas come.

    Yields:
        The nursery; when the block ends so do all its replicas.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.replica",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Nursery(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await listening


def free_port(chance: random.Random) -> int:
    """Return a port that no outgoing connection will take while its replica is dead."""
    while True:
        port = chance.randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
