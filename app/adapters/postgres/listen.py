"""Wake-ups between replicas by LISTEN and NOTIFY: coalesced, outside every append, hints only."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import structlog

from app.adapters.postgres.database import Database

log = structlog.get_logger()

CHANNEL = "bearings"
PAUSE_SECONDS = 0.03
"""How long wake-ups are collected before they are sent together."""
RETRY_SECONDS = 2.0
LAST_SEND_SECONDS = 1.0
MOST_BYTES = 7_500
"""Postgres refuses a payload of 8,000 bytes and more."""


class PostgresSignals:
    """Sends and receives wake-ups; see `app.ports.stores.Signals`.

    Losing one costs a reader at most a second, because everyone polls too. Without a direct connection
    (behind a pooler, say) nothing is received, and everything still works.
    """

    def __init__(
        self, database: Database, *, name: str, on_signal: Callable[[str, str], None]
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            database: Where wake-ups are sent.
            name: This replica, which does not hear its own.
            on_signal: Called with topic and session for each wake-up of another replica.
        """
        self._database = database
        self._name = name
        self._on_signal = on_signal
        self._waiting: dict[tuple[str, str], None] = {}
        self._something = asyncio.Event()
        self._gone = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, topic: str, session_id: str) -> None:
        """Tell the other replicas, soon; never blocks and never fails."""
        self._waiting[topic, session_id] = None
        self._something.set()

    async def start(self) -> None:
        """Begin to send and to listen."""
        self._tasks = [asyncio.create_task(self._send())]
        if not self._database.pooler:
            self._tasks.append(asyncio.create_task(self._listen()))

    async def stop(self) -> None:
        """Send what waits, and end both."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SEND_SECONDS):
                await self._flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._something.clear()
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for payload in _payloads(self._name, list(waiting)):
            try:
                await self._database.all(
                    "SELECT pg_notify(:channel, :payload)",
                    {"channel": CHANNEL, "payload": payload},
                )
            except Exception as error:  # noqa: BLE001 - a lost hint costs a poll, nothing else
                log.warning("wake-up not sent", error=str(error))
                return

    async def _listen(self) -> None:
        while True:
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect(self._database.url, timeout=5)
                self._gone.clear()
                connection.add_termination_listener(lambda _: self._gone.set())
                await connection.add_listener(CHANNEL, self._hear)
                await self._gone.wait()
            except Exception as error:  # noqa: BLE001 - polling goes on without it
                log.warning("not listening for wake-ups", error=str(error))
            finally:
                if connection is not None:
                    with suppress(Exception):
                        await connection.close(timeout=1)
            await asyncio.sleep(RETRY_SECONDS)

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *signals = str(payload).split(" ")
        if sender == self._name:
            return
        for signal in signals:
            topic, _, session_id = signal.partition(":")
            self._on_signal(topic, session_id)


def _payloads(name: str, signals: list[tuple[str, str]]) -> list[str]:
    """Write signals as few payloads as fit."""
    payloads = [name]
    for topic, session_id in signals:
        signal = f" {topic}:{session_id}"
        if len(payloads[-1]) + len(signal) > MOST_BYTES:
            payloads.append(name)
        payloads[-1] += signal
    return payloads
