"""The logs of all sessions, as readers see them."""

from collections.abc import Sequence

from app.adapters.postgres.database import Database
from app.adapters.postgres.sessions import no_session
from app.core.records import LogEntry
from app.ports.stores import Position

_BOUNDS = """
SELECT oldest_seq, next_seq - 1 AS last FROM sessions WHERE id = :id AND tenant_id = :tenant
"""
_READ = """
SELECT seq, type, reply_id, data::text AS data FROM events
WHERE session_id = :id AND seq > :after ORDER BY seq LIMIT :limit
"""
_POSITIONS = """
SELECT id, next_seq - 1 AS last, interrupt, withdraw FROM sessions WHERE id = ANY(CAST(:ids AS text[]))
"""


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
        rows = await self._database.all(_READ, {"id": session_id, "after": after, "limit": limit})
        return [LogEntry(row.seq, row.type, row.reply_id, row.data.encode()) for row in rows]

    async def positions(self, session_ids: Sequence[str]) -> dict[str, Position]:
        """Say how far each of these sessions is; one that is deleted is left out."""
        rows = await self._database.all(_POSITIONS, {"ids": list(session_ids)})
        return {row.id: Position(row.last, row.interrupt, row.withdraw) for row in rows}
