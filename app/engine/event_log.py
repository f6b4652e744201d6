"""Reads a session's log from a number on: live and late readers run the same code."""

from collections.abc import AsyncGenerator, Sequence

from app.core.errors import CursorAhead, CursorGone
from app.core.records import LogEntry
from app.engine.wakeups import Wakeups
from app.ports.stores import EventLog

BATCH = 500
GONE = (
    "Events before number {oldest} are no longer kept: read the session's snapshot at "
    "/v1/sessions/{session_id} and go on from its last_seq."
)


class Logs:
    """The logs of all sessions."""

    def __init__(self, event_log: EventLog, wakeups: Wakeups) -> None:
        self._log = event_log
        self._wakeups = wakeups

    async def check_cursor(self, tenant: str, session_id: str, after: int) -> int:
        """Make sure that a reader can begin behind a number, and return the newest event's.

        Raises:
            NotFound: There is no such session.
            CursorGone: Events behind the number are no longer kept.
            CursorAhead: The number is beyond the log's end.
        """
        oldest, newest = await self._log.bounds(tenant, session_id)
        if after < oldest - 1:
            raise CursorGone(GONE.format(oldest=oldest, session_id=session_id))
        if after > newest:
            raise CursorAhead(
                f"The log ends at number {newest}; a cursor of {after} is none that it gave."
            )
        return newest

    async def bounds(self, tenant: str, session_id: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event kept.

        Raises:
            NotFound: There is no such session.
        """
        return await self._log.bounds(tenant, session_id)

    async def page(self, session_id: str, *, after: int, limit: int) -> list[LogEntry]:
        """Return the events behind a number, as many as there are up to a limit."""
        return await self._log.read(session_id, after=after, limit=limit)

    async def tail(
        self, session_id: str, *, after: int, follow: bool = True, just_appended: bool = False
    ) -> AsyncGenerator[Sequence[LogEntry], None]:
        """Read the log behind a number and, when following, wait for what comes.

        No connection is held while waiting. Whoever reads slowly is simply behind: nothing is kept
        for one reader.

        Args:
            session_id: Whose log; the caller has checked that it may be read.
            after: The last number that the reader has.
            follow: Whether to wait at the end of the log.
            just_appended: Whether the event behind `after` was appended by this process, just now: then
                memory tells it, and the store is not asked.

        Yields:
            The next events, at least one at a time. Ends when the session is deleted, when this
            process is about to end, or at the end of the log when not following.

        Raises:
            CursorGone: Events that the reader has not seen are no longer kept.
        """
        recent = self._wakeups.recent
        remembered = just_appended and bool(recent.after(session_id, after, limit=1))
        with self._wakeups.watch(session_id, stale=not remembered) as watch:
            while True:
                watch.clear()
                entries = recent.after(session_id, after, limit=BATCH)
                # Memory that ends where this reader stands answers for the store, unless somebody said
                # that it may lack something.
                at_end = follow and not watch.stale and recent.newest(session_id) == after
                if not entries and not at_end:
                    watch.stale = False
                    entries = await self._log.read(session_id, after=after, limit=BATCH)
                    # Only an empty answer says that the store has nothing more.
                    watch.stale = watch.stale or bool(entries)
                if entries:
                    if entries[0].seq != after + 1:
                        raise CursorGone(GONE.format(oldest=entries[0].seq, session_id=session_id))
                    yield entries
                    after = entries[-1].seq
                elif not follow or watch.gone or self._wakeups.closed:
                    return
                else:
                    await watch.wait()
