"""A client as real ones are: it asks any replica, and comes back with its key if an answer is lost."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from tests.faults.history import History

PATIENCE = aiohttp.ClientTimeout(total=8)
PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Answer:
    """What came back; a lost answer is none."""

    status: int
    headers: Any
    body: Any = None


class Client:
    """Speaks to the replicas, and takes down whatever they must not say."""

    def __init__(self, urls: Sequence[str], history: History, chance: random.Random) -> None:
        self.urls, self.history, self.chance = urls, history, chance
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        await self._session.close()

    def url(self) -> str:
        return self.chance.choice(self.urls)

    async def ask(
        self, method: str, path: str, body: Any = None, *, url: str = "", **headers: str
    ) -> Answer | None:
        """Ask one replica once; None when the answer is lost."""
        try:
            async with self._session.request(
                method,
                (url or self.url()) + path,
                json=body,
                headers={name.replace("_", "-"): value for name, value in headers.items()},
                timeout=PATIENCE,
            ) as answer:
                raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.history.counts["lost answers"] += 1
            return None
        self.look(method, path, answer.status, answer.headers, raw)
        if answer.status == 503:
            return None
        return Answer(answer.status, answer.headers, orjson.loads(raw) if raw else None)

    async def insist(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask again and again, any replica, until one answers."""
        while True:
            answer = await self.ask(method, path, body, **headers)
            if answer is not None and answer.status != 409 and answer.status < 500:
                return answer
            await asyncio.sleep(PAUSE_SECONDS)

    def stream(
        self, method: str, path: str, body: Any = None, *, url: str = "", **headers: str
    ) -> Any:
        """Open a stream; silence of some seconds ends it, because its replica may stand still."""
        quiet = aiohttp.ClientTimeout(total=None, sock_connect=4, sock_read=12)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._session.request(
            method, (url or self.url()) + path, json=body, headers=named, timeout=quiet
        )

    def look(self, method: str, path: str, status: int, headers: Any, raw: bytes = b"") -> None:
        """Take down an answer that must not be given."""
        if status == 503:
            self.history.counts["503"] += 1
            if "Retry-After" not in headers:
                self.history.violation(f"12: {method} {path} was answered 503 without Retry-After")
        elif status >= 500:
            self.history.counts["500"] += 1
            self.history.violation(f"12: {method} {path} was answered {status}: {raw[:300]!r}")
