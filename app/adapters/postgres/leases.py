"""One writer a session: leases with a fence, and the one statement that writes.

The invariant of every write: it is one statement whose first act is to update the session's row where
epoch and owner are still the lease's (see `appending`). The numbers of events come from that row too,
so the order of commits is the order of numbers.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import orjson

from app.adapters.postgres.agents import agent_of
from app.adapters.postgres.appending import HELD, WANTED, Shape, statement, values_of
from app.adapters.postgres.database import Database, Row, Transaction
from app.adapters.postgres.documents import read_state
from app.adapters.postgres.sessions import read_context
from app.core.apply import Calls, Standing
from app.core.errors import BearingsError, Fenced
from app.core.events import decode
from app.core.messages import Msg
from app.core.records import Agent, Environment
from app.core.state import TasksContext
from app.ports.leases import (
    Appended,
    Batch,
    Claim,
    Lease,
    Loaded,
    Queued,
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
_RENEW = f"""
UPDATE sessions SET lease_until = clock_timestamp() + make_interval(secs => :ttl)
{HELD} RETURNING next_seq AS base, {WANTED}, false AS released
"""
_RELEASE = f"""
UPDATE sessions SET owner = '',
  lease_until = clock_timestamp() + make_interval(secs => :pause)
{HELD}
"""
_ABANDON = """
UPDATE sessions SET owner = '', lease_until = '-infinity' WHERE id = :session AND owner = :owner
"""
_ENVIRONMENT = f"""
SELECT environment::text AS environment, environment_version FROM sessions {HELD}
"""
_INPUTS = """
SELECT i.message::text AS message
FROM sessions s JOIN inputs i ON i.session_id = s.id AND i.reply_id = s.reply_id
WHERE s.id = :session AND s.epoch = :epoch AND s.owner = :owner ORDER BY i.seq
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
        # One snapshot: the session may be taken away while it is read, and then be written.
        async with self._database.begin(snapshot=True) as transaction:
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
            calls=Calls.model_validate_json(row.calls or "{}", extra="ignore"),
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
            shape = Shape.of(batch)
            values |= values_of(batch, shape) | {"tenant": lease.tenant}
            row = await self._database.first(statement(shape), values)
            if row is None and shape.ends:
                # Lost, or there is more to do: the lease alone tells, and goes on.
                row = await self._database.first(_RENEW, values)
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
