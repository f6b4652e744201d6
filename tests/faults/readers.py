"""Readers of a log: each follows one session over all replicas, goes away anywhere and comes back."""

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from tests.faults.http import PAUSE_SECONDS, Client


class Reader:
    """Joins what it sees of a session's log, which must be the log."""

    def __init__(
        self, client: Client, session: str, *, most: int = 300, pages: float = 0.15
    ) -> None:
        """Prepare.

        Args:
            client: Who speaks to the replicas.
            session: Whose log.
            most: Events after which it goes away at the latest.
            pages: How likely it reads a page instead of a stream.
        """
        self._client, self.session, self._most, self._pages = client, session, most, pages
        self.joined: list[bytes] = []
        self.last = 0
        self.reconnects = 0
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def until(self, last: int, *, seconds: float) -> bool:
        """Wait until it has read up to a number, and end it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.last < last and not self._task.done():
                    self._grew.clear()
                    await self._grew.wait()
        await self.stop()
        return self.last >= last

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()):
            raise error

    async def _run(self) -> None:
        chance = self._client.chance
        while True:
            self.reconnects += 1
            try:
                if chance.random() < self._pages:
                    await self._page()
                else:
                    await self._stream(chance.randrange(1, self._most))
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _page(self) -> None:
        path = f"/v1/sessions/{self.session}/events?after={self.last}&limit=200"
        answer = await self._client.ask("GET", path, Accept="application/json")
        if answer is None:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        if self._fits(answer.status):
            for event in answer.body["data"]:
                self._take(event["seq"], orjson.dumps(event))
            if not answer.body["data"]:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _stream(self, patience: int) -> None:
        path = f"/v1/sessions/{self.session}/events"
        headers = {"Last_Event_ID": str(self.last)} if self.last else {}
        async with self._client.stream("GET", path, **headers) as answer:
            self._client.look("GET", path, answer.status, answer.headers)
            if not self._fits(answer.status):
                await asyncio.sleep(PAUSE_SECONDS)
                return
            async for seq, data in frames(answer.content):
                self._take(seq, data)
                patience -= 1
                if patience <= 0:
                    return

    def _fits(self, status: int) -> bool:
        if status in {409, 410}:
            self._client.history.violation(
                f"4: {self.session}: a cursor of {self.last} that was given is refused with {status}"
            )
        return status == 200

    def _take(self, seq: int, data: bytes) -> None:
        self.joined.append(data)
        self.last = seq
        self._grew.set()


async def frames(content: aiohttp.StreamReader) -> Any:
    """Read server-sent events strictly; one that is not whole when the stream breaks is none.

    Yields:
        The number and the data of each event.
    """
    number, data = 0, b""
    async for raw in _lines(content):
        if raw == b"":
            if data:
                yield number, data
            data = b""
        elif raw.startswith(b"id: "):
            number = int(raw[4:])
        elif raw.startswith(b"data: "):
            data = raw[6:]
        else:
            assert raw.startswith((b":", b"retry: ")), raw


async def _lines(content: aiohttp.StreamReader) -> Any:
    """Cut a stream into lines of any length.

    Yields:
        Each whole line, without its end.
    """
    left = b""
    async for data in content.iter_any():
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            yield line
