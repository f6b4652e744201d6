"""Asks the invariants of a whole run: of the log, of what clients were told, of what readers saw.

What one session's rows say by themselves is asked by `tests.support.checker`; this adds what only a
history can know. Numbers are those of the invariants.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from app.adapters.postgres.database import Database
from app.adapters.postgres.sessions import PostgresSessions
from app.core.state import AgentState
from tests.faults.history import History, Submission
from tests.faults.known import is_known
from tests.faults.model import Wish
from tests.faults.readers import Reader
from tests.support.checker import TENANT, violations

BEYOND_TTL_SECONDS = 10.0
COUNTED = {"Count", "Careful"}
READ_UP_SECONDS = 15.0
_BEGINS = re.compile(
    r"\d{4}-\d\d-\d\dT\S+ "
    r"|(?=Task )|(?=Future )|(?=Exception (in|ignored) )|(?=Bearings is at)|(?=ERROR:)"
)
"""How something said in a log begins; a traceback that follows belongs to it."""
_RAISED = re.compile(r"[\w.]+(: |$)")

_BUSY = """
SELECT count(*) FILTER (WHERE queued > 0 OR reply_id IS NOT NULL) AS busy,
  count(*) FILTER (WHERE lease_until > clock_timestamp()) AS held,
  extract(epoch FROM clock_timestamp())::float8 AS now FROM sessions
"""
_ACTIVITY = """
SELECT state, left(query, 80) AS query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
"""
_EVENTS = (
    "SELECT seq, type, reply_id, data::text AS data FROM events WHERE session_id = :id ORDER BY seq"
)
_LAST = "SELECT session_id AS id, max(seq) AS last FROM events GROUP BY session_id"
_REPLIES = """
SELECT id, session_id, finished_reason, extract(epoch FROM created_at)::float8 AS created,
  extract(epoch FROM finished_at)::float8 AS finished FROM replies
"""
_TAKEOVER = """
SELECT extract(epoch FROM min(at))::float8 AS at FROM events
WHERE session_id = :session AND reply_id = :reply AND epoch > :epoch
  AND type NOT IN ('MESSAGE_RECEIVED', 'USER_INTERRUPT')
