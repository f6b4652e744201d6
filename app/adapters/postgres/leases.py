"""One writer a session: leases with a fence, and the one statement that writes.

The invariant of every write: it is one statement whose first act is to update the session's row where
epoch and owner are still the lease's. No row: the lease is lost, and nothing at all was written. The
numbers of events come from that row too, so the order of commits is the order of numbers.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import orjson

from app.adapters.postgres.agents import agent_of
from app.adapters.postgres.database import Database, Row, Transaction
from app.adapters.postgres.documents import head_json, message_rows, read_state
from app.adapters.postgres.sessions import read_context
from app.core.apply import Standing, apply
from app.core.errors import BearingsError, Fenced
from app.core.events import decode
from app.core.messages import Msg, Usage
from app.core.records import NO_USAGE, Agent, Environment
from app.ports.leases import Appended, Batch, Claim, Ended, Lease, Loaded, Queued, Started

_CLAIM = """
WITH picked AS (
  SELECT id FROM sessions
  WHERE (queued > 0 OR reply_id IS NOT NULL) AND lease_until < clock_timestamp() AND {which}
  ORDER BY reply_id IS NULL, updated_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE sessions s SET owner = :owner, epoch = s.epoch + 1,
  lease_until = clock_timestamp() + make_interval(secs => :ttl),
  attempts = s.attempts + 1
FROM picked WHERE s.id = picked.id
RETURNING s.id, s.tenant_id, s.epoch, s.agent_id, s.agent_version, s.state_version, s.reply_id,
  s.attempts, s.interrupt, s.environment::text AS environment, s.environment_version,
  (SELECT version FROM agents WHERE agents.id = s.agent_id) AS newest_version
"""
_CLAIM_ANY = _CLAIM.format(which="id <> ALL(CAST(:apart_from AS text[]))")
_CLAIM_ONE = _CLAIM.format(which="id = :session")
_AGENT = """
SELECT a.id, v.version, v.spec::text AS spec, a.created_at, v.created_at AS updated_at
FROM agents a JOIN agent_versions v ON v.agent_id = a.id
WHERE a.id = :id AND v.version = :version
"""
_RUNNING = """
SELECT id, message::text AS message, context::text AS context, max_iters, agent_version
FROM replies WHERE id = :id
"""
_NEXT = """
SELECT id, message::text AS message, context::text AS context, max_iters FROM replies
WHERE session_id = :session AND status = 'queued' ORDER BY seq LIMIT 1
"""
_HEAD = """
SELECT head::text AS head, head_seq, answered, context_from, reply_id FROM sessions
WHERE id = :session AND epoch = :epoch AND owner = :owner
"""
_EVENTS_SINCE = """
SELECT data::text AS data FROM events WHERE session_id = :session AND seq > :seq ORDER BY seq
"""
_APPEND = """
WITH s AS (
  UPDATE sessions SET
    next_seq = next_seq + :count,
    lease_until = CASE WHEN :ends AND queued = :starts THEN '-infinity'
      ELSE clock_timestamp() + make_interval(secs => :ttl) END,
    head = coalesce(CAST(:head AS json), head),
    head_seq = CASE WHEN :saves THEN next_seq + :after - 1 ELSE head_seq END,
    answered = coalesce(CAST(:answered AS boolean), answered),
    state_version = state_version + CASE WHEN :saves THEN 1 ELSE 0 END,
    reply_id = CASE WHEN :ends THEN NULL WHEN :starts = 1 THEN :reply ELSE reply_id END,
    queued = queued - :starts,
    attempts = CASE WHEN :progress THEN 0 ELSE attempts END,
    interrupt = CASE WHEN :ends AND interrupt = :reply THEN '' ELSE interrupt END,
    input_tokens = input_tokens + :t_in, output_tokens = output_tokens + :t_out,
    cache_input_tokens = cache_input_tokens + :t_cache,
    cache_creation_input_tokens = cache_creation_input_tokens + :t_make,
    updated_at = CASE WHEN :saves THEN clock_timestamp() ELSE updated_at END
  WHERE id = :session AND epoch = :epoch AND owner = :owner
  RETURNING next_seq - :count AS base, interrupt, environment_version, queued
), m AS (
  INSERT INTO messages (session_id, pos, tenant_id, id, data)
  SELECT :session, m.pos, :tenant, m.id, CAST(m.data AS json)
  FROM s, unnest(CAST(:m_pos AS bigint[]), CAST(:m_id AS text[]), CAST(:m_data AS text[]))
    AS m(pos, id, data)
  ON CONFLICT (session_id, pos) DO UPDATE SET data = excluded.data
), b AS (
  INSERT INTO blocks (session_id, pos, idx, tenant_id, data)
  SELECT :session, b.pos, b.idx, :tenant, CAST(b.data AS json)
  FROM s, unnest(CAST(:b_pos AS bigint[]), CAST(:b_idx AS integer[]), CAST(:b_data AS text[]))
    AS b(pos, idx, data)
  ON CONFLICT (session_id, pos, idx) DO UPDATE SET data = excluded.data
), r AS (
  UPDATE replies SET
    status = CASE WHEN :ends THEN 'ended' ELSE 'running' END,
    agent_version = coalesce(agent_version, CAST(:agent_version AS integer)),
    finished_reason = CAST(:reason AS text), error = CAST(:error AS json),
    started_at = coalesce(started_at, clock_timestamp()),
    finished_at = CASE WHEN :ends THEN clock_timestamp() END,
    context = CASE WHEN :ends THEN NULL ELSE context END,
    input_tokens = :t_in, output_tokens = :t_out, cache_input_tokens = :t_cache,
    cache_creation_input_tokens = :t_make
  FROM s WHERE id = :reply
), e AS (
  INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
  SELECT :session, s.base + e.ord - 1, :tenant, :epoch, e.reply_id, e.type, CAST(e.data AS json)
  FROM s, unnest(CAST(:e_reply AS text[]), CAST(:e_type AS text[]), CAST(:e_data AS text[]))
    WITH ORDINALITY AS e(reply_id, type, data, ord)
)
SELECT base, interrupt, environment_version, queued FROM s
"""
_RENEW = """
UPDATE sessions SET lease_until = clock_timestamp() + make_interval(secs => :ttl)
WHERE id = :session AND epoch = :epoch AND owner = :owner
RETURNING next_seq AS base, interrupt, environment_version, queued
"""
_RELEASE = """
UPDATE sessions SET owner = '',
  lease_until = clock_timestamp() + make_interval(secs => :pause)
WHERE id = :session AND epoch = :epoch AND owner = :owner
"""
_ENVIRONMENT = """
SELECT environment::text AS environment, environment_version FROM sessions
WHERE id = :session AND epoch = :epoch AND owner = :owner
"""


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
            environment_version=row.environment_version,
            running=running,
            attempts=row.attempts,
            interrupt=row.interrupt,
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
        )
        for each in since:
            apply(standing, decode(each.data))
        return Loaded(standing=standing, base_pos=row.context_from)

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
            values |= _batch_values(batch) | {"tenant": lease.tenant}
            row = await self._database.first(_APPEND, values)
        if row is None:
            raise Fenced
        return Appended(
            base=row.base,
            interrupt=row.interrupt,
            environment_version=row.environment_version,
            queued=row.queued,
        )

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
    )


async def _events_since(transaction: Transaction, session_id: str, seq: int) -> list[Row]:
    found = {"session": session_id, "seq": seq}
    return list(await transaction.all(_EVENTS_SINCE, found))


def _batch_values(batch: Batch) -> dict[str, object]:
    starts = [each for each in batch.transitions if isinstance(each, Started)]
    ends = [each for each in batch.transitions if isinstance(each, Ended)]
    usage: Usage = batch.usage or NO_USAGE
    error = ends[0].error if ends else None
    saved = batch.checkpoint
    return {
        "count": len(batch.drafts),
        "e_reply": [draft.reply_id for draft in batch.drafts],
        "e_type": [draft.type for draft in batch.drafts],
        "e_data": [draft.data.decode() for draft in batch.drafts],
        "starts": len(starts),
        "ends": bool(ends),
        "reply": ends[0].reply_id if ends else starts[0].reply_id if starts else "",
        "agent_version": starts[0].agent_version if starts else None,
        "reason": ends[0].reason if ends else None,
        "error": None if error is None else error.model_dump_json(),
        "saves": saved is not None,
        "after": saved.after if saved else 0,
        "head": head_json(saved.head) if saved else None,
        "answered": saved.answered if saved else None,
        "progress": bool(saved and saved.progress),
        "t_in": usage.input_tokens,
        "t_out": usage.output_tokens,
        "t_cache": usage.cache_input_tokens,
        "t_make": usage.cache_creation_input_tokens,
        **message_rows(saved.messages.values() if saved else ()),
    }
