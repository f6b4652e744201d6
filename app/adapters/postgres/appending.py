"""The one statement that writes to a session: put together from what a batch holds.

Its first part updates the session's row where epoch and owner are still the lease's, and every other
part takes its rows from that one: no row, and nothing at all was written. Most batches are a few
deltas, whose statement has two parts. Each shape of a batch has a statement of its own, which a
connection prepares once.
"""

from dataclasses import dataclass
from functools import cache

from app.adapters.postgres.documents import head_json, message_rows
from app.core.records import NO_USAGE
from app.ports.leases import Batch, Continued, Ended, Joined, Parked, Started

HELD = "WHERE id = :session AND epoch = :epoch AND owner = :owner"
WANTED = "interrupt, withdraw, inputs, queued, environment_version"
RENEWED = "clock_timestamp() + make_interval(secs => :ttl)"

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
# People may want something of the reply that its holder does not know yet: then it does not end.
_MAY_END = """
  AND inputs = :joins AND (interrupt <> :reply
    OR (CAST(:reason AS text) = 'interrupted' AND (:withdrawn OR NOT withdraw)))"""
_SAVES = [
    "head = CAST(:head AS json)",
    "head_seq = next_seq + :after - 1",
    "answered = :answered",
    "calls = CAST(:calls AS json)",
    "state_version = state_version + 1",
    "attempts = CASE WHEN :progress THEN 0 ELSE attempts END",
    "updated_at = clock_timestamp()",
]
_ENDS = [
    "reply_id = NULL",
    "pending = 0",
    "interrupt = CASE WHEN interrupt = :reply THEN '' ELSE interrupt END",
    "withdraw = CASE WHEN interrupt = :reply THEN false ELSE withdraw END",
    "input_tokens = input_tokens + :t_in",
    "output_tokens = output_tokens + :t_out",
    "cache_input_tokens = cache_input_tokens + :t_cache",
    "cache_creation_input_tokens = cache_creation_input_tokens + :t_make",
]
# The session of a reply that waits is nobody's until somebody answers; one that is to be stopped is
# there to be taken.
_PARKS = [
    "pending = CASE WHEN interrupt = :reply THEN 0 ELSE :waiting END",
    "owner = CASE WHEN interrupt = :reply THEN owner ELSE '' END",
    (
        "lease_until = CASE WHEN interrupt = :reply THEN timestamptz '-infinity' "
        "ELSE timestamptz 'infinity' END"
    ),
]


@dataclass(frozen=True)
class Shape:
    """What a batch holds beside its events."""

    saves: bool
    trims: bool
    starts: bool
    continues: bool
    joins: bool
    parks: bool
    ends: bool

    @classmethod
    def of(cls, batch: Batch) -> "Shape":
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

    @property
    def changes_reply(self) -> bool:
        """Whether the reply's own row changes."""
        return self.starts or self.continues or self.parks or self.ends


@cache
def statement(shape: Shape) -> str:
    """Write the statement that appends a batch of a shape."""
    released = "true" if shape.parks else "queued = 0" if shape.ends else "false"
    held = HELD + (_MAY_END if shape.ends else "")
    session = f"""s AS (
  UPDATE sessions SET {", ".join(_changes(shape))}
  {held}
  RETURNING next_seq - :count AS base, {WANTED}, {released} AS released
)"""
    parts = {
        session: True,
        _EVENTS: True,
        _MESSAGES: shape.saves,
        _BLOCKS: shape.saves,
        _TRIM_MESSAGES: shape.trims,
        _TRIM_BLOCKS: shape.trims,
        _JOIN: shape.joins,
        _PARK: shape.parks,
        _reply_part(shape): shape.changes_reply,
        _FORGET_CALLS: shape.ends,
    }
    used = ", ".join(part for part, is_used in parts.items() if is_used)
    return f"WITH {used} SELECT base, {WANTED}, released FROM s"


def _changes(shape: Shape) -> list[str]:
    """Say what changes in the session's row."""
    changes = ["next_seq = next_seq + :count"]
    changes += _SAVES if shape.saves else []
    changes += ["queued = queued - 1"] if shape.starts else []
    changes += ["inputs = inputs - :joins"] if shape.joins else []
    if shape.ends:
        left = "queued = 1" if shape.starts else "queued = 0"
        until = f"CASE WHEN {left} THEN timestamptz '-infinity' ELSE {RENEWED} END"
        return [*changes, *_ENDS, f"lease_until = {until}"]
    changes += ["reply_id = :reply"] if shape.starts else []
    return [*changes, *_PARKS] if shape.parks else [*changes, f"lease_until = {RENEWED}"]


def _reply_part(shape: Shape) -> str:
    """Write the part that changes the reply's row."""
    status = "ended" if shape.ends else "awaiting" if shape.parks else "running"
    sets = [f"status = '{status}'"]
    if shape.starts:
        sets += [
            "agent_version = CAST(:agent_version AS integer)",
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
    elif shape.starts:
        sets.append("tasks = CAST(:tasks AS json)")
    return f"r AS (UPDATE replies SET {', '.join(sets)} FROM s WHERE id = :reply)"


def values_of(batch: Batch, shape: Shape) -> dict[str, object]:
    """Say what is bound in the statement of a batch, beside the lease."""
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
            "calls": saved.calls.model_dump_json() if saved.calls else None,
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
