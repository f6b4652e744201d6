"""Starts processes, watches what they use, and leaves none behind."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Started:
    """A process that answers HTTP."""

    url: str
    pid: int
    start_seconds: float
    """From its start to the first good answer of `/readyz`."""


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def tree(pid: int) -> list[int]:
    """Return a process and everything below it."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree so far, that of children which ended included."""
    total = 0
    for each in tree(pid):
        try:
            parts = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue
        total += sum(int(part) for part in parts[11:15])
    return total / TICKS


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE / 1024 / 1024


@asynccontextmanager
async def process(
    *command: str, **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Run a Python module until the block ends.

    It has a session of its own: Ctrl-C reaches the bench alone, which then ends what it started.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=ROOT,
        env=_clean(os.environ) | environment,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                async with asyncio.timeout(10):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()


@asynccontextmanager
async def server(
    client: aiohttp.ClientSession, port: int, *command: str, **environment: str
) -> AsyncGenerator[Started, None]:
    """Run a server until the block ends, and wait until it is ready."""
    url, begun = f"http://127.0.0.1:{port}", time.perf_counter()
    async with process(*command, **environment) as child:
        while not await _is_ready(client, url):
            if child.returncode is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
            if time.perf_counter() > begun + PATIENCE_SECONDS:
                raise RuntimeError(f"{' '.join(command)} did not get ready")
            await asyncio.sleep(0.01)
        yield Started(url, child.pid, time.perf_counter() - begun)


async def _is_ready(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out what would configure the service otherwise than the bench means to.

    Bytecode is kept as on any machine of a user; without it every start would compile the service.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("BEARINGS_") and name != "PYTHONDONTWRITEBYTECODE"
    }
