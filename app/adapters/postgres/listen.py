"""Carries wake-ups by LISTEN and NOTIFY."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncpg

from app.adapters.postgres.database import Database

CHANNEL = "bearings"
ANSWER_SECONDS = 5.0
"""How long the server may take to be connected to, and to answer."""
QUIET_SECONDS = 15.0
"""How often the server is asked whether it is there: a host that vanished closes nothing."""


class PostgresCarrier:
    """One connection a replica listens; the pool's notify. See `app.adapters.signals.Carrier`.

    Behind a pooler in transaction mode nothing is heard: the server connection that was told to listen
    is another client's a moment later.
    """

    def __init__(self, database: Database) -> None:
        """Prepare; nothing is connected yet."""
        self._database = database

    async def publish(self, payload: str) -> None:
        """Notify in a transaction of its own: commits with a notification wait for one another."""
        await self._database.all(
            "SELECT pg_notify(:channel, :payload)", {"channel": CHANNEL, "payload": payload}
        )

    async def listen(self, on_payload: Callable[[str], None], on_ready: Callable[[], None]) -> None:
        """Hear until the server is gone, or silent though asked; behind a pooler nothing, for ever."""
        gone = asyncio.Event()
        if self._database.pooler:
            await gone.wait()

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            on_payload(str(payload))

        connection = await asyncpg.connect(self._database.url, timeout=ANSWER_SECONDS)
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(CHANNEL, hear)
            on_ready()
            while not gone.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_SECONDS):
                        await gone.wait()
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.execute("SELECT 1")
        finally:
            with suppress(Exception):
                await connection.close(timeout=1)

    async def close(self) -> None:
        """Leave the pool to whoever opened it."""
