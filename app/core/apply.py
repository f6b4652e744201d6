"""What an event changes: `apply` for one, `fold` for a log.

The state is what the log says. Nothing else changes it, so that a session can be rebuilt from its
log, a reply that died goes on elsewhere, and a test can cut a reply after any event.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from pydantic import BaseModel

from app.core.events import (
    ConfirmResult,
    Event,
    ExternalExecutionResultEvent,
    HintBlockEvent,
    MessageJoinedEvent,
    MessageReceivedEvent,
    ModelCallEndEvent,
    ModelCallStartEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    StateUpdatedEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from app.core.messages import (
    Base64Source,
    Block,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    Usage,
)
from app.core.state import AgentState, TasksContext, load_state


@dataclass
class OpenBlock:
    """A block that is being streamed; it joins the context when it is whole."""

    kind: Literal["text", "thinking", "tool_call"]
    name: str
    created_at: str
    parts: list[str] = field(default_factory=list[str])
    whole: Block | None = None


@dataclass
class OpenResult:
    """A tool's result that is being streamed."""

    name: str
    created_at: str
    parts: list[TextBlock | DataBlock] = field(default_factory=list[TextBlock | DataBlock])
    text: list[str] = field(default_factory=list[str])

    def close_text(self) -> None:
        """Make a block of the text so far, so that data can follow it."""
        if self.text:
            self.parts.append(TextBlock(text="".join(self.text), created_at=self.created_at))
            self.text.clear()

    def output(self) -> str | list[TextBlock | DataBlock]:
        """Return what the tool has said: plain text unless it sent data too."""
        if not self.parts:
            return "".join(self.text)
        self.close_text()
        return list(self.parts)


class Calls(BaseModel):
    """What is known of the unfinished calls of a reply beyond their blocks; stored beside the state.

    Attributes:
        started: Calls whose tool was started, and when: it may have taken effect.
        decided: Calls that will not run, and what people said instead.
        returned: Results that somebody else has told, not yet part of the context.
    """

    started: dict[str, str] = {}
    decided: dict[str, ConfirmResult] = {}
    returned: dict[str, ToolResultBlock] = {}

    def forget(self, call_id: str) -> None:
        """Drop what is known of a call that has its result."""
        for each in (self.started, self.decided, self.returned):
            each.pop(call_id, None)

    def __bool__(self) -> bool:
        return bool(self.started or self.decided or self.returned)


@dataclass
class Standing:
    """Where a session stands: its state, and beside it what is under way.

    Attributes:
        state: What the agent knows. Blocks join its context when they are whole.
        agent_name: The agent that writes the current reply.
        received: Messages accepted and not yet part of the context, by the reply that will answer.
        open: Blocks being streamed, in the order in which they began.
        results: Tool results being streamed, by call.
        calling: Whether a model is being asked.
        answered: Whether the last model call gave the reply's answer.
        ended: Whether no reply is being written.
        call: The blocks that the model call under way has begun: id to kind.
        calls: What is known of unfinished calls beyond their blocks.
    """

    state: AgentState
    agent_name: str = ""
    received: dict[str, list[Msg]] = field(default_factory=dict[str, list[Msg]])
    open: dict[str, OpenBlock] = field(default_factory=dict[str, OpenBlock])
    results: dict[str, OpenResult] = field(default_factory=dict[str, OpenResult])
    calling: bool = False
    answered: bool = False
    ended: bool = True
    call: dict[str, str] = field(default_factory=dict[str, str])
    calls: Calls = field(default_factory=Calls)

    def half_written(self) -> list[str]:
        """Name the blocks of the model call under way, whole ones too; none between two calls."""
        return list(self.call)

    def reopen_results(self) -> None:
        """Open the results of calls that somebody else executes, which were announced before."""
        for call in self.state.get_unfinished_tool_calls(self.agent_name):
            at = self.calls.started.get(call.id)
            if call.state == "submitted" and at is not None:
                self.results[call.id] = OpenResult(call.name, at)

    def waiting_calls(self) -> list[ToolCallBlock]:
        """Return the calls that wait for people, or for somebody else to execute them."""
        return [
            call
            for call in self.state.get_unfinished_tool_calls(self.agent_name)
            if (call.state == "asking" and call.id not in self.calls.decided)
            or (call.state == "submitted" and call.id not in self.calls.returned)
        ]

    def is_own(self, message: Msg) -> bool:
        """Tell whether the current reply writes a message, or a part of it."""
        return message.role == "assistant" and message.id == self.state.reply_id

    def written_blocks(self) -> list[str]:
        """Name every block that the current reply has written."""
        own = [message for message in self.state.context if self.is_own(message)]
        written = [block.id for message in own for block in message.content]
        return list(dict.fromkeys([*written, *self.call]))

    def usage(self) -> Usage | None:
        """Sum up what the current reply has cost, whose message may go on behind another one."""
        own = [message for message in self.state.context if self.is_own(message)]
        costs = [message.usage for message in own if message.usage]
        return reduce(Usage.plus, costs) if costs else None


