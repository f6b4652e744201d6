"""The logs of all sessions, as readers see them."""

from collections.abc import Sequence
from datetime import timedelta

from app.adapters.postgres.database import Database
from app.adapters.postgres.sessions import no_session
from app.core.records import LogEntry
from app.ports.stores import Position

_BOUNDS = """
SELECT oldest_seq, next_seq - 1 AS last FROM sessions WHERE id = :id AND tenant_id = :tenant
"""
# At least one, and no more than fit: a reader holds what it was given until it has taken it.
_READ = """
SELECT seq, type, reply_id, data FROM (
  SELECT seq, type, reply_id, data::text AS data,
    sum(octet_length(data::text)) OVER (ORDER BY seq) AS total
  FROM events WHERE session_id = :id AND seq > :after ORDER BY seq LIMIT :limit
) AS e WHERE total - octet_length(data) < :size ORDER BY seq
"""
_POSITIONS = """
SELECT id, next_seq - 1 AS last, interrupt, withdraw FROM sessions WHERE id = ANY(CAST(:ids AS text[]))
"""


_OLD = """
SELECT s.id FROM sessions s
WHERE s.id > :cursor AND clock_timestamp() - make_interval(secs => :age) >
  (SELECT e.at FROM events e WHERE e.session_id = s.id ORDER BY e.seq LIMIT 1)
ORDER BY s.id LIMIT :limit
"""
# First the number, then the rows: a reader that comes in between is told that they are gone.
_GIVE_UP = """
UPDATE sessions s SET oldest_seq = greatest(s.oldest_seq, least(s.head_seq + 1, coalesce((
  SELECT e.seq FROM events e LEFT JOIN replies r ON r.id = e.reply_id
  WHERE e.session_id = s.id AND (r.status <> 'ended'
    OR e.at >= clock_timestamp() - make_interval(secs => :age))
  ORDER BY e.seq LIMIT 1), s.head_seq + 1)))
WHERE s.id = :id RETURNING s.oldest_seq
"""
_DROP = "DELETE FROM events WHERE session_id = :id AND seq < :oldest"
SESSIONS_AT_ONCE = 200
MOST_BYTES = 128 * 1024
"""Of events that are read at once; the last of them may go beyond."""


class PostgresEventLog:
    """Reads logs; see `app.ports.stores.EventLog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def bounds(self, tenant: str, session_id: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event kept; (1, 0) for an empty log."""
        row = await self._database.first(_BOUNDS, {"id": session_id, "tenant": tenant})
        if row is None:
            raise no_session(session_id)
        return row.oldest_seq, row.last

    async def read(self, session_id: str, *, after: int, limit: int) -> list[LogEntry]:
        """Return the events behind a number, in order."""
        wanted = {"id": session_id, "after": after, "limit": limit, "size": MOST_BYTES}
        rows = await self._database.all(_READ, wanted)
        return [LogEntry(row.seq, row.type, row.reply_id, row.data.encode()) for row in rows]

    async def positions(self, session_ids: Sequence[str]) -> dict[str, Position]:
        """Say how far each of these sessions is; one that is deleted is left out."""
        rows = await self._database.all(_POSITIONS, {"ids": list(session_ids)})
        return {row.id: Position(row.last, row.interrupt, row.withdraw) for row in rows}

    async def prune(self, older_than: timedelta) -> int:
        """Drop the old beginnings of logs, and return how many events that were."""
        values = {"cursor": "", "age": older_than.total_seconds(), "limit": SESSIONS_AT_ONCE}
        dropped = 0
        while rows := await self._database.all(_OLD, values):
            for row in rows:
                names = {"id": row.id, "age": values["age"]}
                kept = await self._database.first(_GIVE_UP, names)
                if kept is not None:
                    names["oldest"] = kept.oldest_seq
                    dropped += await self._database.run(_DROP, names)
            values["cursor"] = rows[-1].id
        return dropped
