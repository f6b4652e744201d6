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
    StateUpdatedEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from app.core.messages import ToolCallBlock, ToolResultState
from app.core.sanitise import clean_text, storable
from app.core.state import TasksContext
from app.core.tokens import BYTES_PER_TOKEN
from app.core.values import JsonObject
from app.engine.equipment import Equipment
from app.engine.ids import Clock, NewId, timestamp
from app.engine.journal import Journal
from app.ports.tools import DataChunk, TextChunk, Tool, ToolCall, ToolEnd

INTERRUPTED = "<system-reminder>The tool call has been interrupted by the user.</system-reminder>"
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
    that fails does not stop the others. Cancelled, it leaves the rest without results.
    """
    for group in _groups(bench.equipment, calls):
        for call in group:
            _start(bench, call)
        await bench.journal.settle()
        async with asyncio.TaskGroup() as running:
            for call in group:
                running.create_task(_run(bench, call))
        await bench.journal.settle()


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
    if problem := _mismatch(tool, arguments):
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
    left = bench.equipment.context.tool_result_limit * BYTES_PER_TOKEN
    cut = False
    end = ToolEnd("success", {})
    async with aclosing(tool.run(ticket)) as chunks:
        async for chunk in chunks:
            match chunk:
                case TextChunk(text) if not cut:
                    text = clean_text(text)
                    size = len(text.encode())
                    if size > left:
                        text = text.encode()[:left].decode(errors="ignore") + _cut_note(bench)
                        cut = True
                    left -= size
                    if text:
                        _say(bench, ticket.id, text)
                case DataChunk():
                    _show(bench, ticket.id, chunk)
                case ToolEnd():
                    end = chunk
                case _:
                    pass
    metadata = storable(end.metadata)
    _end(bench, ticket.id, end.state, metadata if isinstance(metadata, dict) else {})


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


def _mismatch(tool: Tool, arguments: JsonObject) -> str | None:
    checker = Draft202012Validator(tool.schema.parameters)
    errors: list[ValidationError] = list(checker.iter_errors(arguments))  # pyright: ignore[reportUnknownMemberType]
    if not errors:
        return None
    first = min(errors, key=lambda error: len(error.absolute_path))
    return (
        f"Input validation failed for tool '{tool.schema.name}': {first.message[:500]} "
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


def _show(bench: Bench, call_id: str, chunk: DataChunk) -> None:
    bench.journal.emit(
        ToolResultDataDeltaEvent(
            reply_id=_reply_id(bench),
            tool_call_id=call_id,
            block_id=bench.new_id("blk"),
            media_type=chunk.media_type,
            data=chunk.data,
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
