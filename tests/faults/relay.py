"""A relay between two parties that can be slow, deaf, forgetful or lumpy: faults of the network."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOST = struct.pack("ii", 1, 0)
"""Lingering for no time: closing the socket then resets the connection."""


@dataclass
class Relay:
    """Passes bytes on between whoever connects and a server, and breaks what it is told to."""

    connect: Callable[[], Awaitable[Streams]]
    chance: random.Random = field(default_factory=random.Random)
    port: int = 0
    lose: float = 0.0
    """How likely an answer of the server is swallowed, and both sides are reset."""
    delay: float = 0.0
    """Seconds that each answer of the server is late."""
    deaf: bool = False
    """Whether nothing is passed on at all."""
    lump_bytes: int = 0
    """Bytes of an answer that are collected before they are passed on, as a buffering proxy does …"""
    lump_seconds: float = 0.0
    """… and for how long at most."""
    lost: int = 0
    """How many answers were swallowed."""
    _open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = field(default_factory=dict)

    def reset(self) -> int:
        """Reset every connection, and return how many there were."""
        for task, writers in list(self._open.items()):
            _reset(writers)
            task.cancel()
        return len(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._open[task] = [writer]
        try:
            server_reader, server_writer = await self.connect()
            writers.append(server_writer)
            async with asyncio.TaskGroup() as both:
                there = both.create_task(self._pass(reader, server_writer))
                back = both.create_task(self._answer(server_reader, writer, writers))
                done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                # Half of a connection is none, for both protocols that are relayed here.
                for each in {there, back} - done:
                    each.cancel()
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            _reset(writers)
        finally:
            del self._open[task]
            for each in writers:
                each.close()
            for each in writers:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await each.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._unless_deaf()
            writer.write(data)
            await writer.drain()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        while data := await reader.read(65536):
            if self.lose and self.chance.random() < self.lose:
                self.lost += 1
                _reset(writers)
                return
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.lump_bytes:
                data = await self._collect(reader, data)
            await self._unless_deaf()
            writer.write(data)
            await writer.drain()

    async def _collect(self, reader: asyncio.StreamReader, data: bytes) -> bytes:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.lump_seconds):
                while len(data) < self.lump_bytes:
                    more = await reader.read(self.lump_bytes)
                    if not more:
                        break
                    data += more
        return data

    async def _unless_deaf(self) -> None:
        while self.deaf:
            await asyncio.sleep(0.05)


def _reset(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        found = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            if found is not None and found.family != socket.AF_UNIX:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LOST)
        writer.transport.abort()


@asynccontextmanager
async def relaying(
    connect: Callable[[], Awaitable[Streams]], chance: random.Random | None = None
) -> AsyncIterator[Relay]:
    """Listen on a free port.

    Yields:
        The relay; when the block ends its connections are reset.
    """
    relay = Relay(connect, chance or random.Random())
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.deaf = False
        tasks = list(relay._open)
        relay.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
