"""A relay before a server, which can go deaf: connections stay open, and nothing comes any more."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Passes on what comes over each connection, until told to forget those that stand."""

    def __init__(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        self._connect = connect
        self._pipes: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    def deafen(self) -> None:
        """Forget the connections that stand without closing them; new ones are passed on."""
        for each in self._pipes:
            each.cancel()
        self._pipes.clear()

    def close(self) -> None:
        self.deafen()
        for each in self._writers:
            each.close()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await self._connect()
        self._writers += [writer, outer]
        for source, target in ((reader, outer), (inner, writer)):
            self._pipes.append(asyncio.create_task(_pipe(source, target)))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def relay(connect: Callable[[], Awaitable[Streams]]) -> AsyncGenerator[Relay, None]:
    """Relay from a free port to what `connect` opens."""
    made = Relay(connect)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.close()
        await server.wait_closed()