def fold(events: Iterable[Event], start: AgentState | None = None) -> Standing:
    """Say where a session stands after these events.

    Args:
        events: The log, oldest first.
        start: The state in which the session began; changed in place. Empty when not given.
    """
    standing = Standing(state=start if start is not None else AgentState())
    for event in events:
        apply(standing, event)
    return standing


def apply(standing: Standing, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - one case an event
    """Change a standing in place by one event.

    Events for blocks and calls that are not known are ignored: a reader may begin anywhere.
    """
    match event:
        case TextBlockDeltaEvent() | ThinkingBlockDeltaEvent():
            if block := standing.open.get(event.block_id):
                block.parts.append(event.delta)
        case ToolCallDeltaEvent():
            if block := standing.open.get(event.tool_call_id):
                block.parts.append(event.delta)
        case ToolResultTextDeltaEvent():
            if result := standing.results.get(event.tool_call_id):
                result.text.append(event.delta)
        case TextBlockStartEvent():
            _open(standing, event.block_id, OpenBlock("text", "", event.created_at))
        case ThinkingBlockStartEvent():
            _open(standing, event.block_id, OpenBlock("thinking", "", event.created_at))
        case ToolCallStartEvent():
            block = OpenBlock("tool_call", event.tool_call_name, event.created_at)
            _open(standing, event.tool_call_id, block)
        case TextBlockEndEvent() | ThinkingBlockEndEvent():
            _close(standing, event.block_id, event)
        case ToolCallEndEvent():
            _close(standing, event.tool_call_id, event)
        case HintBlockEvent():
            hint = HintBlock(
                id=event.block_id,
                hint=event.hint,
                source=event.source,
                created_at=event.created_at,
                finished_at=event.created_at,
            )
            _append(standing, [hint], event.created_at)
        case ToolResultStartEvent():
            result = OpenResult(event.tool_call_name, event.created_at)
            standing.results[event.tool_call_id] = result
            standing.calls.started[event.tool_call_id] = event.created_at
            _change_call(standing, event.tool_call_id, state="allowed")
        case ToolResultDataDeltaEvent():
            if result := standing.results.get(event.tool_call_id):
                _add_data(result, event)
        case ToolResultEndEvent():
            _finish_result(standing, event)
        case ModelCallStartEvent():
            standing.answered = False
            standing.calling = True
            standing.call = {}
        case ModelCallEndEvent():
            _finish_call(standing, event)
        case RequireUserConfirmEvent():
            for call in event.tool_calls:
                _change_call(standing, call.id, state="asking")
        case RequireExternalExecutionEvent():
            for call in event.tool_calls:
                _change_call(standing, call.id, state="submitted")
        case UserConfirmResultEvent():
            for decided in event.confirm_results:
                _decide(standing, decided)
        case ExternalExecutionResultEvent():
            for each in event.execution_results:
                standing.calls.returned[each.id] = each
        case MessageJoinedEvent():
            _join(standing, event)
        case MessageReceivedEvent():
            waiting = standing.received.setdefault(event.reply_id, [])
            if all(message.id != event.message.id for message in waiting):
                waiting.append(event.message)
        case ReplyStartEvent():
            _start_reply(standing, event)
        case ReplyResumedEvent():
            _withdraw(standing, event)
        case ReplyEndEvent():
            _end_reply(standing, event)
        case StateUpdatedEvent():
            _update(standing, event)
        case UserInterruptEvent():
            pass


def _open(standing: Standing, block_id: str, block: OpenBlock) -> None:
    standing.open[block_id] = block
    standing.call[block_id] = block.kind


def _decide(standing: Standing, decided: ConfirmResult) -> None:
    """Let a call run as a person wants it, or take down what is said instead."""
    call = decided.tool_call
    if decided.confirmed:
        _change_call(standing, call.id, state="allowed", name=call.name, input=call.input)
    else:
        standing.calls.decided[call.id] = decided


def _join(standing: Standing, event: MessageJoinedEvent) -> None:
    """Put a steering message behind what the reply has said so far, which is closed by it."""
    state = standing.state
    waiting = standing.received.get(event.reply_id, [])
    joining = [message for message in waiting if message.id == event.message_id]
    if not joining:
        return
    standing.received[event.reply_id] = [each for each in waiting if each not in joining]
    if state.own_tail(standing.agent_name) is not None:
        finished = {"finished_at": event.created_at or None}
        state.context[-1] = state.context[-1].model_copy(update=finished)
    state.context.extend(joining)
    standing.answered = False


def _append(standing: Standing, blocks: list[Block], at: str) -> None:
    """Add blocks to the reply's message; a message that this begins is dated by its first event."""
    state = standing.state
    begun = len(state.context)
    state.append_context(standing.agent_name, blocks)
    if len(state.context) > begun:
        state.context[-1] = state.context[-1].model_copy(update={"created_at": at})


def _close(
    standing: Standing,
    block_id: str,
    event: TextBlockEndEvent | ThinkingBlockEndEvent | ToolCallEndEvent,
) -> None:
    """Make a block whole; blocks join the context in the order in which they began."""
    block = standing.open.get(block_id)
    if block is None:
        return
    said = "".join(block.parts)
    begun, ended = block.created_at, event.created_at or None
    match block.kind, event:
        case "text", TextBlockEndEvent():
            text = said if event.text is None else event.text
            block.whole = TextBlock(id=block_id, text=text, created_at=begun, finished_at=ended)
        case "thinking", _:
            thought = ThinkingBlock(id=block_id, thinking=said, created_at=begun, finished_at=ended)
            block.whole = thought.model_copy(update=dict(event.metadata))
        case _:
            block.whole = ToolCallBlock(
                id=block_id, name=block.name, input=said, created_at=begun, finished_at=ended
            )
    while standing.open:
        first_id, first = next(iter(standing.open.items()))
        if first.whole is None:
            return
        del standing.open[first_id]
        _append(standing, [first.whole], first.created_at)


def _change_call(standing: Standing, call_id: str, **change: str) -> None:
    tail = standing.state.own_tail(standing.agent_name)
    if tail is None:
        return
    for at in range(len(tail.content) - 1, -1, -1):
        block = tail.content[at]
        if isinstance(block, ToolCallBlock) and block.id == call_id:
            tail.content[at] = block.model_copy(update=change)
            return


def _add_data(result: OpenResult, event: ToolResultDataDeltaEvent) -> None:
    result.close_text()
    if event.url is not None:
        source = URLSource(url=event.url, media_type=event.media_type)
    else:
        source = Base64Source(data=event.data or "", media_type=event.media_type)
    block = DataBlock(id=event.block_id, source=source, created_at=event.created_at)
    result.parts.append(block)


def _finish_result(standing: Standing, event: ToolResultEndEvent) -> None:
    result = standing.results.pop(event.tool_call_id, None)
    if result is None:
        return
    standing.calls.forget(event.tool_call_id)
    block = ToolResultBlock(
        id=event.tool_call_id,
        name=result.name,
        output=result.output(),
        state=event.state,
        metadata=event.metadata,
        created_at=result.created_at,
        finished_at=event.created_at or None,
    )
    _append(standing, [block], event.created_at)
    _change_call(standing, event.tool_call_id, state="finished", finished_at=event.created_at)
    state = standing.state
    if event.state != "interrupted" and not state.get_unfinished_tool_calls(standing.agent_name):
        state.cur_iter += 1


def _finish_call(standing: Standing, event: ModelCallEndEvent) -> None:
    state = standing.state
    standing.calling = False
    begun, standing.call = list(standing.call.values()), {}
    if not begun:
        _append(standing, [], event.created_at)
    usage = Usage(
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
        cache_input_tokens=event.cache_input_tokens,
        cache_creation_input_tokens=event.cache_creation_input_tokens,
    )
    tail = state.own_tail(standing.agent_name)
    if tail is not None:
        total = usage if tail.usage is None else tail.usage.plus(usage)
        state.context[-1] = tail.model_copy(update={"usage": total})
    if event.finished_reason == "completed" and "tool_call" not in begun:
        state.cur_iter += 1
        standing.answered = not begun or "text" in begun


def _start_reply(standing: Standing, event: ReplyStartEvent) -> None:
    state = standing.state
    standing.agent_name = event.name
    standing.answered = standing.ended = standing.calling = False
    standing.open.clear()
    standing.results.clear()
    standing.calls = Calls()
    standing.call = {}
    state.context.extend(standing.received.pop(event.reply_id, []))
    state.reply_context = state.reply_context.model_copy(
        update={
            "reply_id": event.reply_id,
            "cur_iter": 0,
            "structured_schema": None,
            "structured_output": None,
        }
    )


def _withdraw(standing: Standing, event: ReplyResumedEvent) -> None:
    """Take back what a broken model call has said, and the results that were being streamed.

    Results that somebody else is to tell are not broken: they go on being waited for. Of a reply that
    is rolled back nothing stays.
    """
    state = standing.state
    standing.open.clear()
    standing.calling = False
    standing.call = {}
    submitted = {
        call.id
        for call in state.get_unfinished_tool_calls(standing.agent_name)
        if call.state == "submitted"
    }
    standing.results = {
        call_id: result for call_id, result in standing.results.items() if call_id in submitted
    }
    if event.reason == "rolled_back":
        state.context[:] = [each for each in state.context if not standing.is_own(each)]
        return
    tail = state.own_tail(standing.agent_name)
    discard = set(event.discard)
    if tail is None or not discard.intersection(block.id for block in tail.content):
        return
    state.context.pop()
    if kept := [block for block in tail.content if block.id not in discard]:
        # Anew, because what was read of a message may be remembered as long as it is the same.
        state.context.append(tail.model_copy(update={"content": kept}))


def _end_reply(standing: Standing, event: ReplyEndEvent) -> None:
    standing.ended = True
    standing.open.clear()
    standing.results.clear()
    standing.calls = Calls()
    standing.received.pop(event.reply_id, None)
    tail = standing.state.own_tail(standing.agent_name)
    if tail is not None and tail.id == event.reply_id:
        standing.state.context[-1] = tail.model_copy(
            update={
                "finished_at": event.created_at or None,
                "finished_reason": event.finished_reason,
                "error": event.error,
            }
        )


def _update(standing: Standing, event: StateUpdatedEvent) -> None:
    match event.part:
        case "tasks":
            standing.state.tasks_context = TasksContext.model_validate(event.value)
        case "hint":
            hint = HintBlock.model_validate(event.value)
            _append(standing, [hint], hint.created_at)
        case "state":
            standing.state = load_state(event.value)
        case "environment":
            pass