"""


@dataclass
class Found:
    """What the checker saw."""

    violations: list[str]
    counts: Counter[str]
    takeovers: dict[str, list[float]]
    known: list[str] = field(default_factory=list)
    """Violations that `tests.faults.known` explains."""

    def excuse(self) -> None:
        """Set those apart that are known."""
        self.known = [each for each in self.violations if is_known(each)]
        self.violations = [each for each in self.violations if not is_known(each)]


async def until_idle(database: Database, *, seconds: float) -> bool:
    """Wait until no session has anything to do, nor a holder; twice, since a late request may come."""
    quiet = 0
    for _ in range(int(seconds / 0.1)):
        row = await database.first(_BUSY, {})
        assert row is not None
        quiet = quiet + 1 if not row.busy and not row.held else 0
        if quiet > 5:
            return True
        await asyncio.sleep(0.1)
    return False


async def check(
    database: Database,
    history: History,
    *,
    ttl: float,
    readers: Sequence[Reader] = (),
    folder: Path | None = None,
    urls: Iterable[str] = (),
) -> Found:
    """Return everything that is wrong when all should be idle.

    Args:
        database: The run's database, reached beside every relay.
        history: What clients know.
        ttl: Of leases, in seconds.
        readers: Those that followed sessions all along; they end here.
        folder: Where replicas write their logs, effects and refused writes.
        urls: The replicas, whose pools are looked at.
    """
    found = Found([*history.violations], Counter(history.counts), defaultdict(list))
    tools = _Tools()
    by_session: dict[str, list[Submission]] = defaultdict(list)
    for submission in history.submissions:
        by_session[submission.session].append(submission)
    watched: dict[str, list[Reader]] = defaultdict(list)
    for reader in readers:
        watched[reader.session].append(reader)
    sessions = {row.id for row in await database.all("SELECT id FROM sessions", {})}
    await _read_up(database, readers)
    for session in sorted(sessions | set(by_session)):
        if session not in sessions:
            found.violations.append(f"3: {session} was made and is not there")
            continue
        found.violations += await _stands(database, session)
        rows = await database.all(_EVENTS, {"id": session})
        events = [orjson.loads(row.data) | {"seq": row.seq} for row in rows]
        found.violations += answered(session, events, by_session[session])
        for reader in watched[session]:
            found.violations += joined(reader, events)
        found.counts["events"] += len(events)
        found.counts.update(event["type"] for event in events)
        tools.see(session, events)
    found.violations += await _in_time(database, history, ttl)
    found.violations += await idle(database, urls)
    if folder is not None:
        done = _lines(folder / "effects")
        found.violations += effects(done, tools.begun, tools.success)
        found.violations += [
            f"8: {key} was denied and took effect" for key in tools.denied & set(done)
        ]
        found.violations += _logs(folder)
        found.counts["fenced"] = len(_fenced(folder))
    found.counts["interrupted calls"] = tools.interrupted
    found.takeovers = await _takeovers(database, history)
    return found


@dataclass
class _Tools:
    """What logs say of calls whose effects are counted."""

    begun: set[str] = field(default_factory=set)
    success: Counter[str] = field(default_factory=Counter)
    interrupted: int = 0
    denied: set[str] = field(default_factory=set)

    def see(self, session: str, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            key = f"{session}:{event.get('reply_id')}:{event.get('tool_call_id')}"
            if event["type"] == "TOOL_RESULT_START" and event["tool_call_name"] in COUNTED:
                self.begun.add(key)
            for each in event.get("confirm_results", ()):
                if not each["confirmed"]:
                    self.denied.add(f"{session}:{event['reply_id']}:{each['tool_call']['id']}")
            if event["type"] == "TOOL_RESULT_END":
                self.interrupted += event["state"] == "interrupted"
                self.success[key] += event["state"] == "success" and key not in self.denied


async def _takeovers(database: Database, history: History) -> dict[str, list[float]]:
    """Return, by kind of fault, the seconds until another holder went on with each reply.

    A reply whose next holder was taken away too, before it said anything, counts from then.
    """
    found: dict[str, list[float]] = defaultdict(list)
    lost = {(each.session, each.epoch): each for each in reversed(history.bereaved)}
    for each in lost.values():
        if (each.session, each.epoch + 1) in lost:
            continue
        named = {"session": each.session, "reply": each.reply, "epoch": each.epoch}
        row = await database.first(_TAKEOVER, named)
        if row is not None and row.at is not None:
            found[each.kind].append(row.at - each.at)
    return found


def _fenced(folder: Path) -> set[tuple[str, ...]]:
    """Return the holders whose write the fence refused: replica, session, epoch."""
    return {tuple(line.split(" ")[:3]) for line in _lines(folder / "fenced")}


def answered(
    session: str, events: Sequence[dict[str, Any]], submissions: Sequence[Submission]
) -> list[str]:
    """Ask 3 and 7 of what clients were told: each acknowledged message has one reply and one end."""
    found: list[str] = []
    asked: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event["type"] == "MESSAGE_RECEIVED":
            text = "".join(block.get("text", "") for block in event["message"]["content"])
            asked[text].append(event["reply_id"])
    ends = Counter(event["reply_id"] for event in events if event["type"] == "REPLY_END")
    for submission in submissions:
        replies = asked.pop(submission.text, [])
        named = f"{session}: {submission.key or 'no key'}, {submission.text!r}"
        if submission.refused and submission.tries == 1 and replies:
            found.append(f"7: {named} was refused, and is answered by {replies}")
        if len(replies) > 1:
            found.append(f"7: {named} was accepted {len(replies)} times")
        if submission.accepted and submission.replies != set(replies):
            found.append(f"3: {named} was told {submission.replies} and the log has {replies}")
        found += [
            f"3: {named}: {reply} ended {ends[reply]} times"
            for reply in replies
            if ends[reply] != 1
        ]
    found += [f"3: {session}: nobody sent {text!r}" for text in asked]
    return found


def effects(lines: Sequence[str], begun: set[str], success: Counter[str]) -> list[str]:
    """Ask 16: an effect at most once, never before its record, and always where success is recorded."""
    counted = Counter(lines)
    found = [f"16: {key} took effect {times} times" for key, times in counted.items() if times > 1]
    found += [f"16: {key} took effect and is not in the log" for key in counted if key not in begun]
    found += [
        f"16: {key} succeeded and took no effect"
        for key in success
        if success[key] and key in begun and not counted[key]
    ]
    found += [f"6: {key} has {times} results" for key, times in success.items() if times > 1]
    return found


async def idle(database: Database, urls: Iterable[str]) -> list[str]:
    """Ask 9: no lease, no transaction, no connection taken from a pool."""
    row = await database.first(_BUSY, {})
    assert row is not None
    found = []
    if row.busy or row.held:
        found.append(f"9: {row.busy} sessions are busy and {row.held} are held")
    # Wake-ups and polls are statements too; what is open for longer is the matter.
    left: list[str] = []
    for _ in range(20):
        rows = await database.all(_ACTIVITY, {})
        left = [f"9: a connection is {each.state}: {each.query}" for each in rows]
        taken = [each for url in urls if (each := await _taken(url))]
        left += taken
        if not left:
            break
        await asyncio.sleep(0.1)
    return found + left


async def _taken(url: str) -> str:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/faults") as answer:
        count = (await answer.json())["checked_out"]
    return f"9: {url} has {count} connections taken" if count else ""


async def _stands(database: Database, session: str) -> list[str]:
    """Ask what the rows of a session say by themselves, and whether its replies are whole."""
    try:
        found = await violations(database, session)
        state, _ = await PostgresSessions(database).state(TENANT, session)
        rows = await database.all(_EVENTS, {"id": session})
        found += _said(state, [orjson.loads(row.data) for row in rows])
    except Exception as error:  # noqa: BLE001 - what cannot even be read is what is looked for
        found = [f"11: it cannot be read again: {error!r}"]
    return [f"{session}: {each}" for each in found]


def _said(state: AgentState, events: Sequence[dict[str, Any]]) -> list[str]:
    """Ask whether each complete reply says what the model says, no more and no less."""
    said = _texts(state)
    wanted = {}
    for event in events:
        if event["type"] == "MESSAGE_RECEIVED":
            wish = Wish.read(event["message"]["content"][0].get("text", ""))
            steered = event["reply_id"] in wanted
            wanted[event["reply_id"]] = wish.answer() if wish and not steered else None
    found = []
    for event in events:
        if event["type"] != "REPLY_END" or event.get("finished_reason") != "completed":
            continue
        reply = event["reply_id"]
        if wanted.get(reply) is not None and said.get(reply) != wanted[reply]:
            found.append(f"5: {reply} says {said.get(reply)!r}, not {wanted[reply]!r}")
    return found


def _texts(state: AgentState) -> dict[str, str]:
    return {
        message.id: "".join(block.text for block in message.content if block.type == "text")
        for message in state.context
    }


async def _read_up(database: Database, readers: Sequence[Reader]) -> None:
    """Let readers come to the end of their logs, if they can."""
    last = {row.id: row.last for row in await database.all(_LAST, {})}
    await asyncio.gather(
        *[reader.until(last.get(reader.session, 0), seconds=READ_UP_SECONDS) for reader in readers]
    )


def joined(reader: Reader, events: Sequence[dict[str, Any]]) -> list[str]:
    """Ask 4: what a reader has joined is the log."""
    last = events[-1]["seq"] if events else 0
    if reader.last < last:
        return [f"4: {reader.session}: a reader stands at {reader.last} of {last}"]
    seen = [orjson.loads(data) for data in reader.joined]
    if seen == list(events):
        return []
    numbers = [event["seq"] for event in seen]
    lacking = sorted({event["seq"] for event in events} - set(numbers))
    return [
        (
            f"4: {reader.session}: a reader joined {len(seen)} of {len(events)} events; "
            f"it lacks {lacking[:5]}, and saw {len(numbers) - len(set(numbers))} twice"
        )
    ]


async def _in_time(database: Database, history: History, ttl: float) -> list[str]:
    """Ask 3: outcomes come in time, counted from the last fault or the message, whichever was later."""
    found = []
    for row in await database.all(_REPLIES, {}):
        due = max(row.created, history.last_fault) + ttl + BEYOND_TTL_SECONDS
        if row.finished is not None and row.finished > due:
            found.append(f"3: {row.session_id}: {row.id} ended {row.finished - due:.1f} s too late")
    return found


def _logs(folder: Path) -> list[str]:
    """Ask 12 of the replicas' logs: no failure that nobody foresaw."""
    found: Counter[str] = Counter()
    for log in sorted(folder.glob("*.log")):
        said, last, broke = "", "", False
        for line in [*_lines(log), "Task end"]:
            if _BEGINS.match(line):
                if broke:
                    found[f"12: {log.name}: {said}: {last}"] += 1
                said, broke = _BEGINS.sub("", line)[:60].strip(), False
            elif "Traceback (most recent call last)" in line:
                broke = True
            elif _RAISED.match(line):
                last = line[:120]
    return [f"{each} (x{times})" for each, times in found.items()]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def summary(found: Found) -> str:
    """Return violations as one text, the first hundred of them."""
    return json.dumps(found.violations[:100], indent=1)
