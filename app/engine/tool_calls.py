"""Runs tool calls: started is recorded first, every call gets a result, and no failure is a crash."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from pydantic import JsonValue

from app.core.events import (
    ConfirmResult,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    StateUpdatedEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from app.core.messages import (
    Base64Source,
    DataBlock,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)
from app.core.records import PendingCall
from app.core.sanitise import clean_text, storable
from app.core.specs import ALL_DECISIONS
from app.core.state import TasksContext
from app.core.tokens import BYTES_PER_TOKEN
from app.core.values import JsonObject
from app.engine.equipment import Equipment
from app.engine.ids import Clock, NewId, timestamp
from app.engine.journal import Journal
from app.ports.models import ToolSchema
from app.ports.tools import DataChunk, TextChunk, Tool, ToolCall, ToolEnd

INTERRUPTED = "<system-reminder>The tool call has been interrupted by the user.</system-reminder>"
DENIED = '<system-reminder>The execution of tool "{tool}" is denied by user!</system-reminder>'
LOST = (
    "<system-reminder>The tool call was interrupted by a failure of the service before its result "
    "was recorded. It may or may not have taken effect: check before you call it again."
    "</system-reminder>"
)


@dataclass(frozen=True)
class Bench:
    """Where tool calls are run: the record that they are written to, and what they need."""

    journal: Journal
    equipment: Equipment
    clock: Clock
    new_id: NewId
    context: JsonObject = field(default_factory=dict[str, JsonValue])
    """The runtime context, for tools."""

    def now(self) -> str:
        """Return the time as a timestamp."""
        return timestamp(self.clock())


async def run_calls(bench: Bench, calls: Sequence[ToolCallBlock]) -> None:
    """Run calls in order, those of concurrent tools that stand side by side at once.

    Each call is recorded as started before its tool runs, and has its result recorded after; a call
    that fails does not stop the others. Calls that need a person, or that somebody else executes, are
    announced behind those that stand beside them, and what comes later waits too. Cancelled, it leaves
    the rest without results.
    """
    for group in _groups(bench.equipment, calls):
        runs, waits = _parted(bench, group)
        for call in runs:
            _start(bench, call)
        await bench.journal.settle()
        async with asyncio.TaskGroup() as running:
            for call in runs:
                running.create_task(_run(bench, call))
        if waits:
            ask(bench, waits)
            return
        await bench.journal.settle()


def ask(bench: Bench, calls: Sequence[ToolCallBlock]) -> None:
    """Announce calls that wait, and let the session go with that: nothing may be awaited in between."""
    journal, equipment = bench.journal, bench.equipment
    external = [call for call in calls if call.name in equipment.external]
    asked = [call for call in calls if call.name not in equipment.external]
    if external:
        for call in external:
            if call.id not in journal.standing.results:
                _start(bench, call)
        announced = [_in_state(call, "submitted") for call in external]
        journal.park(
            RequireExternalExecutionEvent(
                reply_id=_reply_id(bench), tool_calls=announced, created_at=bench.now()
            ),
            [PendingCall(kind="external", call=call) for call in announced],
        )
    if asked:
        announced = [_in_state(call, "asking") for call in asked]
        allowed = {call.id: equipment.asks.get(call.name) or list(ALL_DECISIONS) for call in asked}
        told: JsonObject = {call_id: [*decisions] for call_id, decisions in allowed.items()}
        journal.park(
            RequireUserConfirmEvent(
                reply_id=_reply_id(bench),
                tool_calls=announced,
                metadata={"allowed_decisions": told},
                created_at=bench.now(),
            ),
            [
                PendingCall(kind="confirm", call=call, decisions=allowed[call.id])
                for call in announced
            ],
        )


def _in_state(call: ToolCallBlock, state: ToolCallState) -> ToolCallBlock:
    return call.model_copy(update={"state": state})


def _parted(
    bench: Bench, group: Sequence[ToolCallBlock]
) -> tuple[list[ToolCallBlock], list[ToolCallBlock]]:
    """Say which calls of a group run and which wait; those that are decided get their results."""
    equipment, known = bench.equipment, bench.journal.standing.calls
    runs: list[ToolCallBlock] = []
    waits: list[ToolCallBlock] = []
    for call in group:
        if returned := known.returned.get(call.id):
            _hand_in(bench, call, returned)
        elif decided := known.decided.get(call.id):
            _answer(bench, call, decided)
        elif _needs_somebody(equipment, call) and not _flawed(equipment, call):
            waits.append(call)
        else:
            runs.append(call)
    return runs, waits


def _needs_somebody(equipment: Equipment, call: ToolCallBlock) -> bool:
    if call.name in equipment.external:
        return True
    return call.state != "allowed" and bool(equipment.asks.get(call.name))


def _flawed(equipment: Equipment, call: ToolCallBlock) -> bool:
    """Tell whether a call cannot run whoever allows it: nobody is asked about it then."""
    schema = equipment.schema(call.name)
    arguments = read_arguments(call.input)
    return schema is None or isinstance(arguments, str) or _mismatch(schema, arguments) is not None


def _hand_in(bench: Bench, call: ToolCallBlock, returned: ToolResultBlock) -> None:
    """Record a result that somebody else has told, cut like any other."""
    if call.id not in bench.journal.standing.results:
        _start(bench, call)
    writer = _Writer(bench, call.id)
    if isinstance(returned.output, str):
        writer.text(returned.output)
    else:
        for block in returned.output:
            match block:
                case TextBlock():
                    writer.text(block.text)
                case DataBlock(source=Base64Source(data=data, media_type=media_type)):
                    _show(bench, call.id, media_type=media_type, data=data)
                case DataBlock(source=URLSource(url=url, media_type=media_type)):
                    _show(bench, call.id, media_type=media_type, url=url)
                case _:
                    pass
    _end(bench, call.id, returned.state, returned.metadata)


def _answer(bench: Bench, call: ToolCallBlock, decided: ConfirmResult) -> None:
    """Record what a person said in place of a call that will not run."""
    _start(bench, call)
    if decided.decision == "respond":
        _Writer(bench, call.id).text(decided.message)
        _end(bench, call.id, "success", {"decision": "respond"})
        return
    _say(bench, call.id, DENIED.format(tool=call.name))
    if decided.message:
        _Writer(bench, call.id).text(f"\n{decided.message}")
    _end(bench, call.id, "denied", {"decision": "reject"})


def close_call(bench: Bench, call: ToolCallBlock, *, reason: str) -> None:
    """Give a call that will not run, or not to its end, an `interrupted` result."""
    if call.id not in bench.journal.standing.results:
        _start(bench, call)
    _say(bench, call.id, reason)
    _end(bench, call.id, "interrupted", {})


def _groups(equipment: Equipment, calls: Sequence[ToolCallBlock]) -> list[list[ToolCallBlock]]:
    """Put concurrent calls that follow each other into one group, every other call into its own."""
    groups: list[list[ToolCallBlock]] = []
    open_group = False
    for call in calls:
        tool = equipment.tools.get(call.name)
        concurrent = tool is None or tool.concurrent
        if concurrent and open_group:
            groups[-1].append(call)
        else:
            groups.append([call])
        open_group = concurrent
    return groups


async def _run(bench: Bench, call: ToolCallBlock) -> None:
    tool = bench.equipment.tools.get(call.name)
    if tool is None:
        _fail(bench, call, f"ToolNotFoundError: The tool named '{call.name}' doesn't exist.")
        return
    arguments = read_arguments(call.input)
    if isinstance(arguments, str):
        _fail(bench, call, arguments)
        return
    if problem := _mismatch(tool.schema, arguments):
        _fail(bench, call, problem)
        return
    ticket = ToolCall(
        id=call.id,
        key=f"{bench.journal.standing.state.session_id}:{bench.journal.standing.state.reply_id}:{call.id}",
        arguments=arguments,
        now=bench.now(),
        session_id=bench.journal.standing.state.session_id,
        tasks=_LivePlan(bench),
        context=bench.context,
    )
    seconds = bench.equipment.tool_timeout.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            await _stream(bench, tool, ticket)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled the call: something that the tool waited for was.
        _fail(bench, call, "The tool was cancelled from within.")
    except TimeoutError as error:
        _fail(bench, call, str(error) or f"The tool did not finish within {seconds:g} seconds.")
    except Exception as error:  # noqa: BLE001 - a tool's failure is a result, whatever it raises
        _fail(bench, call, str(error) or type(error).__name__)


async def _stream(bench: Bench, tool: Tool, ticket: ToolCall) -> None:
    """Pass a result on as it comes, up to the limit of the agent's context config."""
    writer = _Writer(bench, ticket.id)
    end = ToolEnd("success", {})
    async with aclosing(tool.run(ticket)) as chunks:
        async for chunk in chunks:
            match chunk:
                case TextChunk(text):
                    writer.text(text)
                case DataChunk():
                    _show(bench, ticket.id, media_type=chunk.media_type, data=chunk.data)
                case ToolEnd():
                    end = chunk
    metadata = storable(end.metadata)
    _end(bench, ticket.id, end.state, metadata if isinstance(metadata, dict) else {})


