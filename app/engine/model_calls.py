"""Asks the model: tells the agent where it stands, then turns the answer's pieces into events."""

from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic import JsonValue

from app.core.errors import ModelError
from app.core.events import (
    Event,
    HintBlockEvent,
    ModelCallEndEvent,
    ModelCallStartEvent,
    ReplyResumedEvent,
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
)
from app.core.injection import Surroundings, inject
from app.core.messages import HintBlock, ToolCallBlock
from app.core.records import NO_USAGE
from app.core.values import JsonObject
from app.engine.equipment import Meter
from app.engine.tool_calls import Bench
from app.ports.models import (
    Finished,
    Prompt,
    Restarted,
    TextPiece,
    ThinkingPiece,
    ToolCallPiece,
)

LAST_ROUND_SOURCE = '{"label": "System", "sublabel": "Max Iterations Reached"}'
LAST_ROUND = (
    "<system-reminder>You have reached the maximum of {max_iters} reasoning-acting iterations. "
    "Summarize the work and findings so far and return the final answer as text. Do not call any "
    "tools.</system-reminder>"
)


async def call_model(bench: Bench, meter: Meter, *, last: bool) -> None:
    """Ask the model once, and record its answer.

    Args:
        bench: The record and the agent's equipment.
        meter: Counts the prompt's tokens.
        last: The rounds are used up: the model may not call tools and is asked to sum up.

    Raises:
        ModelError: The model could not answer. What it had said stays, closed.
    """
    if last and not _was_told(bench, LAST_ROUND_SOURCE):
        text = LAST_ROUND.format(max_iters=bench.equipment.max_iters)
        hint(bench, text, source=LAST_ROUND_SOURCE, shown=True)
    await _tell_where_it_stands(bench, meter)
    equipment, state = bench.equipment, bench.journal.standing.state
    bench.journal.emit(
        ModelCallStartEvent(
            reply_id=state.reply_id,
            model_name=equipment.model.name,
            created_at=bench.now(),
        )
    )
    prompt = Prompt(
        system=equipment.system_prompt,
        summary=state.summary if isinstance(state.summary, str) else "",
        context=state.context,
        tools=equipment.schemas,
        may_call_tools=not last,
    )
    answer = Answer(bench)
    finished: Finished | None = None
    try:
        async with aclosing(equipment.model.stream(prompt)) as pieces:
            async for piece in pieces:
                match piece:
                    case TextPiece(text):
                        answer.text(text)
                    case ThinkingPiece(text, extra):
                        answer.thought(text, extra)
                    case ToolCallPiece():
                        answer.tool_call(piece)
                    case Restarted():
                        answer.restart()
                    case _:
                        finished = piece
    except ModelError:
        end_model_call(bench, finished=None)
        raise
    if finished is None:
        end_model_call(bench, finished=None)
        raise ModelError("The model's answer ended without an end.", code="model_stream_cut")
    end_model_call(bench, finished=finished)


def _was_told(bench: Bench, source: str) -> bool:
    tail = bench.journal.standing.state.own_tail(bench.equipment.name)
    return tail is not None and any(
        isinstance(block, HintBlock) and block.source == source for block in tail.content
    )


async def _tell_where_it_stands(bench: Bench, meter: Meter) -> None:
    """Inject the runtime state, if anything changed that the agent must know."""
    equipment, state = bench.equipment, bench.journal.standing.state
    if not equipment.injection.inject_runtime_state:
        return
    summary = state.summary if isinstance(state.summary, str) else ""
    first = state.cur_iter == 0
    around = Surroundings(
        now=bench.clock(),
        tokens=meter.count(equipment, summary, state.context) if first else 0,
        context_size=equipment.model.context_size,
        environment=await bench.journal.environment(),
    )
    text = inject(
        state,
        agent_name=equipment.name,
        config=equipment.injection,
        context=equipment.context,
        around=around,
    )
    if text is not None:
        source = equipment.injection.injection_source
        hint(bench, text, source=source, shown=equipment.injection.emit_hint_event)


def hint(bench: Bench, text: str, *, source: str, shown: bool) -> None:
    """Append a hint to the context; one that is not shown is recorded as a change of the state."""
    reply_id, block_id, now = (
        bench.journal.standing.state.reply_id,
        bench.new_id("blk"),
        bench.now(),
    )
    event: Event
    if shown:
        event = HintBlockEvent(
            reply_id=reply_id, block_id=block_id, source=source, hint=text, created_at=now
        )
    else:
        block = HintBlock(id=block_id, hint=text, source=source, created_at=now, finished_at=now)
        event = StateUpdatedEvent(
            reply_id=reply_id,
            part="hint",
            value=block.model_dump(mode="json", exclude_none=True),
            created_at=now,
        )
    bench.journal.emit(event)


