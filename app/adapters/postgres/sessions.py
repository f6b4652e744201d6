"""Sessions, their states and their history in Postgres."""

from collections.abc import Mapping

import orjson

from app.adapters.postgres.database import Database, Row, Transaction, moment
from app.adapters.postgres.documents import (
    INSERT_BLOCKS,
    INSERT_MESSAGES,
    head_json,
    message_rows,
    read_messages,
    read_state,
    whole,
)
from app.adapters.postgres.once import happen_once
from app.adapters.postgres.paging import page, read_cursor, read_number
from app.core.errors import Invalid, NotFound, SessionBusy, VersionMismatch
from app.core.events import StateUpdatedEvent
from app.core.messages import Msg, Usage
from app.core.records import Environment, PendingCall, Session, SessionStatus
from app.core.repair import repair
from app.core.state import AgentState, ReplyContext
from app.ports.stores import Copy, Made, NewSession, Once, Page, SessionChange, SessionFilter

_COLUMNS = """
s.id, s.agent_id, s.agent_version, s.title, s.metadata::text AS metadata, s.user_id, s.reply_id,
s.queued, s.pending, s.next_seq, s.state_version, s.input_tokens, s.output_tokens, s.cache_input_tokens,
s.cache_creation_input_tokens, s.created_at, s.updated_at,
CASE WHEN s.pending > 0 THEN (SELECT json_agg(p.data ORDER BY p.at, p.pos)::text FROM pending_calls p
  WHERE p.session_id = s.id AND p.reply_id = s.reply_id) END AS waiting
"""
_INSERT = f"""
INSERT INTO sessions AS s (id, tenant_id, user_id, agent_id, agent_version, title, metadata,
  environment, head)
SELECT :id, :tenant, :user, a.id, CASE WHEN :follow THEN NULL ELSE a.version END, :title,
  CAST(:metadata AS jsonb), CAST(:environment AS json), CAST(:head AS json)
FROM agents a WHERE a.id = :agent AND a.tenant_id = :tenant AND NOT a.deleted
RETURNING {_COLUMNS}
"""
_FORK = f"""
INSERT INTO sessions AS s (id, tenant_id, user_id, agent_id, agent_version, title, metadata,
  environment, head)
SELECT :new_id, tenant_id, user_id, agent_id, agent_version, :title, CAST(:metadata AS jsonb),
  environment, CAST(:head AS json)
FROM sessions WHERE id = :id
RETURNING {_COLUMNS}
"""
_FORKED = """
SELECT head::text AS head, context_from FROM sessions
WHERE id = :id AND tenant_id = :tenant FOR SHARE
"""
_PLACE = "SELECT max(pos) AS pos FROM messages WHERE session_id = :id AND id = :message"
_GET = f"SELECT {_COLUMNS} FROM sessions s WHERE s.id = :id AND s.tenant_id = :tenant"
_PAGE = f"""
SELECT {_COLUMNS} FROM sessions s
WHERE s.tenant_id = :tenant
  AND (CAST(:cursor AS text) IS NULL OR s.id < :cursor)
  AND (CAST(:agent AS text) IS NULL OR s.agent_id = :agent)
  AND (CAST(:user AS text) IS NULL OR s.user_id = :user)
  AND (CAST(:metadata AS jsonb) IS NULL OR s.metadata @> CAST(:metadata AS jsonb))
  AND (CAST(:after AS timestamptz) IS NULL OR s.created_at >= :after)
  AND (CAST(:before AS timestamptz) IS NULL OR s.created_at < :before)
  AND (CAST(:status AS text) IS NULL OR :status =
    CASE WHEN s.pending > 0 THEN 'awaiting' WHEN s.reply_id IS NOT NULL THEN 'running'
      WHEN s.queued > 0 THEN 'queued' ELSE 'idle' END)
ORDER BY s.id DESC LIMIT :limit
"""
_CHANGE = f"""
UPDATE sessions s SET title = coalesce(CAST(:title AS text), s.title),
  metadata = coalesce(CAST(:metadata AS jsonb), s.metadata), updated_at = clock_timestamp()
WHERE s.id = :id AND s.tenant_id = :tenant
RETURNING {_COLUMNS}
"""
_DELETE = "DELETE FROM sessions WHERE id = :id AND tenant_id = :tenant"
# Each in a statement of its own behind the session's: only then is everything that was written before
# the session went seen.
_DELETE_PARTS = [
    f"DELETE FROM {table} WHERE session_id = :id"
    for table in ("blocks", "messages", "events", "replies", "inputs", "pending_calls")
]
_HEAD = """
SELECT head::text AS head, state_version, context_from FROM sessions
WHERE id = :id AND tenant_id = :tenant
"""
_MESSAGES_FROM = """
SELECT pos, data::text AS data FROM messages WHERE session_id = :id AND pos >= :pos ORDER BY pos
"""
_BLOCKS_FROM = """
SELECT pos, data::text AS data FROM blocks WHERE session_id = :id AND pos >= :pos ORDER BY pos, idx
"""
_LOCK = """
SELECT queued, reply_id, state_version FROM sessions
WHERE id = :id AND tenant_id = :tenant FOR UPDATE
"""
_IMPORT = """
WITH s AS (
  UPDATE sessions SET head = CAST(:head AS json), context_from = 0, answered = false,
    state_version = state_version + 1, next_seq = next_seq + 1, head_seq = next_seq,
    updated_at = clock_timestamp()
  WHERE id = :session RETURNING next_seq - 1 AS seq, state_version, epoch
), e AS (
  INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
  SELECT :session, seq, :tenant, epoch, '', 'STATE_UPDATED', CAST(:event AS json) FROM s
)
SELECT state_version FROM s
"""
_ENVIRONMENT = """
SELECT environment::text AS environment FROM sessions WHERE id = :id AND tenant_id = :tenant
"""
_CHANGE_ENVIRONMENT = """
WITH s AS (
  UPDATE sessions SET environment = CAST(:environment AS json),
    environment_version = environment_version + 1, next_seq = next_seq + 1,
    updated_at = clock_timestamp()
  WHERE id = :id AND tenant_id = :tenant RETURNING next_seq - 1 AS seq, epoch
)
INSERT INTO events (session_id, seq, tenant_id, epoch, reply_id, type, data)
SELECT :id, seq, :tenant, epoch, '', 'STATE_UPDATED', CAST(:event AS json) FROM s
RETURNING seq
"""
_HISTORY = """
SELECT pos, data::text AS data FROM messages
WHERE session_id = :id AND (CAST(:cursor AS bigint) IS NULL OR pos {beyond} :cursor)
ORDER BY pos {order} LIMIT :limit
"""
_OLDEST_FIRST = _HISTORY.format(beyond=">", order="ASC")
_NEWEST_FIRST = _HISTORY.format(beyond="<", order="DESC")
_BLOCKS_BETWEEN = """
SELECT pos, data::text AS data FROM blocks
WHERE session_id = :id AND pos BETWEEN :low AND :high ORDER BY pos, idx
"""


