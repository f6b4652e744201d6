"""Asks the invariants of a session's log and state, after whatever happened to it."""

import json
from collections import Counter
from itertools import pairwise
from typing import Any

from app.adapters.postgres.database import Database
from app.adapters.postgres.sessions import PostgresSessions
from app.core.apply import fold
from app.core.events import decode
from app.core.state import AgentState

TENANT = "default"


async def violations(database: Database, session_id: str) -> list[str]:
    """Return what is wrong with an idle session; nothing is what is wanted."""
    rows = await database.all(
        "SELECT seq, epoch, type, reply_id, data::text AS data FROM events "
        "WHERE session_id = :id ORDER BY seq",
        {"id": session_id},
    )
    found: list[str] = []
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        found.append(f"1: numbers are not 1..{len(rows)}: {[row.seq for row in rows]}")
    if any(later.epoch < earlier.epoch for earlier, later in pairwise(rows)):
        found.append("2: an old epoch wrote behind a newer one")
    session = await PostgresSessions(database).get(TENANT, session_id)
    if session.last_seq != len(rows):
        found.append(f"1: the session says {session.last_seq}, the log has {len(rows)}")
    found += _terminal(rows, idle=session.status == "idle")
    state, _ = await PostgresSessions(database).state(TENANT, session_id)
    folded = fold((decode(row.data) for row in rows), AgentState(session_id=session_id)).state
    found += _differences(folded, state)
    found += _pairs(state)
    found += _forgotten(rows, state)
    replies = await database.all(
        "SELECT id, status, finished_reason FROM replies WHERE session_id = :id",
        {"id": session_id},
    )
    found += [f"3: {row.id} is {row.status}" for row in replies if row.status != "ended"]
    return found


def _terminal(rows: Any, *, idle: bool) -> list[str]:
    found: list[str] = []
    started = Counter(row.reply_id for row in rows if row.type == "REPLY_START")
    ended = Counter(row.reply_id for row in rows if row.type == "REPLY_END")
    # A message that steers is received by the reply that it joins.
    asked = list(dict.fromkeys(row.reply_id for row in rows if row.type == "MESSAGE_RECEIVED"))
    for reply_id in asked:
        if started[reply_id] != 1 or (idle and ended[reply_id] != 1):
            found.append(
                f"3: {reply_id} began {started[reply_id]} and ended {ended[reply_id]} times"
            )
    begun = [row.reply_id for row in rows if row.type == "REPLY_START"]
    if begun != asked[: len(begun)]:
        found.append("3: messages were not answered in their order")
    over: set[str] = set()
    for row in rows:
        if row.reply_id in over:
            found.append(f"13: {row.type} follows the end of {row.reply_id}")
        if row.type == "REPLY_END":
            over.add(row.reply_id)
    if not idle:
        found.append("5: the session is not idle")
    return found


def _differences(folded: AgentState, stored: AgentState) -> list[str]:
    one, two = json.loads(folded.model_dump_json()), json.loads(stored.model_dump_json())
    return [
        f"5: {key} of the log differs from the stored one" for key in one if one[key] != two[key]
    ]


def _forgotten(rows: Any, state: AgentState) -> list[str]:
    """Messages that were accepted and are not in the conversation, unless it was replaced."""
    events = [decode(row.data) for row in rows]
    if any(event.type == "STATE_UPDATED" and event.part == "state" for event in events):
        return []
    kept = Counter(message.id for message in state.context if message.role == "user")
    return [
        f"3: message {event.message.id} is in the conversation {kept[event.message.id]} times"
        for event in events
        if event.type == "MESSAGE_RECEIVED" and kept[event.message.id] != 1
    ]


def _pairs(state: AgentState) -> list[str]:
    found = []
    for message in state.context:
        calls = Counter(block.id for block in message.content if block.type == "tool_call")
        results = Counter(block.id for block in message.content if block.type == "tool_result")
        if calls != results or any(count > 1 for count in calls.values()):
            found.append(f"6: calls {dict(calls)} and results {dict(results)} of {message.id}")
    return found
