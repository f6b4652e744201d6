"""Accepted messages and the replies that answer them, in Postgres."""

import orjson

from app.adapters.postgres.database import Database, Row, Transaction, moment
from app.adapters.postgres.documents import read_messages
from app.adapters.postgres.once import happen_once
from app.adapters.postgres.paging import page, read_number
from app.adapters.postgres.sessions import no_session, usage_of
from app.core.errors import NotFound, SessionBusy
from app.core.events import UserInterruptEvent
from app.core.messages import ErrorInfo, Msg
from app.core.records import Accepted, Reply
from app.ports.stores import Made, Once, Page, Submission

_SUBMIT = """
WITH s AS (
  UPDATE sessions SET next_seq = next_seq + 1, queued = queued + 1, updated_at = clock_timestamp()
  WHERE id = :session AND tenant_id = :tenant
    AND (NOT :reject OR (queued = 0 AND reply_id IS NULL))
  RETURNING next_seq - 1 AS seq, epoch
), r AS (
  INSERT INTO replies (id, tenant_id, session_id, seq, message, context, max_iters)
  SELECT :reply, :tenant, :session, seq, CAST(:message AS json), CAST(:context AS json), :max_iters
  FROM s
)
INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
SELECT :session, seq, :tenant, epoch, :reply, 'MESSAGE_RECEIVED', CAST(:event AS json) FROM s
RETURNING seq
"""
_BUSY_WITH = """
SELECT coalesce(s.reply_id, (
  SELECT r.id FROM replies r WHERE r.session_id = s.id AND r.status = 'queued'
  ORDER BY r.seq LIMIT 1)) AS reply_id
FROM sessions s WHERE s.id = :session AND s.tenant_id = :tenant
"""
_COLUMNS = """
id, session_id, seq, message->>'id' AS message_id, status, finished_reason, error::text AS error,
input_tokens, output_tokens, cache_input_tokens, cache_creation_input_tokens,
created_at, started_at, finished_at
"""
_GET = f"""
SELECT {_COLUMNS} FROM replies WHERE id = :id AND session_id = :session AND tenant_id = :tenant
"""
_PAGE = f"""
SELECT {_COLUMNS} FROM replies
WHERE session_id = :session AND tenant_id = :tenant
  AND (CAST(:cursor AS bigint) IS NULL OR seq < :cursor)
ORDER BY seq DESC LIMIT :limit
"""
_MESSAGE = """
SELECT pos, data::text AS data FROM messages
WHERE session_id = :session AND id = :id AND tenant_id = :tenant ORDER BY pos DESC LIMIT 1
"""
_BLOCKS = """
SELECT pos, data::text AS data FROM blocks WHERE session_id = :session AND pos = :pos ORDER BY idx
"""
_LOCK = """
SELECT reply_id, interrupt FROM sessions WHERE id = :session AND tenant_id = :tenant FOR UPDATE
"""
_FIRST_QUEUED = """
SELECT id FROM replies WHERE session_id = :session AND status = 'queued' ORDER BY seq LIMIT 1
"""
_INTERRUPT = """
WITH s AS (
  UPDATE sessions SET interrupt = :reply, next_seq = next_seq + 1
  WHERE id = :session RETURNING next_seq - 1 AS seq, epoch
)
INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
SELECT :session, seq, :tenant, epoch, :reply, 'USER_INTERRUPT', CAST(:event AS json) FROM s
"""


