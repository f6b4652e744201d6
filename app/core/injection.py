"""Runtime-state injection: which hint, if any, an agent gets before a reasoning step.

Four dimensions, each with its own timing, and the live environment beside them. What was told is read
off the context itself, so nothing has to be remembered elsewhere, a compression that drops a hint
makes it due again, and a state written by AgentScope goes on here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from app.core.messages import Block, HintBlock, Msg, ToolCallBlock, ToolResultBlock, text_of
from app.core.specs import ContextConfig, InjectionConfig
from app.core.state import AgentState

CLOCK_SKEW = timedelta(minutes=1)
"""How far a recorded time may lie in the future before it counts as wrong: replicas' clocks differ."""

GONE = "no longer available"
"""Told in place of a live value that was removed."""


@dataclass(frozen=True)
class Surroundings:
    """What the runtime knows at a reasoning step, beside the state.

    Attributes:
        now: The time; aware.
        tokens: Tokens of the whole prompt, this injection not counted.
        context_size: Tokens that the model's window holds.
        environment: Live values of the session's surroundings, as text.
    """

    now: datetime
    tokens: int
    context_size: int
    environment: Mapping[str, str]


def inject(
    state: AgentState,
    *,
    agent_name: str,
    config: InjectionConfig,
    context: ContextConfig,
    around: Surroundings,
) -> str | None:
    """Say what the agent has to be told before it reasons.

    Pure: the caller appends the text as a hint block with the config's `injection_source`, at `now`.

    Args:
        state: Where the agent stands.
        agent_name: Which agent; other agents' messages are neither hints nor calls of its own.
        config: What is told and when.
        context: The ratios at which the window counts as nearly full, resolved.
        around: The runtime's readings.

    Returns:
        The text of the hint; None when nothing changed that the agent must know, or while its calls
        wait for results.
    """
    if not config.inject_runtime_state or state.get_unfinished_tool_calls(agent_name):
        return None
    if state.has_awaiting_tool_calls(agent_name):
        return None
    told = _Told(state, agent_name, config.injection_source)
    fields: dict[str, str] = {}
    if _time_is_due(told, config, around.now):
        local = around.now.astimezone(ZoneInfo(config.timezone))
        fields["current-time"] = local.strftime(config.time_format)
        fields["timezone"] = config.timezone
    if text := _tasks(state, told, config):
        fields["tasks"] = text
    if text := _context_length(state, told, context, around):
        fields["context-length"] = text
    if text := _tool_error(told, config):
        fields["tool-error"] = text
    changed = _changed_surroundings(told, config, around.environment)
    if not fields and not changed:
        return None
    fields.update(config.extra_fields)
    fields.update(around.environment)
    fields.update(changed)
    lines = "\n".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return config.template.replace("{runtime_state}", lines)


def escape(value: str) -> str:
    """Write a value so that it cannot open or close a field."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Told:
    """What the agent has been told and has done, newest first, read off its own messages."""

    def __init__(self, state: AgentState, agent_name: str, source: str) -> None:
        self._state = state
        self._agent_name = agent_name
        self._source = source

    def messages(self) -> Iterator[Msg]:
        for message in reversed(self._state.context):
            if message.role == "assistant" and message.name == self._agent_name:
                yield message

    def blocks(self) -> Iterator[Block]:
        for message in self.messages():
            yield from reversed(message.content)

    def is_hint(self, block: Block) -> bool:
        return isinstance(block, HintBlock) and block.source == self._source

    def hint_with(self, name: str) -> tuple[HintBlock, str] | None:
        """Find the newest injection that told a field, and the field's text as it was written."""
        pattern = re.compile(f"<{name}>(.*?)</{name}>", re.DOTALL)
        for block in self.blocks():
            if isinstance(block, HintBlock) and self.is_hint(block):
                found = pattern.search(text_of(block.hint))
                if found:
                    return block, found[1].strip()
        return None

    def knows_tasks(self, task_tools: list[str]) -> bool:
        return any(
            (isinstance(block, ToolCallBlock) and block.name in task_tools)
            or (
                isinstance(block, HintBlock)
                and self.is_hint(block)
                and "<tasks>" in text_of(block.hint)
            )
            for block in self.blocks()
        )

    def has_untold_result(self) -> bool:
        """Tell whether there is a tool result since the agent was last told of a failure.

        Looks back to the newest message with more than hints: before its words there was a step like
        this one, which has seen all results that are older.
        """
        for message in self.messages():
            for block in reversed(message.content):
                if isinstance(block, ToolResultBlock):
                    return True
                if (
                    isinstance(block, HintBlock)
                    and self.is_hint(block)
                    and "<tool-error>" in text_of(block.hint)
                ):
                    return False
            if not all(isinstance(block, HintBlock) for block in message.content):
                return False
        return False

    def results(self) -> Iterator[tuple[ToolResultBlock, str | None]]:
        """Yield the tool results, newest first, each with its call's arguments if they are known."""
        for message in self.messages():
            calls: dict[str, str] = {}
            answered: list[tuple[ToolResultBlock, str | None]] = []
            for block in message.content:
                if isinstance(block, ToolCallBlock):
                    calls[block.id] = block.input
                elif isinstance(block, ToolResultBlock):
                    answered.append((block, calls.get(block.id)))
            yield from reversed(answered)

    def in_this_reply(self, name: str) -> bool:
        tail = self._state.own_tail(self._agent_name)
        return tail is not None and any(
            isinstance(block, HintBlock)
            and self.is_hint(block)
            and f"<{name}>" in text_of(block.hint)
            for block in tail.content
        )