class _Writer:
    """Writes the text of a result, up to the limit of the agent's context config."""

    def __init__(self, bench: Bench, call_id: str) -> None:
        self._bench, self._call_id = bench, call_id
        self._left = bench.equipment.context.tool_result_limit * BYTES_PER_TOKEN
        self._cut = False

    def text(self, text: str) -> None:
        """Say more, or that there would have been more."""
        if self._cut:
            return
        text = clean_text(text)
        size = len(text.encode())
        if size > self._left:
            text = text.encode()[: self._left].decode(errors="ignore") + _cut_note(self._bench)
            self._cut = True
        self._left -= size
        if text:
            _say(self._bench, self._call_id, text)


def _cut_note(bench: Bench) -> str:
    limit = bench.equipment.context.tool_result_limit
    return (
        f"\n<<<TRUNCATED>>>\n<system-reminder>The result was longer than {limit} tokens and was cut "
        "here. Ask for less at once.</system-reminder>"
    )


def read_arguments(text: str) -> JsonObject | str:
    """Read a call's arguments; what is wrong with them, in words the model can mend, otherwise.

    Nothing is guessed: half-written JSON is refused, because a command cut in the middle is another
    command. Nothing at all means no arguments.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return (
            f"<system-reminder>Error: The arguments are not valid JSON: {str(error)[:200]}. "
            "Nothing was run. Call the tool again with one complete JSON object."
            "</system-reminder>"
        )
    if not isinstance(value, dict):
        return (
            f"<system-reminder>Error: The arguments must be a JSON object, not {_kind(value)}. "
            "Nothing was run.</system-reminder>"
        )
    cleaned = storable(value)  # pyright: ignore[reportUnknownArgumentType]
    return cleaned if isinstance(cleaned, dict) else {}


def _kind(value: object) -> str:
    match value:
        case list():
            return "a list"
        case str():
            return "a text"
        case bool():
            return "a boolean"
        case None:
            return "null"
        case _:
            return "a number"


def _mismatch(schema: ToolSchema, arguments: JsonObject) -> str | None:
    checker = Draft202012Validator(schema.parameters)
    errors: list[ValidationError] = list(checker.iter_errors(arguments))  # pyright: ignore[reportUnknownMemberType]
    if not errors:
        return None
    first = min(errors, key=lambda error: len(error.absolute_path))
    return (
        f"Input validation failed for tool '{schema.name}': {first.message[:500]} "
        f"(at {first.json_path})"
    )


class _LivePlan:
    """The session's tasks: a change is an event, so that it is recorded and shown."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def read(self) -> TasksContext:
        return self._bench.journal.standing.state.tasks_context

    def write(self, tasks: TasksContext) -> None:
        self._bench.journal.emit(
            StateUpdatedEvent(
                reply_id=self._bench.journal.standing.state.reply_id,
                part="tasks",
                value=tasks.model_dump(mode="json", exclude_none=True),
                created_at=self._bench.now(),
            )
        )