class PostgresReplies:
    """Keeps replies; see `app.ports.stores.Replies`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(
        self, tenant: str, session_id: str, submission: Submission, *, once: Once | None
    ) -> Made[Accepted]:
        """Accept a message: when this returns, it will be answered, whatever happens."""
        values = {
            "session": session_id,
            "tenant": tenant,
            "reject": submission.on_busy == "reject",
            "reply": submission.reply_id,
            "message": submission.message.model_dump_json(),
            "context": orjson.dumps(submission.context).decode(),
            "max_iters": submission.max_iters,
            "event": submission.received.decode(),
        }
        if once is None:
            row = await self._database.first(_SUBMIT, values)
            if row is None:
                await self._refuse(tenant, session_id)
            return Made(_accepted(submission, row))

        async def work(transaction: Transaction) -> Accepted:
            row = await transaction.first(_SUBMIT, values)
            if row is None:
                await self._refuse(tenant, session_id)
            return _accepted(submission, row)

        return await happen_once(self._database, tenant, once, Accepted, work)

    async def get(self, tenant: str, session_id: str, reply_id: str) -> Reply:
        """Return a reply."""
        values = {"id": reply_id, "session": session_id, "tenant": tenant}
        row = await self._database.first(_GET, values)
        if row is None:
            raise NotFound(f"There is no reply {reply_id} in session {session_id}.")
        return _reply(row)

    async def page(
        self, tenant: str, session_id: str, *, limit: int, cursor: str | None
    ) -> Page[Reply]:
        """List a session's replies, newest first."""
        values = {
            "session": session_id,
            "tenant": tenant,
            "limit": limit + 1,
            "cursor": read_number(cursor, of="replies"),
        }
        rows = await self._database.all(_PAGE, values)
        if not rows:
            await self._find(tenant, session_id)
        return page(rows, limit=limit, of="replies", item=_reply, place=lambda row: row.seq)

    async def message(self, tenant: str, session_id: str, reply_id: str) -> Msg | None:
        """Return the message that a reply has written, None when it has written none."""
        values = {"session": session_id, "id": reply_id, "tenant": tenant}
        row = await self._database.first(_MESSAGE, values)
        if row is None:
            return None
        blocks = await self._database.all(_BLOCKS, {"session": session_id, "pos": row.pos})
        return read_messages([row], blocks)[row.pos]

    async def interrupt(self, tenant: str, session_id: str) -> str | None:
        """Ask that the reply which is written now, or comes next, be stopped."""
        found: dict[str, object] = {"session": session_id, "tenant": tenant}
        async with self._database.begin() as transaction:
            row = await transaction.first(_LOCK, found)
            if row is None:
                raise no_session(session_id)
            reply_id: str | None = row.reply_id
            if reply_id is None:
                # In a statement of its own, behind the lock: a reply may just have ended.
                queued = await transaction.first(_FIRST_QUEUED, {"session": session_id})
                reply_id = None if queued is None else queued.id
            if reply_id is not None and row.interrupt != reply_id:
                event = UserInterruptEvent(reply_id=reply_id).encode().decode()
                await transaction.run(_INTERRUPT, found | {"reply": reply_id, "event": event})
            return reply_id

    async def _find(self, tenant: str, session_id: str) -> Row:
        row = await self._database.first(_BUSY_WITH, {"session": session_id, "tenant": tenant})
        if row is None:
            raise no_session(session_id)
        return row

    async def _refuse(self, tenant: str, session_id: str) -> None:
        """Say why a message was not accepted."""
        row = await self._find(tenant, session_id)
        raise SessionBusy(
            "The session is writing a reply: wait for it, interrupt it, or send with on_busy "
            '"enqueue".',
            reply_id=row.reply_id or "",
        )


def _accepted(submission: Submission, row: Row | None) -> Accepted:
    seq: int = row.seq if row is not None else 0
    return Accepted(
        reply_id=submission.reply_id,
        message_id=submission.message.id,
        after_seq=seq - 1,
        status="queued",
    )


def _reply(row: Row) -> Reply:
    return Reply.model_construct(
        id=row.id,
        session_id=row.session_id,
        message_id=row.message_id,
        status=row.status,
        finished_reason=row.finished_reason,
        error=None if row.error is None else ErrorInfo.model_validate(orjson.loads(row.error)),
        usage=usage_of(row),
        created_at=moment(row.created_at),
        started_at=None if row.started_at is None else moment(row.started_at),
        finished_at=None if row.finished_at is None else moment(row.finished_at),
    )
