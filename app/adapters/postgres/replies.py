"""Accepted messages and the replies that answer them, in Postgres."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.adapters.postgres.database import Database, Executor, Row, Transaction, moment
from app.adapters.postgres.documents import read_messages
from app.adapters.postgres.leases import CLAIMED, PostgresLeases
from app.adapters.postgres.once import happen_once
from app.adapters.postgres.paging import page, read_number
from app.adapters.postgres.sessions import no_session, usage_of
from app.core.errors import BearingsError, Conflict, NotFound, SessionBusy
from app.core.events import Event, UserInterruptEvent
from app.core.messages import ErrorInfo, Msg
from app.core.records import Accepted, PendingCall, Reply
from app.ports.stores import Made, Once, Page, Submission, Submitted, Taker

_IDLE = "s.queued = 0 AND s.reply_id IS NULL AND s.lease_until < clock_timestamp()"
_TAKE = f""",
    owner = CASE WHEN {_IDLE} THEN :owner ELSE s.owner END,
    epoch = CASE WHEN {_IDLE} THEN s.epoch + 1 ELSE s.epoch END,
    attempts = CASE WHEN {_IDLE} THEN 1 ELSE s.attempts END,
    lease_until = CASE WHEN {_IDLE} THEN clock_timestamp() + make_interval(secs => :ttl)
      ELSE s.lease_until END"""
_SUBMIT_AND = """
WITH s AS (
  UPDATE sessions s SET next_seq = s.next_seq + 1, queued = s.queued + 1,
    updated_at = clock_timestamp(){take}
  WHERE s.id = :session AND s.tenant_id = :tenant
    AND (NOT :reject OR (s.queued = 0 AND s.reply_id IS NULL))
  RETURNING s.next_seq - 1 AS seq, {columns}
), r AS (
  INSERT INTO replies (id, tenant_id, session_id, seq, message, context, max_iters)
  SELECT :reply, :tenant, :session, seq, CAST(:message AS json), CAST(:context AS json), :max_iters
  FROM s
), e AS (
  INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
  SELECT :session, seq, :tenant, epoch, :reply, 'MESSAGE_RECEIVED', CAST(:event AS json) FROM s
)
SELECT * FROM s
"""
_SUBMIT = _SUBMIT_AND.format(take="", columns="s.epoch, false AS taken")
_SUBMIT_AND_TAKE = _SUBMIT_AND.format(take=_TAKE, columns=f"s.owner = :owner AS taken, {CLAIMED}")
_STEER = """
WITH s AS (
  UPDATE sessions SET next_seq = next_seq + 1, inputs = inputs + 1, updated_at = clock_timestamp()
  WHERE id = :session RETURNING next_seq - 1 AS seq, epoch, pending
), i AS (
  INSERT INTO inputs (session_id, seq, tenant_id, reply_id, message_id, message)
  SELECT :session, seq, :tenant, :reply, :message_id, CAST(:message AS json) FROM s
), e AS (
  INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
  SELECT :session, seq, :tenant, epoch, :reply, 'MESSAGE_RECEIVED', CAST(:event AS json) FROM s
)
SELECT seq, pending FROM s
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
SELECT reply_id, interrupt, withdraw, pending FROM sessions
WHERE id = :session AND tenant_id = :tenant FOR UPDATE
"""
_FIRST_QUEUED = """
SELECT id FROM replies WHERE session_id = :session AND status = 'queued' ORDER BY seq LIMIT 1
"""
# Whoever waits for people goes on to its end: the session is there to be taken.
_STOP = """
UPDATE sessions SET interrupt = :reply, withdraw = :withdraw, next_seq = next_seq + :count,
  pending = CASE WHEN reply_id = :reply THEN 0 ELSE pending END,
  lease_until = CASE WHEN reply_id = :reply AND pending > 0 THEN timestamptz '-infinity'
    ELSE lease_until END