def end_model_call(bench: Bench, *, finished: Finished | None) -> None:
    """Close every block that is open and end the call; None when it was broken off.

    What is out of the ordinary stands in the event's metadata: `stop_reason` when the model was cut
    off by length or by a filter, `model` when another one answered.
    """
    journal, now = bench.journal, bench.now()
    reply_id = journal.standing.state.reply_id
    for block_id, block in list(journal.standing.open.items()):
        if block.whole is not None:
            continue
        match block.kind:
            case "text":
                journal.emit(
                    TextBlockEndEvent(reply_id=reply_id, block_id=block_id, created_at=now)
                )
            case "thinking":
                journal.emit(
                    ThinkingBlockEndEvent(reply_id=reply_id, block_id=block_id, created_at=now)
                )
            case "tool_call":
                journal.emit(
                    ToolCallEndEvent(reply_id=reply_id, tool_call_id=block_id, created_at=now)
                )
    known = finished.usage.clamped() if finished else NO_USAGE
    unusual: JsonObject = {}
    if finished and finished.reason in {"length", "content_filter"}:
        unusual["stop_reason"] = finished.reason
    if finished and finished.model:
        unusual["model"] = finished.model
    journal.emit(
        ModelCallEndEvent(
            reply_id=reply_id,
            input_tokens=known.input_tokens,
            output_tokens=known.output_tokens,
            cache_input_tokens=known.cache_input_tokens,
            cache_creation_input_tokens=known.cache_creation_input_tokens,
            finished_reason="interrupted" if finished is None else "completed",
            metadata=unusual,
            created_at=now,
        )
    )


@dataclass
class Answer:
    """Turns an answer's pieces into events: each block begins once and ends once."""

    bench: Bench
    _text_id: str = ""
    _thought_id: str = ""
    _thought_extra: JsonObject = field(default_factory=dict[str, JsonValue])
    _calls: dict[int, str] = field(default_factory=dict[int, str])

    def text(self, text: str) -> None:
        """Say more text."""
        if not text:
            return
        self._end_thought()
        journal, reply_id = self.bench.journal, self.bench.journal.standing.state.reply_id
        if not self._text_id:
            self._text_id = self.bench.new_id("blk")
            journal.emit(
                TextBlockStartEvent(
                    reply_id=reply_id, block_id=self._text_id, created_at=self.bench.now()
                )
            )
        journal.emit(TextBlockDeltaEvent(reply_id=reply_id, block_id=self._text_id, delta=text))

    def thought(self, text: str, extra: JsonObject) -> None:
        """Think more."""
        self._thought_extra |= extra
        if not text:
            return
        self._end_text()
        journal, reply_id = self.bench.journal, self.bench.journal.standing.state.reply_id
        if not self._thought_id:
            self._thought_id = self.bench.new_id("blk")
            journal.emit(
                ThinkingBlockStartEvent(
                    reply_id=reply_id, block_id=self._thought_id, created_at=self.bench.now()
                )
            )
        journal.emit(
            ThinkingBlockDeltaEvent(reply_id=reply_id, block_id=self._thought_id, delta=text)
        )

    def tool_call(self, piece: ToolCallPiece) -> None:
        """Write more of a tool call; its id is made unique in the reply."""
        self._end_thought()
        self._end_text()
        journal, reply_id = self.bench.journal, self.bench.journal.standing.state.reply_id
        call_id = self._calls.get(piece.index)
        if call_id is None:
            call_id = self._calls[piece.index] = self._unused(piece.id)
            journal.emit(
                ToolCallStartEvent(
                    reply_id=reply_id,
                    tool_call_id=call_id,
                    tool_call_name=piece.name,
                    created_at=self.bench.now(),
                )
            )
        if piece.arguments:
            journal.emit(
                ToolCallDeltaEvent(reply_id=reply_id, tool_call_id=call_id, delta=piece.arguments)
            )

    def restart(self) -> None:
        """Withdraw everything said so far: the model is asked again."""
        journal = self.bench.journal
        reply_id, now = journal.standing.state.reply_id, self.bench.now()
        journal.emit(
            ReplyResumedEvent(
                reply_id=reply_id,
                discard=journal.standing.half_written(),
                reason="model_retried",
                created_at=now,
            )
        )
        journal.emit(
            ModelCallStartEvent(
                reply_id=reply_id, model_name=self.bench.equipment.model.name, created_at=now
            )
        )
        self._text_id = self._thought_id = ""
        self._thought_extra = {}
        self._calls.clear()

    def _end_text(self) -> None:
        if self._text_id:
            self.bench.journal.emit(
                TextBlockEndEvent(
                    reply_id=self.bench.journal.standing.state.reply_id,
                    block_id=self._text_id,
                    created_at=self.bench.now(),
                )
            )
            self._text_id = ""

    def _end_thought(self) -> None:
        if self._thought_id:
            self.bench.journal.emit(
                ThinkingBlockEndEvent(
                    reply_id=self.bench.journal.standing.state.reply_id,
                    block_id=self._thought_id,
                    metadata=self._thought_extra,
                    created_at=self.bench.now(),
                )
            )
            self._thought_id, self._thought_extra = "", {}

    def _unused(self, call_id: str) -> str:
        """Return an id that no call of this reply has: some providers count from 0 in every answer."""
        call_id = call_id or self.bench.new_id("call")
        standing = self.bench.journal.standing
        tail = standing.state.own_tail(self.bench.equipment.name)
        taken = set(standing.open)
        if tail is not None:
            taken |= {each.id for each in tail.content if isinstance(each, ToolCallBlock)}
        unique, copies = call_id, 1
        while unique in taken:
            copies += 1
            unique = f"{call_id}-{copies}"
        return unique