class PostgresSessions:
    """Keeps sessions; see `app.ports.stores.Sessions`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant: str, session_id: str, new: NewSession, *, once: Once | None
    ) -> Made[Session]:
        """Begin a session."""
        state = new.state or AgentState()
        state.session_id = session_id

        async def work(transaction: Transaction) -> Session:
            values = {
                "id": session_id,
                "tenant": tenant,
                "user": new.user_id,
                "agent": new.agent_id,
                "follow": new.follow_agent,
                "title": new.title,
                "metadata": orjson.dumps(new.metadata).decode(),
                "environment": orjson.dumps(new.environment).decode(),
                "head": head_json(state),
            }
            row = await transaction.first(_INSERT, values)
            if row is None:
                raise NotFound(f"There is no agent {new.agent_id}.")
            if new.state is not None:
                await _import(transaction, tenant, session_id, state)
                found = {"id": session_id, "tenant": tenant}
                row = await transaction.one(_GET, found)
            return session_of(row)

        return await happen_once(self._database, tenant, once, Session, work)

    async def fork(
        self, tenant: str, session_id: str, new_id: str, copy: Copy, *, once: Once | None
    ) -> Made[Session]:
        """Begin a session with the conversation of another one, as of its last finished step."""
        found = {"id": session_id, "tenant": tenant}

        async def work(transaction: Transaction) -> Session:
            # Locked, so that no step is half in what is read.
            row = await transaction.first(_FORKED, found)
            if row is None:
                raise no_session(session_id)
            through: int | None = None
            if copy.through_message_id is not None:
                wanted = found | {"message": copy.through_message_id}
                through = (await transaction.one(_PLACE, wanted)).pos
                if through is None:
                    raise Invalid(
                        "The session's history has no such message.",
                        errors=[("/through_message_id", "the id of a message of this session")],
                    )
            state = await _state_through(transaction, session_id, row, through)
            state.session_id = new_id
            values = found | {
                "new_id": new_id,
                "title": copy.title,
                "metadata": orjson.dumps(copy.metadata).decode(),
                "head": head_json(state),
            }
            await transaction.one(_FORK, values)
            await _import(transaction, tenant, new_id, state)
            return session_of(await transaction.one(_GET, {"id": new_id, "tenant": tenant}))

        return await happen_once(self._database, tenant, once, Session, work)

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a snapshot."""
        row = await self._database.first(_GET, {"id": session_id, "tenant": tenant})
        if row is None:
            raise no_session(session_id)
        return session_of(row)

    async def page(
        self, tenant: str, which: SessionFilter, *, limit: int, cursor: str | None
    ) -> Page[Session]:
        """List sessions, newest first."""
        metadata = None if which.metadata is None else orjson.dumps(which.metadata).decode()
        values = {
            "tenant": tenant,
            "cursor": read_cursor(cursor, of="sessions"),
            "agent": which.agent_id,
            "user": which.user_id,
            "metadata": metadata,
            "after": which.created_after,
            "before": which.created_before,
            "status": which.status,
            "limit": limit + 1,
        }
        rows = await self._database.all(_PAGE, values)
        return page(rows, limit=limit, of="sessions", item=session_of, place=lambda row: row.id)

    async def change(self, tenant: str, session_id: str, change: SessionChange) -> Session:
        """Change what people see of a session."""
        metadata = None if change.metadata is None else orjson.dumps(change.metadata).decode()
        values = {
            "id": session_id,
            "tenant": tenant,
            "title": change.title,
            "metadata": metadata,
        }
        row = await self._database.first(_CHANGE, values)
        if row is None:
            raise no_session(session_id)
        return session_of(row)

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete a session with everything in it; whoever writes its reply is fenced off."""
        found = {"id": session_id, "tenant": tenant}
        async with self._database.begin() as transaction:
            if not await transaction.run(_DELETE, found):
                raise no_session(session_id)
            for statement in _DELETE_PARTS:
                await transaction.run(statement, {"id": session_id})

    async def state(self, tenant: str, session_id: str) -> tuple[AgentState, int]:
        """Return the state as of the last finished step, and its version."""
        # One snapshot for the three reads: a step that ends meanwhile is in all of them or none.
        async with self._database.begin(snapshot=True) as transaction:
            found = {"id": session_id, "tenant": tenant}
            row = await transaction.first(_HEAD, found)
            if row is None:
                raise no_session(session_id)
            context = await read_context(transaction, session_id, start=row.context_from)
        return read_state(row.head, context.values()), row.state_version

    async def import_state(
        self, tenant: str, session_id: str, state: AgentState, *, if_version: int | None
    ) -> int:
        """Replace the whole state, and return its new version."""
        state.session_id = session_id
        async with self._database.begin() as transaction:
            found = {"id": session_id, "tenant": tenant}
            row = await transaction.first(_LOCK, found)
            if row is None:
                raise no_session(session_id)
            if row.reply_id is not None or row.queued:
                raise SessionBusy(
                    "A reply is being written or waits for its turn: import the state when the "
                    "session is idle.",
                    reply_id=row.reply_id or "",
                )
            if if_version is not None and row.state_version != if_version:
                raise VersionMismatch(
                    f"The state is at version {row.state_version}, not {if_version}: read it again."
                )
            return await _import(transaction, tenant, session_id, state)

    async def environment(self, tenant: str, session_id: str) -> Environment:
        """Return the live values of the session's surroundings."""
        row = await self._database.first(_ENVIRONMENT, {"id": session_id, "tenant": tenant})
        if row is None:
            raise no_session(session_id)
        return orjson.loads(row.environment)

    async def change_environment(
        self, tenant: str, session_id: str, values: Environment
    ) -> Environment:
        """Replace the live values, and return them."""
        event = StateUpdatedEvent(part="environment", value=values)
        row = await self._database.first(
            _CHANGE_ENVIRONMENT,
            {
                "id": session_id,
                "tenant": tenant,
                "environment": orjson.dumps(values).decode(),
                "event": event.encode().decode(),
            },
        )
        if row is None:
            raise no_session(session_id)
        return values

    async def messages(
        self,
        tenant: str,
        session_id: str,
        *,
        limit: int,
        cursor: str | None,
        newest_first: bool,
    ) -> Page[Msg]:
        """Page through the whole history."""
        await self.get(tenant, session_id)
        rows = await self._database.all(
            _NEWEST_FIRST if newest_first else _OLDEST_FIRST,
            {"id": session_id, "cursor": read_number(cursor, of="messages"), "limit": limit + 1},
        )
        shown = rows[:limit]
        if not shown:
            return Page([], None)
        low, high = sorted((shown[0].pos, shown[-1].pos))
        blocks = await self._database.all(
            _BLOCKS_BETWEEN, {"id": session_id, "low": low, "high": high}
        )
        messages = read_messages(shown, blocks)
        return page(
            rows,
            limit=limit,
            of="messages",
            item=lambda row: messages[row.pos],
            place=lambda row: row.pos,
        )


