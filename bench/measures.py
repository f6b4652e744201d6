"""Sends messages and takes the time of what comes back."""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median

from bench.targets import Target, cpu_seconds

JSON = {"Accept": "text/event-stream"}


@dataclass
class Round:
    """What a number of replies took."""

    replies: list[float] = field(default_factory=list)
    first_events: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    events: int = 0
    wall: float = 0
    cpu: float = 0

    def add(self, other: "Round") -> None:
        self.replies += other.replies
        self.first_events += other.first_events
        self.first_tokens += other.first_tokens
        self.events += other.events
        self.wall += other.wall
        self.cpu += other.cpu

    def p(self, share: float) -> float:
        """A reply's time in ms at a share of all."""
        ordered = sorted(self.replies)
        return 1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    @property
    def first_event_ms(self) -> float:
        return 1000 * median(self.first_events)

    @property
    def first_token_ms(self) -> float:
        return 1000 * median(self.first_tokens)

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu / len(self.replies)

    @property
    def per_second(self) -> float:
        return len(self.replies) / self.wall


async def one(target: Target, address: str, into: Round, *, content: str = "hi") -> None:
    begun = time.perf_counter()
    first = token = None
    async with target.client.post(address, json={"content": content}, headers=JSON) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data:"):
                into.events += 1
                now = time.perf_counter()
                first = first or now
                if token is None and b"TEXT_BLOCK_DELTA" in line:
                    token = now
    assert first is not None
    assert token is not None
    into.replies.append(time.perf_counter() - begun)
    into.first_events.append(first - begun)
    into.first_tokens.append(token - begun)


async def replies(target: Target, addresses: list[str], count: int) -> Round:
    """Take `count` replies, one at a time in each session, all sessions at once."""
    taken, left = Round(), count

    async def talk(address: str) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one(target, address, taken)

    cpu, begun = cpu_seconds(target.pid), time.perf_counter()
    await asyncio.gather(*[talk(address) for address in addresses])
    taken.wall = time.perf_counter() - begun
    taken.cpu = cpu_seconds(target.pid) - cpu
    return taken


async def interleaved(
    targets: list[Target], *, model: str, sessions: int, count: int, rounds: int
) -> dict[str, Round]:
    """Measure targets in turns, A B C A B C …, so that the machine's moods hit all alike."""
    addresses = {
        target.name: [await target.session(model) for _ in range(sessions)] for target in targets
    }
    for target in targets:
        await replies(target, addresses[target.name], max(sessions, 5))
    taken = {target.name: Round() for target in targets}
    for _ in range(rounds):
        for target in targets:
            taken[target.name].add(
                await replies(target, addresses[target.name], max(count // rounds, 1))
            )
    return taken