def _time_is_due(told: _Told, config: InjectionConfig, now: datetime) -> bool:
    hint = told.hint_with("current-time")
    if hint is None:
        return True
    block, written = hint
    zone = re.search(r"<timezone>(.*?)</timezone>", text_of(block.hint))
    moved = zone is not None and zone[1].strip() != config.timezone
    if moved and "%z" not in config.time_format:  # a time told with its offset stays true
        return True
    recorded = _aware(block.created_at) or _recorded(written, config, now)
    if recorded is None:
        return True
    elapsed = now.astimezone(UTC) - recorded.astimezone(UTC)
    if elapsed < -CLOCK_SKEW:
        return True
    return elapsed.total_seconds() > config.time_interval * 3600


def _aware(timestamp: str) -> datetime | None:
    """Read the instant of a hint that we wrote; AgentScope's naive local times tell none."""
    try:
        instant = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return instant if instant.tzinfo else None


def _recorded(written: str, config: InjectionConfig, now: datetime) -> datetime | None:
    """Read a time back from the text of a hint; a repeated hour is taken as the later one possible."""
    try:
        read = datetime.strptime(written, config.time_format)  # noqa: DTZ007 - the zone is added below
    except ValueError:
        return None
    if read.tzinfo is not None:
        return read
    zone = ZoneInfo(config.timezone)
    folds = [read.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    past = [instant for instant in folds if instant <= now]
    return max(past) if past else min(folds)


def _tasks(state: AgentState, told: _Told, config: InjectionConfig) -> str | None:
    states = [task.state for task in state.tasks_context.tasks]
    in_progress, pending = states.count("in_progress"), states.count("pending")
    if not (in_progress or pending) or told.knows_tasks(config.task_tool_names):
        return None
    return (
        f"You have {in_progress} in-progress tasks and {pending} pending tasks. "
        "Use `TaskList` to view them if you don't know."
    )


def _context_length(
    state: AgentState, told: _Told, context: ContextConfig, around: Surroundings
) -> str | None:
    if state.cur_iter != 0 or told.in_this_reply("context-length"):
        return None
    # Rounded to a millionth of a token: 0.3 - 0.1 must not be less than 0.2.
    buffer_begins = round(
        (context.trigger_ratio - context.context_buffer_ratio) * around.context_size, 6
    )
    if around.tokens <= buffer_begins:
        return None
    threshold = int(round(context.trigger_ratio * around.context_size, 6))
    text = f"Your current context contains {around.tokens} tokens"
    if around.tokens > threshold:
        text += f", above the {threshold} tokens at which your context is compressed."
    else:
        text += f". When reaching {threshold} tokens, your context will be compressed."
    working = any(task.state == "in_progress" for task in state.tasks_context.tasks)
    if context.compression_tool_enabled and not working:
        text += (
            " No task is in progress, so judge by yourself whether the context should be "
            "compressed now by calling `CompressContext`."
        )
    return text


def _tool_error(told: _Told, config: InjectionConfig) -> str | None:
    """Count the newest failures of one tool with the same arguments, unless they were told of."""
    if not told.has_untold_result():
        return None
    tool_name, arguments, count = "", None, 0
    for result, given in told.results():
        written = None if given is None else _arguments(given)
        if count == 0:
            tool_name, arguments = result.name, written
        if result.state != "error" or result.name != tool_name:
            break
        if written is None or written != arguments:
            break
        count += 1
    if count < config.tool_retries_limit:
        return None
    values = {"{tool_name}": tool_name, "{count}": str(count)}
    return re.sub(
        r"\{tool_name\}|\{count\}", lambda found: values[found[0]], config.tool_retries_hint
    )


def _arguments(text: str) -> str:
    """Write arguments so that equal calls are equal text: key order and escapes do not matter."""
    if not text.strip():
        return "{}"
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()


def _changed_surroundings(
    told: _Told, config: InjectionConfig, environment: Mapping[str, str]
) -> dict[str, str]:
    """Find the trigger fields whose value is not what the agent was told last."""
    changed: dict[str, str] = {}
    for name in config.trigger_fields:
        known = told.hint_with(name)
        value = environment.get(name, config.extra_fields.get(name))
        if value is None:
            value = GONE if known is not None else None
        if value is not None and (known is None or known[1] != escape(value).strip()):
            changed[name] = value
    return changed
