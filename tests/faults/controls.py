"""Mistakes, made on purpose: the checker must see each of them, or it sees nothing.

Each is a switch of the test's replica and is made by changing the service's parts at start. A part that
has another form now is an error: a control that changes nothing would pass for a checker that sees.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from app.adapters.postgres import appending, leases, replies
from app.core.errors import Unavailable
from app.core.records import LogEntry
from app.engine import event_log, wakeups

FENCE = "AND epoch = :epoch AND owner = :owner"


def _edit(module: Any, name: str, old: str, new: str) -> None:
    text = getattr(module, name)
    if old not in text:
        raise RuntimeError(f"{name} has another form now: {old!r} is not in it")
    setattr(module, name, text.replace(old, new))


def fence_off() -> None:
    """Write whoever else holds the session."""
    _edit(appending, "HELD", FENCE, "")
    appending.statement.cache_clear()
    for name in ("_RENEW", "_RELEASE", "_HEAD", "_ENVIRONMENT"):
        _edit(leases, name, FENCE, "")


def serial_cursor() -> None:
    """Number events by a sequence before the session's row is locked: they no longer come in order."""
    with suppress(asyncpg.PostgresError):
        asyncio.run(_make_sequence(os.environ["BEARINGS_DATABASE_URL"]))

    def early(seconds: float) -> str:
        return (
            "WITH n AS MATERIALIZED (SELECT nextval('faults_serial') AS base), z AS MATERIALIZED "
            f"(SELECT base, pg_sleep(random() * {seconds}) FROM n), s AS ("
        )

    # A message takes its number and then takes its time; a reply that is being written overtakes it.
    for name in ("_SUBMIT", "_SUBMIT_AND_TAKE"):
        late = "next_seq = greatest(s.next_seq, (SELECT base FROM z) + 100)"
        _edit(replies, name, "next_seq = s.next_seq + 1", late)
        _edit(replies, name, "WITH s AS (", early(0.3))
        _edit(replies, name, "s.next_seq - 1 AS seq", "(SELECT base FROM z) AS seq")
    write = appending.statement

    def serial(shape: appending.Shape) -> str:
        text = write(shape)
        for old, new in (
            (
                "next_seq = next_seq + :count",
                "next_seq = greatest(next_seq, (SELECT base FROM z) + 100)",
            ),
            ("WITH s AS (", early(0.02)),
            ("next_seq - :count AS base", "(SELECT base FROM z) AS base"),
            ("head_seq = next_seq + ", "head_seq = (SELECT base FROM z) + "),
        ):
            if old not in text and not old.startswith("head_seq"):
                raise RuntimeError(f"an append has another form now: {old!r} is not in it")
            text = text.replace(old, new)
        # Every parameter has to be there still.
        return text.replace("SELECT base, ", "SELECT :count * 0 + base AS base, ")

    leases.statement = serial


async def _make_sequence(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        # A write takes one number, and its events those that follow it.
        await connection.execute("CREATE SEQUENCE faults_serial INCREMENT 1000")
    finally:
        await connection.close()


def blind_retry() -> None:
    """Send a write again when its answer was lost."""
    append, submit = leases.PostgresLeases.append, replies.PostgresReplies.submit

    def again(write: Callable[..., Any]) -> Callable[..., Any]:
        async def twice(*args: Any, **more: Any) -> Any:
            with suppress(Unavailable):
                return await write(*args, **more)
            return await write(*args, **more)

        return twice

    leases.PostgresLeases.append = again(append)
    replies.PostgresReplies.submit = again(submit)


def read_then_subscribe() -> None:
    """Look for events first and ask to be woken then, with nothing that polls."""
    wakeups.POLL_SECONDS = 1e9

    async def tail(
        self: Any, session_id: str, *, after: int, follow: bool = True, just_appended: bool = False
    ) -> AsyncGenerator[Sequence[LogEntry], None]:
        while True:
            entries = await self._log.read(session_id, after=after, limit=event_log.BATCH)
            if entries:
                yield entries
                after = entries[-1].seq
                continue
            if not follow or self._wakeups.closed:
                return
            # The hole, as wide as a busy machine makes it now and then.
            await asyncio.sleep(0.1)
            with self._wakeups.watch(session_id) as watch:
                await watch.wait()

    event_log.Logs.tail = tail


CONTROLS: dict[str, Callable[[], None]] = {
    "fence-off": fence_off,
    "serial-cursor": serial_cursor,
    "blind-retry": blind_retry,
    "read-then-subscribe": read_then_subscribe,
}