async def read_context(
    transaction: Transaction, session_id: str, *, start: int
) -> Mapping[int, Msg]:
    """Read the messages of a session from a position on, by position."""
    found = {"id": session_id, "pos": start}
    messages = await transaction.all(_MESSAGES_FROM, found)
    blocks = await transaction.all(_BLOCKS_FROM, found)
    return read_messages(messages, blocks)


def no_session(session_id: str) -> NotFound:
    """Say that there is no such session."""
    return NotFound(f"There is no session {session_id}.")


def session_of(row: Row) -> Session:
    """Make a snapshot of a row."""
    status: SessionStatus = "running" if row.reply_id else "queued" if row.queued else "idle"
    waiting = [PendingCall.model_validate(each).call for each in orjson.loads(row.waiting or "[]")]
    return Session.model_construct(
        id=row.id,
        agent_id=row.agent_id,
        agent_version=row.agent_version,
        title=row.title,
        metadata=orjson.loads(row.metadata),
        user_id=row.user_id,
        status="awaiting" if row.pending else status,
        reply_id=row.reply_id,
        queued=row.queued,
        last_seq=row.next_seq - 1,
        state_version=row.state_version,
        pending_tool_calls=waiting,
        usage=usage_of(row),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
    )


def usage_of(row: Row) -> Usage:
    """Make a usage of a row's four token columns."""
    return Usage(
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cache_input_tokens=row.cache_input_tokens,
        cache_creation_input_tokens=row.cache_creation_input_tokens,
    )


