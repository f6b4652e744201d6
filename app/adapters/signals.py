"""Wake-ups between replicas: coalesced, outside every append, hints only, whatever carries them."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import structlog

log = structlog.get_logger()

PAUSE_SECONDS = 0.03
"""How long wake-ups are collected behind a sending, before they are sent together."""
RETRY_SECONDS = 2.0
"""The longest pause after a failure; the first is twice `PAUSE_SECONDS`, each next twice the last."""
LAST_SECONDS = 0.5
"""How long `stop` may send, and how long it may then take to let go of the connections."""
MOST_WAITING = 10_000
"""Wake-ups kept while nothing can be sent; who waits for those beyond finds out by polling."""
MOST_BYTES = 7_500
"""Postgres refuses a payload of 8,000 bytes and more."""


class Carrier(Protocol):
    """Takes payloads from one replica to all of them; any may be lost, none comes in pieces."""

    async def publish(self, payload: str) -> None:
        """Send a payload of one line to everyone who listens, the sender too.

        Raises:
            Exception: It was not sent; whatever is raised counts as that.
        """
        ...

    async def listen(self, on_payload: Callable[[str], None], on_ready: Callable[[], None]) -> None:
        """Hear payloads until the connection is gone, which is the end or an error of this call.

        Args:
            on_payload: Called with each.
            on_ready: Called when payloads are heard from now on.

        Raises:
            Exception: It cannot be listened, or no longer; whatever is raised counts as that.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection that is its own."""
        ...


class CoalescedSignals:
    """Sends and receives wake-ups over a carrier; see `app.ports.stores.Signals`.

    The first wake-up goes at once, and those that come in the next 30 ms go together. Losing one costs
    a reader at most a second, because everyone polls too. A carrier that is away, from the start or
    later, is tried again and again, at most two seconds apart; it is logged when it goes and when it is
    back.
    """

    def __init__(
        self, carrier: Carrier, *, name: str, on_signal: Callable[[str, str], None]
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            carrier: What takes wake-ups to the other replicas; closed at the end.
            name: This replica, which does not hear its own.
            on_signal: Called with topic and subject for each wake-up of another replica.
        """
        self._carrier = carrier
        self._name = name
        self._on_signal = on_signal
        self._waiting: dict[tuple[str, str], None] = {}
        self._something = asyncio.Event()
        self._ending = asyncio.Event()
        self._sends, self._hears = _Way("sending"), _Way("listening")
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, topic: str, subject: str) -> None:
        """Tell the other replicas, soon; never blocks and never fails."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting[topic, subject] = None
        self._something.set()

    async def start(self) -> None:
        """Begin to send and to listen, whether the carrier is there or not."""
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Send what waits, and end both; at most a second."""
        self._ending.set()
        self._something.set()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=LAST_SECONDS)
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            async with asyncio.timeout(LAST_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._carrier.close()

    async def _send(self) -> None:
        while not self._ending.is_set():
            await self._something.wait()
            self._something.clear()
            await self._flush()
            await self._rest(self._sends.pause())
        await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        try:
            for payload in _payloads(self._name, waiting):
                await self._carrier.publish(payload)
                self._sends.works()
        except Exception as error:  # noqa: BLE001 - a lost hint costs a poll, nothing else
            self._sends.failed(error)

    async def _listen(self) -> None:
        while not self._ending.is_set():
            try:
                await self._carrier.listen(self._hear, self._hears.works)
                self._hears.failed(ConnectionResetError("the connection was closed"))
            except Exception as error:  # noqa: BLE001 - polling goes on without it
                self._hears.failed(error)
            await self._rest(self._hears.pause())

    async def _rest(self, seconds: float) -> None:
        """Pause, but not beyond the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    def _hear(self, payload: str) -> None:
        sender, *signals = payload.split(" ")
        if sender == self._name:
            return
        for signal in signals:
            topic, _, subject = signal.partition(":")
            self._on_signal(topic, subject)


class _Way:
    """Whether one direction works: each change is logged once, and failures grow the pause."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0

    def works(self) -> None:
        if self._failures:
            log.info("wake-ups again", way=self._name)
        self._failures = 0

    def failed(self, error: Exception) -> None:
        if not self._failures:
            said = str(error) or type(error).__name__
            log.warning("no wake-ups, polling goes on", way=self._name, error=said)
        self._failures += 1

    def pause(self) -> float:
        return min(PAUSE_SECONDS * 2.0 ** min(self._failures, 10), RETRY_SECONDS)


def _payloads(name: str, signals: Iterable[tuple[str, str]]) -> list[str]:
    """Write signals as few payloads as fit; none, when there are none."""
    payloads: list[str] = []
    for topic, subject in signals:
        signal = f" {topic}:{subject}"
        if not payloads or len(payloads[-1]) + len(signal) > MOST_BYTES:
            payloads.append(name)
        payloads[-1] += signal
    return payloads
