"""What a holder of a session has not written yet, and what it has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from app.core.apply import Calls, OpenResult, Standing
from app.core.events import (
    Event,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from app.core.messages import Block, Msg, Usage
from app.ports.leases import Checkpoint, Ended, Joined, Parked, Started, StoredMessage, Transition

Delta: TypeAlias = (
    TextBlockDeltaEvent | ThinkingBlockDeltaEvent | ToolCallDeltaEvent | ToolResultTextDeltaEvent
)

MOST_JOINED = 65_536
"""Characters of a delta beyond which nothing more is joined to it."""


@dataclass
class Pending:
    """What waits to be written, in order."""

    events: list[Event] = field(default_factory=list[Event])
    checkpoint: Checkpoint | None = None
    transitions: list[Transition] = field(default_factory=list[Transition])
    usage: Usage | None = None
    _delta: Delta | None = None
    _parts: list[str] = field(default_factory=list[str])
    _size: int = 0

    def add(self, event: Event) -> None:
        """Take an event in; a delta of the block that the last one is of becomes one with it."""
        if isinstance(event, Delta):
            if self._delta is not None and _continues(self._delta, event):
                self._parts.append(event.delta)
                self._size += len(event.delta)
                if self._size > MOST_JOINED:
                    self.whole()
                return
            self.whole()
            self._delta, self._parts, self._size = event, [event.delta], len(event.delta)
        else:
            self.whole()
        self.events.append(event)

    def whole(self) -> None:
        """Make the last delta say everything that was joined to it."""
        if self._delta is not None and len(self._parts) > 1:
            said = "".join(self._parts)
            self.events[-1] = self._delta.model_copy(update={"delta": said})
        self._delta = None


def _continues(last: Delta, event: Delta) -> bool:
    match last, event:
        case (TextBlockDeltaEvent(), TextBlockDeltaEvent()) | (
            ThinkingBlockDeltaEvent(),
            ThinkingBlockDeltaEvent(),
        ):
            return last.block_id == event.block_id
        case (ToolCallDeltaEvent(), ToolCallDeltaEvent()) | (
            ToolResultTextDeltaEvent(),
            ToolResultTextDeltaEvent(),
        ):
            return last.tool_call_id == event.tool_call_id
        case _:
            return False


def kind_of(pending: Pending) -> str:
    """Name what a write records by the weightiest thing in it, as fail points do."""
    kinds = {type(each) for each in pending.transitions}
    kinds |= {type(each) for each in pending.events}
    named = [name for kind, name in _KINDS.items() if kind in kinds]
    return (named or ["delta" if pending.events else "renew"])[0]


_KINDS: dict[type, str] = {
    Ended: "end",
    Parked: "park",
    Joined: "join",
    Started: "start",
    ToolResultEndEvent: "result",
    ToolResultStartEvent: "call",
}


@dataclass(frozen=True)
class BeforeEnd:
    """What the end of a reply changes in a standing, to be undone when the end is refused."""

    tail: Msg | None
    calls: Calls
    received: list[Msg]
    reply_id: str
    results: dict[str, OpenResult]

    @classmethod
    def of(cls, standing: Standing, reply_id: str) -> "BeforeEnd":
        """Take down what is to be undone."""
        return cls(
            tail=standing.state.own_tail(standing.agent_name),
            calls=standing.calls,
            received=standing.received.get(reply_id, []),
            reply_id=reply_id,
            results=dict(standing.results),
        )

    def restore(self, standing: Standing) -> None:
        """Undo it."""
        standing.ended = False
        standing.calls = self.calls
        standing.results = self.results
        if self.received:
            standing.received[self.reply_id] = self.received
        if self.tail is not None:
            standing.state.context[-1] = self.tail


@dataclass(frozen=True)
class Saved:
    """The last message of a context as it is stored: it alone, and what comes behind it, may change."""

    index: int
    message: Msg | None
    blocks: Sequence[Block]

    @classmethod
    def of(cls, standing: Standing) -> "Saved":
        """Take down the context's last message as it is now."""
        context = standing.state.context
        if not context:
            return cls(0, None, ())
        return cls(len(context) - 1, context[-1], list(context[-1].content))

    def changes(self, context: Sequence[Msg], *, base_pos: int) -> Iterator[StoredMessage]:
        """Say which messages and blocks are new or changed since.

        Yields:
            Each such message, with the blocks to write.
        """
        for index in range(self.index, len(context)):
            message = context[index]
            same = index == self.index and self.message is not None
            known = self.blocks if same else ()
            changed = {
                at: block
                for at, block in enumerate(message.content)
                if at >= len(known) or known[at] is not block
            }
            if changed or not (same and message is self.message):
                yield StoredMessage(base_pos + index, message, changed)