def _reply_id(bench: Bench) -> str:
    return bench.journal.standing.state.reply_id


def _start(bench: Bench, call: ToolCallBlock) -> None:
    bench.journal.emit(
        ToolResultStartEvent(
            reply_id=_reply_id(bench),
            tool_call_id=call.id,
            tool_call_name=call.name,
            created_at=bench.now(),
        )
    )


def _say(bench: Bench, call_id: str, text: str) -> None:
    bench.journal.emit(
        ToolResultTextDeltaEvent(reply_id=_reply_id(bench), tool_call_id=call_id, delta=text)
    )


def _show(
    bench: Bench, call_id: str, *, media_type: str, data: str | None = None, url: str | None = None
) -> None:
    bench.journal.emit(
        ToolResultDataDeltaEvent(
            reply_id=_reply_id(bench),
            tool_call_id=call_id,
            block_id=bench.new_id("blk"),
            media_type=media_type,
            data=data,
            url=url,
            created_at=bench.now(),
        )
    )


def _end(bench: Bench, call_id: str, state: ToolResultState, metadata: JsonObject) -> None:
    bench.journal.emit(
        ToolResultEndEvent(
            reply_id=_reply_id(bench),
            tool_call_id=call_id,
            state=state,
            metadata=metadata,
            created_at=bench.now(),
        )
    )


def _fail(bench: Bench, call: ToolCallBlock, reason: str) -> None:
    _say(bench, call.id, clean_text(reason))
    _end(bench, call.id, "error", {})
