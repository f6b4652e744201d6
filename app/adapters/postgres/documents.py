"""An `AgentState` as rows: a small head, and a row for each message and each of its blocks."""

from collections.abc import Iterable, Mapping, Sequence

import orjson
from pydantic import TypeAdapter

from app.adapters.postgres.database import Row
from app.core.messages import Block, Msg
from app.core.state import AgentState, load_state
from app.ports.leases import StoredMessage

_block_list: TypeAdapter[list[Block]] = TypeAdapter(list[Block])

INSERT_MESSAGES = """
INSERT INTO messages (session_id, pos, tenant_id, id, data)
SELECT :session, m.pos, :tenant, m.id, CAST(m.data AS json)
FROM unnest(CAST(:m_pos AS bigint[]), CAST(:m_id AS text[]), CAST(:m_data AS text[]))
  AS m(pos, id, data)
"""
INSERT_BLOCKS = """
INSERT INTO blocks (session_id, pos, idx, tenant_id, data)
SELECT :session, b.pos, b.idx, :tenant, CAST(b.data AS json)
FROM unnest(CAST(:b_pos AS bigint[]), CAST(:b_idx AS integer[]), CAST(:b_data AS text[]))
  AS b(pos, idx, data)
"""


def head_json(state: AgentState) -> str:
    """Write a state without its context."""
    return state.model_dump_json(exclude={"context"})


def message_rows(stored: Iterable[StoredMessage]) -> dict[str, list[object]]:
    """Lay messages and their changed blocks out as columns for `unnest`."""
    columns: dict[str, list[object]] = {
        name: [] for name in ("m_pos", "m_id", "m_data", "b_pos", "b_idx", "b_data")
    }
    for each in stored:
        columns["m_pos"].append(each.pos)
        columns["m_id"].append(each.message.id)
        columns["m_data"].append(each.message.model_dump_json(exclude={"content"}))
        for index, block in each.blocks.items():
            columns["b_pos"].append(each.pos)
            columns["b_idx"].append(index)
            columns["b_data"].append(block.model_dump_json())
    return columns


def whole(context: Sequence[Msg], *, start: int) -> list[StoredMessage]:
    """Lay a whole context out from a position on."""
    return [
        StoredMessage(start + at, message, dict(enumerate(message.content)))
        for at, message in enumerate(context)
    ]


def read_messages(message_rows: Sequence[Row], block_rows: Sequence[Row]) -> Mapping[int, Msg]:
    """Put messages together from their rows, by position and in its order."""
    parts: dict[int, list[str]] = {row.pos: [] for row in message_rows}
    for row in block_rows:
        if row.pos in parts:
            parts[row.pos].append(row.data)
    return {
        row.pos: Msg.model_validate(
            {**orjson.loads(row.data), "content": []}, extra="ignore"
        ).model_copy(update={"content": _read_blocks(parts[row.pos])})
        for row in message_rows
    }


def _read_blocks(parts: list[str]) -> list[Block]:
    """Read blocks; fields that a newer release added are ignored."""
    return _block_list.validate_json(f"[{','.join(parts)}]", extra="ignore")


def read_state(head: str, context: Iterable[Msg]) -> AgentState:
    """Put a state together from its head and its context."""
    state = load_state(head)
    state.context = list(context)
    return state
