"""Traffic with a seed: sessions that are made, asked, interrupted, watched, and left."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.faults.history import History, Submission
from tests.faults.http import PAUSE_SECONDS, Client
from tests.faults.model import Wish
from tests.faults.readers import Reader, frames

MODES = ("json", "json", "stream", "wait")


@dataclass(frozen=True)
class Load:
    """How much is asked, and of what kind."""

    slots: int = 12
    """Sessions that are busy at once."""
    messages: int = 25
    """Messages of a session before it is left for another."""
    rounds: int = 2
    calls: int = 3
    chunks: int = 4
    pause_ms: int = 15
    keyed: float = 0.8
    """How likely a message has an Idempotency-Key …"""
    doubled: float = 0.25
    """… and how likely it then goes to several replicas at once."""
    interrupted: float = 0.05


class Generator:
    """Runs the traffic until it is told to stop."""

    def __init__(self, client: Client, history: History, load: Load) -> None:
        self._client, self._history, self._load = client, history, load
        self._chance = client.chance
        self._stopping = asyncio.Event()
        self._count = 0
        self._agent = ""
        self.readers: list[Reader] = []

    async def run(self) -> None:
        """Send messages until `stop`; then see every one through."""
        self._agent = await self._make(
            "/v1/agents", {"name": "Friday", "tools": {"builtin": ["tasks", "effects"]}}
        )
        async with asyncio.TaskGroup() as slots:
            for _ in range(self._load.slots):
                slots.create_task(self._slot())

    def stop(self) -> None:
        self._stopping.set()

    async def _slot(self) -> None:
        while not self._stopping.is_set():
            session = await self._make("/v1/sessions", {"agent_id": self._agent})
            self.readers.append(Reader(self._client, session))
            sent = 0
            while sent < self._load.messages and not self._stopping.is_set():
                burst = self._chance.choice((1, 1, 1, 2, 3))
                sent += burst
                async with asyncio.TaskGroup() as clients:
                    for _ in range(burst):
                        clients.create_task(self._submit(session))
                    if self._chance.random() < self._load.interrupted * burst:
                        clients.create_task(self._interrupt(session))
                await self._until_idle(session)

    async def _make(self, path: str, body: Any) -> str:
        answer = await self._client.insist("POST", path, body, Idempotency_Key=self._name("k"))
        assert answer.status == 201, answer
        return answer.body["id"]

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    async def _submit(self, session: str) -> None:
        load, chance = self._load, self._chance
        wish = Wish(
            self._name("m"),
            rounds=chance.randint(0, load.rounds),
            calls=chance.randint(1, load.calls),
            chunks=chance.randint(1, load.chunks),
            pause_ms=chance.randint(0, 2 * load.pause_ms),
        )
        key = self._name("key") if chance.random() < load.keyed else None
        submission = self._history.sent(session, wish.text, key)
        copies = 1
        if key is not None and chance.random() < load.doubled:
            copies = chance.randint(2, 3)
            self._history.counts["doubled"] += copies - 1
        async with asyncio.TaskGroup() as group:
            for _ in range(copies):
                group.create_task(self._send(submission, chance.choice(MODES)))

    async def _send(self, submission: Submission, mode: str) -> None:
        """Send a message until it is acknowledged; once only when it has no key."""
        while not await self._send_once(submission, mode) and submission.key is not None:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send_once(self, submission: Submission, mode: str) -> bool:
        path = f"/v1/sessions/{submission.session}/messages"
        body = {"content": submission.text}
        headers = {} if submission.key is None else {"Idempotency_Key": submission.key}
        if mode == "stream":
            return await self._send_and_read(submission, path, body, headers)
        if mode == "wait":
            headers["Prefer"] = "wait=4"
        answer = await self._client.ask("POST", path, body, **headers)
        if answer is None or answer.status == 409 or answer.status >= 500:
            return False
        if answer.status not in {200, 202}:
            self._history.violation(f"7: {submission} was answered {answer}")
            return True
        submission.replies.add(answer.body["reply_id" if answer.status == 202 else "id"])
        return True

    async def _send_and_read(
        self, submission: Submission, path: str, body: Any, headers: dict[str, str]
    ) -> bool:
        stream = self._client.stream("POST", path, body, Accept="text/event-stream", **headers)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with stream as answer:
                self._client.look("POST", path, answer.status, answer.headers)
                if answer.status != 200:
                    return False
                submission.replies.add(answer.headers["Location"].rpartition("/")[2])
                async for _ in frames(answer.content):
                    pass
        return submission.accepted

    async def _interrupt(self, session: str) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        answer = await self._client.ask("POST", f"/v1/sessions/{session}/interrupt")
        if answer is not None and answer.status == 200:
            self._history.counts[f"interrupt: {answer.body.get('status')}"] += 1

    async def _until_idle(self, session: str) -> None:
        while True:
            answer = await self._client.ask("GET", f"/v1/sessions/{session}")
            if answer is not None and answer.body.get("status") == "idle":
                return
            await asyncio.sleep(0.2)