async def _state_through(
    transaction: Transaction, session_id: str, row: Row, through: int | None
) -> AgentState:
    """Read a state up to a position of the history: whole, whatever was under way there.

    What lies before the context is read as it was said, without the summary in its place.
    """
    is_older = through is not None and through < row.context_from
    context = await read_context(transaction, session_id, start=0 if is_older else row.context_from)
    kept = [msg for pos, msg in context.items() if through is None or pos <= through]
    state = read_state(row.head, kept)
    if is_older:
        state.summary = ""
    state.reply_context = ReplyContext()
    repair(state)
    return state


async def _import(transaction: Transaction, tenant: str, session_id: str, state: AgentState) -> int:
    """Write a whole state over what is there; the row is locked by this transaction."""
    document = state.model_dump(mode="json", exclude_none=True)
    event = StateUpdatedEvent(part="state", value=document)
    names = {"session": session_id, "tenant": tenant}
    for table in ("blocks", "messages"):
        await transaction.run(f"DELETE FROM {table} WHERE session_id = :session", names)
    columns = message_rows(whole(state.context, start=0))
    await transaction.run(INSERT_MESSAGES, names | columns)
    await transaction.run(INSERT_BLOCKS, names | columns)
    values = names | {"head": head_json(state), "event": event.encode().decode()}
    return (await transaction.one(_IMPORT, values)).state_version
