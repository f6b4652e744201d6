"""One writer a session: leases with a fence, and the one statement that writes.

The invariant of every write: it is one statement whose first act is to update the session's row where
epoch and owner are still the lease's. No row: the lease is lost, and nothing at all was written. The
numbers of events come from that row too, so the order of commits is the order of numbers.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import orjson

from app.adapters.postgres.agents import agent_of
from app.adapters.postgres.database import Database, Row, Transaction
from app.adapters.postgres.documents import head_json, message_rows, read_state
from app.adapters.postgres.sessions import read_context
from app.core.apply import Calls, Standing
from app.core.errors import BearingsError, Fenced
from app.core.events import decode
from app.core.messages import Msg
from app.core.records import NO_USAGE, Agent, Environment
from app.core.state import TasksContext
from app.ports.leases import (
    Appended,
    Batch,
    Claim,
    Continued,
    Ended,
    Joined,
    Lease,
    Loaded,
    Parked,
    Queued,
    Started,
    Wanted,
)

CLAIMED = """
s.id, s.tenant_id, s.epoch, s.agent_id, s.agent_version, s.state_version, s.reply_id,
s.attempts, s.interrupt, s.withdraw, s.inputs, s.queued, s.environment::text AS environment,
s.environment_version,
(SELECT version FROM agents WHERE agents.id = s.agent_id) AS newest_version
"""
"""What is read of a session that is taken."""

_CLAIM = f"""
WITH picked AS (
  SELECT id FROM sessions
  WHERE ((queued > 0 AND reply_id IS NULL) OR (reply_id IS NOT NULL AND pending = 0))
    AND lease_until < clock_timestamp() AND {{which}}
  ORDER BY reply_id IS NULL, updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE sessions s SET owner = :owner, epoch = s.epoch + 1,
  lease_until = clock_timestamp() + make_interval(secs => :ttl),
  attempts = s.attempts + 1
FROM picked WHERE s.id = picked.id
RETURNING {CLAIMED}
"""
_CLAIM_ANY = _CLAIM.format(which="id <> ALL(CAST(:apart_from AS text[]))")
_CLAIM_ONE = _CLAIM.format(which="id = :session")
_AGENT = """
SELECT a.id, v.version, v.spec::text AS spec, a.created_at, v.created_at AS updated_at
FROM agents a JOIN agent_versions v ON v.agent_id = a.id
WHERE a.id = :id AND v.version = :version
"""
_REPLY = "id, message::text AS message, context::text AS context, max_iters, tasks::text AS tasks"
_RUNNING = f"""
SELECT {_REPLY}, agent_version, status = 'awaiting' AS parked FROM replies WHERE id = :id
"""
_NEXT = f"""
SELECT {_REPLY}, false AS parked FROM replies
WHERE session_id = :session AND status = 'queued' ORDER BY seq LIMIT 1
"""
_HEAD = """
SELECT head::text AS head, head_seq, answered, calls::text AS calls, context_from, reply_id
FROM sessions WHERE id = :session AND epoch = :epoch AND owner = :owner
"""
_EVENTS_SINCE = """
SELECT data::text AS data FROM events WHERE session_id = :session AND seq > :seq ORDER BY seq
"""
_HELD = "WHERE id = :session AND epoch = :epoch AND owner = :owner"
_WANTED = "interrupt, withdraw, inputs, queued, environment_version"
_RENEW = f"""
UPDATE sessions SET lease_until = clock_timestamp() + make_interval(secs => :ttl)
{_HELD} RETURNING next_seq AS base, {_WANTED}, false AS released
"""
_LOOK = f"SELECT next_seq AS base, {_WANTED}, false AS released FROM sessions {_HELD}"
_RELEASE = f"""
UPDATE sessions SET owner = '',
  lease_until = clock_timestamp() + make_interval(secs => :pause)
{_HELD}
"""
_ABANDON = """
UPDATE sessions SET owner = '', lease_until = '-infinity' WHERE id = :session AND owner = :owner
"""
_ENVIRONMENT = f"""
SELECT environment::text AS environment, environment_version FROM sessions {_HELD}
"""
_INPUTS = """
SELECT i.message::text AS message
FROM sessions s JOIN inputs i ON i.session_id = s.id AND i.reply_id = s.reply_id
WHERE s.id = :session AND s.epoch = :epoch AND s.owner = :owner ORDER BY i.seq
"""


@dataclass(frozen=True)
class _Shape:
    """What a batch holds beside its events; each shape has a statement of its own."""

    saves: bool
    trims: bool
    starts: bool
    continues: bool
    joins: bool
    parks: bool
    ends: bool

    @classmethod
    def of(cls, batch: Batch) -> "_Shape":
        """Look at a batch."""
        kinds = {type(each) for each in batch.transitions}
        saved = batch.checkpoint
        return cls(
            saves=saved is not None,
            trims=saved is not None and bool(saved.trims),
            starts=Started in kinds,
            continues=Continued in kinds,
            joins=Joined in kinds,
            parks=Parked in kinds,
            ends=Ended in kinds,
        )


@cache
def _append(shape: _Shape) -> str:
    """Write the statement that appends a batch: what most batches lack is not in it."""
    sets = ["next_seq = next_seq + :count"]
    conditions = _HELD
    starts = int(shape.starts)
    if shape.saves:
        sets += [
            "head = CAST(:head AS json)",
            "head_seq = next_seq + :after - 1",
            "answered = :answered",
            "calls = CAST(:calls AS json)",
            "state_version = state_version + 1",
            "attempts = CASE WHEN :progress THEN 0 ELSE attempts END",
            "updated_at = clock_timestamp()",
        ]
    if shape.starts:
        sets.append("queued = queued - 1")
    if shape.joins:
        sets.append("inputs = inputs - :joins")
    if shape.ends:
        sets += [
            "reply_id = NULL",
            "pending = 0",
            "interrupt = CASE WHEN interrupt = :reply THEN '' ELSE interrupt END",
            "withdraw = CASE WHEN interrupt = :reply THEN false ELSE withdraw END",
            "input_tokens = input_tokens + :t_in",
            "output_tokens = output_tokens + :t_out",
            "cache_input_tokens = cache_input_tokens + :t_cache",
            "cache_creation_input_tokens = cache_creation_input_tokens + :t_make",
        ]
        # People may want something of the reply that its holder does not know yet.
        conditions += """
          AND inputs = :joins AND (interrupt <> :reply
            OR (CAST(:reason AS text) = 'interrupted' AND (:withdrawn OR NOT withdraw)))"""
    elif shape.starts:
        sets.append("reply_id = :reply")
    if shape.parks:
        sets += [
            "pending = CASE WHEN interrupt = :reply THEN 0 ELSE :waiting END",
            "owner = CASE WHEN interrupt = :reply THEN owner ELSE '' END",
            "lease_until = CASE WHEN interrupt = :reply THEN timestamptz '-infinity' "
            "ELSE timestamptz 'infinity' END",
        ]
    elif shape.ends:
        sets.append(
            f"lease_until = CASE WHEN queued = {starts} THEN timestamptz '-infinity' "
            "ELSE clock_timestamp() + make_interval(secs => :ttl) END"
        )
    else:
        sets.append("lease_until = clock_timestamp() + make_interval(secs => :ttl)")
    released = "true" if shape.parks else "queued = 0" if shape.ends else "false"
    parts = [
        f"""s AS (
  UPDATE sessions SET {", ".join(sets)}
  {conditions}
  RETURNING next_seq - :count AS base, {_WANTED}, {released} AS released
)""",
        _EVENTS,
    ]
    if shape.saves:
        parts += [_MESSAGES, _BLOCKS]
    if shape.trims:
        parts += [_TRIM_MESSAGES, _TRIM_BLOCKS]
    if shape.joins:
        parts.append(_JOIN)
    if shape.parks:
        parts.append(_PARK)
    if shape.starts or shape.continues or shape.parks or shape.ends:
        parts.append(_reply_part(shape))
    if shape.ends:
        parts.append(_FORGET_CALLS)
    return f"WITH {', '.join(parts)} SELECT base, {_WANTED}, released FROM s"


_EVENTS = """e AS (
  INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
  SELECT :session, s.base + e.ord - 1, :tenant, :epoch, e.reply_id, e.type, CAST(e.data AS json)
  FROM s, unnest(CAST(:e_reply AS text[]), CAST(:e_type AS text[]), CAST(:e_data AS text[]))
    WITH ORDINALITY AS e(reply_id, type, data, ord)
)"""
_MESSAGES = """m AS (
  INSERT INTO messages (session_id, pos, tenant_id, id, data)
  SELECT :session, m.pos, :tenant, m.id, CAST(m.data AS json)
  FROM s, unnest(CAST(:m_pos AS bigint[]), CAST(:m_id AS text[]), CAST(:m_data AS text[]))
    AS m(pos, id, data)
  ON CONFLICT (session_id, pos) DO UPDATE SET id = excluded.id, data = excluded.data
)"""
_BLOCKS = """b AS (
  INSERT INTO blocks (session_id, pos, idx, tenant_id, data)
  SELECT :session, b.pos, b.idx, :tenant, CAST(b.data AS json)
  FROM s, unnest(CAST(:b_pos AS bigint[]), CAST(:b_idx AS integer[]), CAST(:b_data AS text[]))
    AS b(pos, idx, data)
  ON CONFLICT (session_id, pos, idx) DO UPDATE SET data = excluded.data
)"""
_TRIM_MESSAGES = """tm AS (
  DELETE FROM messages m USING s, unnest(CAST(:t_pos AS bigint[]), CAST(:t_left AS integer[]))
    AS t(pos, left_over)
  WHERE m.session_id = :session AND m.pos = t.pos AND t.left_over < 0
)"""
_TRIM_BLOCKS = """tb AS (
  DELETE FROM blocks b USING s, unnest(CAST(:t_pos AS bigint[]), CAST(:t_left AS integer[]))
    AS t(pos, left_over)
  WHERE b.session_id = :session AND b.pos = t.pos AND b.idx >= t.left_over
)"""
_JOIN = """j AS (
  DELETE FROM inputs i USING s
  WHERE i.session_id = :session AND i.message_id = ANY(CAST(:joined AS text[]))
)"""
_PARK = """p AS (
  INSERT INTO pending_calls (session_id, reply_id, call_id, tenant_id, pos, data)
  SELECT :session, :reply, p.call_id, :tenant, p.pos, CAST(p.data AS json)
  FROM s, unnest(CAST(:p_call AS text[]), CAST(:p_data AS text[])) WITH ORDINALITY
    AS p(call_id, data, pos)
  ON CONFLICT (session_id, reply_id, call_id) DO UPDATE SET data = excluded.data
)"""
_FORGET_CALLS = """f AS (
  DELETE FROM pending_calls p USING s WHERE p.session_id = :session AND p.reply_id = :reply
)"""


def _reply_part(shape: _Shape) -> str:
    """Write the part that changes the reply's row."""
    status = "ended" if shape.ends else "awaiting" if shape.parks else "running"
    sets = [f"status = '{status}'"]
    if shape.starts:
        sets += [
            "agent_version = CAST(:agent_version AS integer)",
            "tasks = CAST(:tasks AS json)",
            "started_at = clock_timestamp()",
        ]
    if shape.ends:
        sets += [
            "finished_reason = CAST(:reason AS text)",
            "error = CAST(:error AS json)",
            "finished_at = clock_timestamp()",
            "context = NULL",
            "tasks = NULL",
            "input_tokens = :t_in",
            "output_tokens = :t_out",
            "cache_input_tokens = :t_cache",
            "cache_creation_input_tokens = :t_make",
        ]
    if shape.ends and shape.starts:
        sets.remove("tasks = CAST(:tasks AS json)")
    return f"r AS (UPDATE replies SET {', '.join(sets)} FROM s WHERE id = :reply)"


class PostgresLeases:
    """Gives sessions to one writer at a time; see `app.ports.stores.Leases`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._agents: dict[tuple[str, int], Agent] = {}

    async def claim(
        self,
        *,
        owner: str,
        ttl: timedelta,
        session_id: str | None = None,
        apart_from: Sequence[str] = (),
    ) -> Claim | None:
        """Take a session that has something to do and no living holder."""
        values: dict[str, object] = {"owner": owner, "ttl": ttl.total_seconds()}
        if session_id is None:
            row = await self._database.first(_CLAIM_ANY, values | {"apart_from": list(apart_from)})
        else:
            row = await self._database.first(_CLAIM_ONE, values | {"session": session_id})
        if row is None:
            return None
        return await self.claimed(row, owner=owner)

    async def claimed(self, row: Row, *, owner: str) -> Claim:
        """Describe a session that was just taken; `row` holds the columns of `CLAIMED`."""
        lease = Lease(tenant=row.tenant_id, session_id=row.id, owner=owner, epoch=row.epoch)
        try:
            return await self._described(lease, row)
        except BaseException:
            # Taken, and nobody would ever know: give it back, after a while.
            with suppress(BearingsError):
                await self.release(lease, pause=timedelta(seconds=1))
            raise

    async def _described(self, lease: Lease, row: Row) -> Claim:
        """Read what a claim needs to know beside the session's row.

        In statements of their own: the claim's snapshot is older than the lock that it waited for.
        """
        running, version = None, row.agent_version or row.newest_version
        if row.reply_id is not None:
            found = await self._database.first(_RUNNING, {"id": row.reply_id})
            if found is not None:
                running, version = _queued(found), found.agent_version or version
        return Claim(
            lease=lease,
            agent=await self._agent(row.agent_id, version),
            state_version=row.state_version,
            environment=orjson.loads(row.environment),
            running=running,
            attempts=row.attempts,
            wanted=_wanted(row),
        )

    async def load(self, claim: Claim) -> Loaded:
        """Read where the session stands: the stored state, and the events since."""
        lease = claim.lease
        async with self._database.begin() as transaction:
            row = await transaction.first(_HEAD, _names(lease))
            if row is None:
                raise Fenced
            context = await read_context(transaction, lease.session_id, start=row.context_from)
            since = await _events_since(transaction, lease.session_id, row.head_seq)
        standing = Standing(
            state=read_state(row.head, context.values()),
            agent_name=claim.agent.name,
            answered=row.answered,
            ended=row.reply_id is None,
            calls=Calls() if row.calls is None else Calls.model_validate_json(row.calls, extra="ignore"),
        )
        standing.reopen_results()
        events = [decode(each.data) for each in since]
        return Loaded(standing=standing, base_pos=row.context_from, since=events)

    async def next_queued(self, lease: Lease) -> Queued | None:
        """Return the oldest message that waits for its answer."""
        row = await self._database.first(_NEXT, {"session": lease.session_id})
        return None if row is None else _queued(row)

    async def append(self, lease: Lease, batch: Batch, *, ttl: timedelta) -> Appended:
        """Write a batch and renew the lease."""
        values: dict[str, object] = _names(lease) | {"ttl": ttl.total_seconds()}
        if not batch.drafts:
            row = await self._database.first(_RENEW, values)
        else:
            shape = _Shape.of(batch)
            values |= _batch_values(batch, shape) | {"tenant": lease.tenant}
            row = await self._database.first(_append(shape), values)
            if row is None and shape.ends:
                # Lost, or there is more to do: the lease alone tells.
                row = await self._database.first(_LOOK, values)
                if row is not None:
                    return Appended(base=row.base, wanted=_wanted(row), refused=True)
        if row is None:
            raise Fenced
        return Appended(base=row.base, wanted=_wanted(row), released=row.released)

    async def inputs(self, lease: Lease) -> Sequence[Msg]:
        """Return the messages that wait to join the reply, oldest first."""
        rows = await self._database.all(_INPUTS, _names(lease))
        return [Msg.model_validate_json(row.message, extra="ignore") for row in rows]

    async def abandon(self, session_id: str, owner: str) -> None:
        """Release what was taken by this owner, by someone who never heard whether it was."""
        await self._database.run(_ABANDON, {"session": session_id, "owner": owner})

    async def release(self, lease: Lease, *, pause: timedelta) -> None:
        """Give the session back: another holder may go on after a pause. Nothing if it was lost."""
        await self._database.run(_RELEASE, _names(lease) | {"pause": pause.total_seconds()})

    async def environment(self, lease: Lease) -> tuple[Environment, int]:
        """Return the live values and their version."""
        row = await self._database.first(_ENVIRONMENT, _names(lease))
        if row is None:
            raise Fenced
        return orjson.loads(row.environment), row.environment_version

    async def _agent(self, agent_id: str, version: int) -> Agent:
        """Return a version of an agent, which never changes and is therefore kept."""
        known = self._agents.get((agent_id, version))
        if known is None:
            row = await self._database.first(_AGENT, {"id": agent_id, "version": version})
            if row is None:
                raise Fenced(f"Agent {agent_id} version {version} is gone.")
            known = agent_of(row)
            if len(self._agents) >= MOST_AGENTS_KEPT:
                self._agents.clear()
            self._agents[agent_id, version] = known
        return known


MOST_AGENTS_KEPT = 1000


def _names(lease: Lease) -> dict[str, object]:
    return {"session": lease.session_id, "epoch": lease.epoch, "owner": lease.owner}


def _queued(row: Row) -> Queued:
    return Queued(
        reply_id=row.id,
        message=Msg.model_validate_json(row.message, extra="ignore"),
        context=orjson.loads(row.context or "{}"),
        max_iters=row.max_iters,
        parked=row.parked,
        tasks=None if row.tasks is None else TasksContext.model_validate_json(row.tasks),
    )


def _wanted(row: Row) -> Wanted:
    return Wanted(
        interrupt=row.interrupt,
        withdraw=row.withdraw,
        inputs=row.inputs,
        queued=row.queued,
        environment_version=row.environment_version,
    )


async def _events_since(transaction: Transaction, session_id: str, seq: int) -> list[Row]:
    found = {"session": session_id, "seq": seq}
    return list(await transaction.all(_EVENTS_SINCE, found))


def _batch_values(batch: Batch, shape: _Shape) -> dict[str, object]:
    values: dict[str, object] = {
        "count": len(batch.drafts),
        "e_reply": [draft.reply_id for draft in batch.drafts],
        "e_type": [draft.type for draft in batch.drafts],
        "e_data": [draft.data.decode() for draft in batch.drafts],
        "joins": 0,
    }
    saved = batch.checkpoint
    if saved is not None:
        values |= {
            "after": saved.after,
            "head": head_json(saved.head),
            "answered": saved.answered,
            "calls": saved.calls.model_dump_json(exclude_none=True) if saved.calls else None,
            "progress": saved.progress,
            "t_pos": list(saved.trims),
            "t_left": list(saved.trims.values()),
            **message_rows(saved.messages.values()),
        }
    if shape.ends:
        usage = batch.usage or NO_USAGE
        values |= {
            "t_in": usage.input_tokens,
            "t_out": usage.output_tokens,
            "t_cache": usage.cache_input_tokens,
            "t_make": usage.cache_creation_input_tokens,
        }
    joined = [each.message_id for each in batch.transitions if isinstance(each, Joined)]
    if joined:
        values |= {"joins": len(joined), "joined": joined}
    for each in batch.transitions:
        match each:
            case Started():
                tasks = each.tasks.model_dump_json() if each.tasks.tasks else None
                values |= {
                    "reply": each.reply_id,
                    "agent_version": each.agent_version,
                    "tasks": tasks,
                }
            case Continued():
                values["reply"] = each.reply_id
            case Parked():
                values |= {
                    "reply": each.reply_id,
                    "waiting": len(each.calls),
                    "p_call": [pending.call.id for pending in each.calls],
                    "p_data": [pending.model_dump_json() for pending in each.calls],
                }
            case Ended():
                values |= {
                    "reply": each.reply_id,
                    "reason": each.reason,
                    "error": None if each.error is None else each.error.model_dump_json(),
                    "withdrawn": each.withdrawn,
                }
            case Joined():
                pass
    return values
