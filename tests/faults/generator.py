"""Traffic with a seed: sessions that are made, asked, interrupted, watched, and left."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.faults.history import History, Submission
from tests.faults.http import PAUSE_SECONDS, Client
from tests.faults.model import Wish
from tests.faults.readers import Reader, frames


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
    waiting: float = 0.2
    """How likely the calls of a message wait for somebody."""
    policies: tuple[str, ...] = (*["enqueue"] * 6, "reject", "interrupt", "rollback", "steer")
    """What happens to messages that come while the session is busy."""
    modes: tuple[str, ...] = ("json", "json", "stream", "wait")
    """How clients wait for answers."""


LOAD = Load()


class Generator:
    """Runs the traffic until it is told to stop."""

    def __init__(self, client: Client, history: History, load: Load) -> None:
        self._client, self._history, self._load = client, history, load
        self._chance = client.chance
        self._stopping = asyncio.Event()
        self._count = 0
        self._agent = ""
        self._making = asyncio.Lock()
        self.readers: list[Reader] = []
        self._beside: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send messages until `stop`; then see every one through."""
        async with asyncio.TaskGroup() as slots:
            for _ in range(self._load.slots):
                slots.create_task(self._slot())
        if self._beside:
            await asyncio.wait(self._beside)

    def stop(self) -> None:
        self._stopping.set()

    async def session(self) -> str:
        """Make a session, and follow it from its beginning."""
        async with self._making:
            if not self._agent:
                spec = {
                    "name": "Friday",
                    "tools": {
                        "builtin": ["tasks", "effects"],
                        "external": [{"name": "Lookup"}],
                    },
                    "interrupt_on": {"Careful": True},
                }
                self._agent = await self._make("/v1/agents", spec)
        session = await self._make("/v1/sessions", {"agent_id": self._agent})
        self.readers.append(Reader(self._client, session))
        return session

    async def provoke(self, url: str, point: str) -> None:
        """Do in a session of its own, at one replica first, what leads past a fail point."""
        session = await self.session()
        slow = point.startswith(("release", "append.renew"))
        waits = point.startswith(("answer", "append.park"))
        steers = point.startswith("append.join")
        shape = (
            {"chunks": 2, "pause_ms": 1500}
            if slow
            else {"rounds": 1, "calls": 2, "pause_ms": 100 if steers else 20, "waits": int(waits)}
        )
        await self._provoke(session, Wish(self._name("m"), **shape), url)
        if steers:
            await asyncio.sleep(self._chance.uniform(0.05, 0.3))
            await self._provoke(session, Wish(self._name("m")), url, on_busy="steer")
        if waits:
            self._begin(self._until_idle(session, url))

    async def _provoke(
        self, session: str, wish: Wish, url: str, *, on_busy: str = "enqueue"
    ) -> None:
        submission = self._history.sent(session, wish.text, self._name("key"))
        submission.on_busy = on_busy
        if not await self._send_once(submission, "json", url=url):
            await self._send(submission, "json")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _slot(self) -> None:
        while not self._stopping.is_set():
            session = await self.session()
            sent = 0
            while sent < self._load.messages and not self._stopping.is_set():
                burst = self._chance.choice((1, 1, 1, 2, 3))
                sent += burst
                attending = asyncio.create_task(self._attend(session))
                try:
                    async with asyncio.TaskGroup() as clients:
                        for _ in range(burst):
                            clients.create_task(self._submit(session))
                        if self._chance.random() < self._load.interrupted * burst:
                            clients.create_task(self._interrupt(session))
                finally:
                    attending.cancel()
                    await asyncio.gather(attending, return_exceptions=True)
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
            waits=chance.randint(1, 2) if chance.random() < load.waiting else 0,
        )
        key = self._name("key") if chance.random() < load.keyed else None
        submission = self._history.sent(session, wish.text, key)
        submission.on_busy = chance.choice(load.policies)
        copies = 1
        if key is not None and chance.random() < load.doubled:
            copies = chance.randint(2, 3)
            self._history.counts["doubled"] += copies - 1
        async with asyncio.TaskGroup() as group:
            for _ in range(copies):
                group.create_task(self._send(submission, chance.choice(load.modes)))

    async def _send(self, submission: Submission, mode: str) -> None:
        """Send a message until it is acknowledged; once only when it has no key."""
        while not await self._send_once(submission, mode) and submission.key is not None:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send_once(self, submission: Submission, mode: str, *, url: str = "") -> bool:
        submission.tries += 1
        path = f"/v1/sessions/{submission.session}/messages"
        body = {"content": submission.text, "on_busy": submission.on_busy}
        headers = {} if submission.key is None else {"Idempotency_Key": submission.key}
        if mode == "stream":
            return await self._send_and_read(submission, path, body, headers)
        if mode == "wait":
            headers["Prefer"] = "wait=4"
        answer = await self._client.ask("POST", path, body, url=url, **headers)
        if answer is not None and answer.status == 409:
            return self._is_refused(submission, answer.body)
        if answer is None or answer.status >= 500:
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
                if answer.status == 409:
                    return self._is_refused(submission, await answer.json(content_type=None))
                if answer.status != 200:
                    return False
                submission.replies.add(answer.headers["Location"].rpartition("/")[2])
                async for _ in frames(answer.content):
                    pass
        return submission.accepted

    def _is_refused(self, submission: Submission, body: Any) -> bool:
        """Tell whether a conflict is for good: the session was busy, and the message said reject."""
        if body["code"] != "session_busy":
            return False
        if submission.on_busy != "reject":
            self._history.violation(f"7: {submission} was refused")
        submission.refused = True
        return True

    async def _interrupt(self, session: str) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        answer = await self._client.ask("POST", f"/v1/sessions/{session}/interrupt")
        if answer is not None and answer.status == 200:
            self._history.counts[f"interrupt: {answer.body.get('status')}"] += 1

    async def _attend(self, session: str) -> None:
        """Answer what a session waits for, as long as messages are sent."""
        while True:
            await asyncio.sleep(0.2)
            await self._status(session)

    async def _until_idle(self, session: str, url: str = "") -> None:
        """Answer what a session waits for, until it has nothing to do."""
        while await self._status(session, url) != "idle":
            await asyncio.sleep(0.2)

    async def _status(self, session: str, url: str = "") -> str:
        """Look at a session, and answer what it waits for."""
        answer = await self._client.ask("GET", f"/v1/sessions/{session}")
        if answer is None:
            return ""
        if answer.body.get("status") == "awaiting":
            calls = answer.body["pending_tool_calls"]
            await asyncio.gather(*[self._answer(session, call, url) for call in calls])
        return str(answer.body.get("status"))

    async def _answer(self, session: str, call: Any, url: str) -> None:
        """Answer a call, now and then from two people at once, of whom one is believed."""
        async with asyncio.TaskGroup() as people:
            for _ in range(1 if self._chance.random() < 0.7 else 2):
                people.create_task(self._answer_once(session, call, url))

    async def _answer_once(self, session: str, call: Any, url: str) -> None:
        result: dict[str, Any] = {"tool_call_id": call["id"]}
        if call["state"] == "asking":
            path = "confirmations"
            result["decision"] = self._chance.choice(["approve", "approve", "reject", "respond"])
            if result["decision"] == "respond":
                result["message"] = "by hand"
        else:
            path = "tool-results"
            result["output"] = "found"
        body, key = {"results": [result]}, self._name("a")
        answer = await self._client.ask(
            "POST", f"/v1/sessions/{session}/{path}", body, url=url, Idempotency_Key=key
        )
        if answer is None:
            # Lost: whether it was taken, the same key tells.
            answer = await self._client.ask(
                "POST", f"/v1/sessions/{session}/{path}", body, Idempotency_Key=key
            )
        if answer is not None:
            self._history.counts[f"answers {answer.status}"] += 1