WHERE id = :session RETURNING next_seq - 1 AS seq, epoch
"""
_EVENT = """
INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
VALUES (:session, :seq, :tenant, :epoch, :reply, :type, CAST(:event AS json))
"""
_PENDING = """
SELECT call_id, data::text AS data FROM pending_calls
WHERE session_id = :session AND reply_id = :reply AND call_id = ANY(CAST(:calls AS text[]))
"""
_ANSWERED = """
DELETE FROM pending_calls
WHERE session_id = :session AND reply_id = :reply AND call_id = ANY(CAST(:calls AS text[]))
"""
_ANSWER = """
UPDATE sessions SET pending = pending - :count, next_seq = next_seq + 1,
  lease_until = CASE WHEN pending = :count THEN timestamptz '-infinity' ELSE lease_until END,
  updated_at = clock_timestamp()
WHERE id = :session RETURNING next_seq - 1 AS seq, epoch, pending
"""
_ANSWERS_WHAT = "SELECT message->>'id' AS message_id FROM replies WHERE id = :reply"


class PostgresReplies:
    """Keeps replies; see `app.ports.stores.Replies`."""

    def __init__(self, database: Database, leases: PostgresLeases) -> None:
        self._database = database
        self._leases = leases

    async def submit(
        self,
        tenant: str,
        session_id: str,
        submission: Submission,
        *,
        once: Once | None,
        taker: Taker | None = None,
    ) -> Submitted:
        """Accept a message: when this returns, it will be answered, whatever happens."""
        found, done = {"session": session_id, "tenant": tenant}, _Done()

        async def work(transaction: Transaction) -> Accepted:
            return await self._submit(transaction, found, submission, taker=taker, done=done)

        if once is None and submission.on_busy in {"enqueue", "reject"}:
            # One statement is a transaction by itself.
            made = Made(
                await self._submit(self._database, found, submission, taker=taker, done=done)
            )
        else:
            made = await happen_once(self._database, tenant, once, Accepted, work)
        claim = None
        if taker is not None and done.taken is not None:
            claim = await self._leases.claimed(done.taken, owner=taker.owner)
        return Submitted(made, claim, done.stopped)

    async def _submit(
        self,
        on: Executor,
        found: Mapping[str, str],
        submission: Submission,
        *,
        taker: Taker | None,
        done: "_Done",
    ) -> Accepted:
        if submission.on_busy not in {"enqueue", "reject"}:
            row = await on.first(_LOCK, found)
            if row is None:
                raise no_session(found["session"])
            if submission.on_busy != "steer":
                withdraw = submission.on_busy == "rollback"
                done.stopped = await _stop(on, found, row, withdraw=withdraw) or ""
            elif row.reply_id is not None and row.interrupt != row.reply_id:
                return await _steer(on, found, submission, row.reply_id)
        received = submission.received(submission.reply_id)
        values: dict[str, object] = {
            **found,
            "reject": submission.on_busy == "reject",
            "reply": submission.reply_id,
            "message": submission.message.model_dump_json(),
            "context": orjson.dumps(submission.context).decode(),
            "max_iters": submission.max_iters,
            "event": received.encode().decode(),
        }
        if taker is None:
            row = await on.first(_SUBMIT, values)
        else:
            values |= {"owner": taker.owner, "ttl": taker.ttl.total_seconds()}
            row = await on.first(_SUBMIT_AND_TAKE, values)
        if row is None:
            raise await self._refusal(found["tenant"], found["session"])
        done.taken = row if row.taken else None
        return Accepted(
            reply_id=submission.reply_id,
            message_id=submission.message.id,
            after_seq=row.seq - 1,
            status="queued",
        )

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

    async def answer(
        self,
        tenant: str,
        session_id: str,
        call_ids: Sequence[str],
        tell: Callable[[str, Sequence[PendingCall]], Event],
        *,
        once: Once | None,
    ) -> Made[Accepted]:
        """Take answers for calls that wait; the reply goes on when none is left."""
        names: dict[str, object] = {"session": session_id, "tenant": tenant}

        async def work(transaction: Transaction) -> Accepted:
            row = await transaction.first(_LOCK, names)
            if row is None:
                raise no_session(session_id)
            answered = names | {"reply": row.reply_id or "", "calls": list(call_ids)}
            # Those of a reply that is being stopped are no longer waited for.
            rows = await transaction.all(_PENDING, answered)
            waiting = {
                each.call_id: PendingCall.model_validate_json(each.data)
                for each in rows
                if row.pending
            }
            if missing := [call_id for call_id in call_ids if call_id not in waiting]:
                raise Conflict(f"No call {missing[0]} waits for an answer here, or no longer.")
            event = tell(row.reply_id, [waiting[call_id] for call_id in call_ids])
            await transaction.run(_ANSWERED, answered)
            after = await transaction.one(_ANSWER, names | {"count": len(call_ids)})
            await _tell(transaction, names, after, event)
            message = await transaction.one(_ANSWERS_WHAT, {"reply": row.reply_id})
            return Accepted(
                reply_id=row.reply_id,
                message_id=message.message_id,
                after_seq=after.seq - 1,
                status="awaiting" if after.pending else "running",
            )

        return await happen_once(self._database, tenant, once, Accepted, work)

    async def interrupt(self, tenant: str, session_id: str) -> str | None:
        """Ask that the reply which is written now, or comes next, be stopped."""
        found: dict[str, object] = {"session": session_id, "tenant": tenant}
        async with self._database.begin() as transaction:
            row = await transaction.first(_LOCK, found)
            if row is None:
                raise no_session(session_id)
            return await _stop(transaction, found, row, withdraw=False)

    async def _find(self, tenant: str, session_id: str) -> Row:
        row = await self._database.first(_BUSY_WITH, {"session": session_id, "tenant": tenant})
        if row is None:
            raise no_session(session_id)
        return row

    async def _refusal(self, tenant: str, session_id: str) -> BearingsError:
        """Say why a message was not accepted."""
        row = await self._find(tenant, session_id)
        return SessionBusy(
            "The session is writing a reply: wait for it, interrupt it, or send with another "
            "on_busy.",
            reply_id=row.reply_id or "",
        )


@dataclass
class _Done:
    """What accepting a message has done beside: the session that was taken, the reply stopped."""

    taken: Row | None = None
    stopped: str = ""


async def _stop(
    on: Executor, names: Mapping[str, object], row: Row, *, withdraw: bool
) -> str | None:
    """Have the reply stopped that is written, waits or comes next; the session's row is locked."""
    reply_id: str | None = row.reply_id
    if reply_id is None:
        # In a statement of its own, behind the lock: a reply may just have ended.
        queued = await on.first(_FIRST_QUEUED, names)
        reply_id = None if queued is None else queued.id
    if reply_id is None:
        return None
    told = row.interrupt == reply_id
    if told and (row.withdraw or not withdraw):
        return reply_id
    values = {**names, "reply": reply_id, "withdraw": withdraw, "count": 0 if told else 1}
    after = await on.one(_STOP, values)
    if not told:
        await _tell(on, names, after, UserInterruptEvent(reply_id=reply_id))
    return reply_id


async def _steer(
    on: Executor, names: Mapping[str, object], submission: Submission, reply_id: str
) -> Accepted:
    """Have a message join the reply that is written or waits; the session's row is locked."""
    values = {
        **names,
        "reply": reply_id,
        "message_id": submission.message.id,
        "message": submission.message.model_dump_json(),
        "event": submission.received(reply_id).encode().decode(),
    }
    row = await on.one(_STEER, values)
    return Accepted(
        reply_id=reply_id,
        message_id=submission.message.id,
        after_seq=row.seq - 1,
        status="awaiting" if row.pending else "running",
    )


async def _tell(on: Executor, names: Mapping[str, object], at: Row, event: Event) -> None:
    """Append an event with a number that was just taken."""
    values = {
        **names,
        "seq": at.seq,
        "epoch": at.epoch,
        "reply": event.reply_id,
        "type": event.type,
        "event": event.encode().decode(),
    }
    await on.run(_EVENT, values)


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
