"""Replicas that do nothing but send and hear wake-ups."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

from app.adapters.signals import Carrier, CoalescedSignals

PATIENCE_SECONDS = 30
_rounds = count()


class Member:
    """One replica, and what it has heard beside greetings."""

    def __init__(self, carrier: Carrier, name: str) -> None:
        self.signals = CoalescedSignals(carrier, name=name, on_signal=self._hear)
        self.name = name
        self.heard: list[tuple[str, str]] = []
        self.greeted: set[str] = set()
        self._more = asyncio.Event()

    def send(self, topic: str, subject: str) -> None:
        self.signals.send(topic, subject)

    async def until(self, topic: str, subject: str) -> None:
        """Wait until a wake-up was heard."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (topic, subject) not in self.heard:
                self._more.clear()
                await self._more.wait()

    def _hear(self, topic: str, subject: str) -> None:
        if topic == "hello":
            self.greeted.add(subject)
        else:
            self.heard.append((topic, subject))
            self._more.set()


@asynccontextmanager
async def member(carrier: Carrier, name: str) -> AsyncGenerator[Member, None]:
    made = Member(carrier, name)
    await made.signals.start()
    try:
        yield made
    finally:
        await made.signals.stop()


async def meet(*members: Member) -> None:
    """Let everyone greet until everyone was heard by all others: all connections stand from here."""
    this = next(_rounds)
    greetings = {each.name: f"{each.name}/{this}" for each in members}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            for each in members:
                each.send("hello", greetings[each.name])
            await asyncio.sleep(0.01)
            if all(
                greetings[other.name] in each.greeted
                for each in members
                for other in members
                if other is not each
            ):
                return
