"""Holds a session: records what happens under its fence, and notices when the session is lost."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from app.core.apply import Standing, apply
from app.core.errors import BearingsError, NotSent, Unavailable
from app.core.events import (
    Event,
    HintBlockEvent,
    ModelCallEndEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    StateUpdatedEvent,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallDeltaEvent,
    ToolResultEndEvent,
    ToolResultTextDeltaEvent,
)
from app.core.messages import Block, Msg, Usage
from app.core.records import Environment, LogEntry
from app.core.specs import environment_text
from app.engine.wakeups import Wakeups
from app.ports.leases import (
    Batch,
    Checkpoint,
    Draft,
    Ended,
    Lease,
    Leases,
    Loaded,
    Started,
    StoredMessage,
)

_DELTAS = (
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallDeltaEvent,
    ToolResultTextDeltaEvent,
)
_BORDERS = (
    ReplyStartEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ToolResultEndEvent,
    StateUpdatedEvent,
    ReplyResumedEvent,
    ReplyEndEvent,
)
"""Events behind which the state is whole and worth storing."""


RETRY_SECONDS = 0.2
MOST_JOINED = 4_096
"""Characters of a delta beyond which nothing more is joined to it: joining copies."""


@dataclass
class _Pending:
    """What waits to be written, in order."""

    events: list[Event] = field(default_factory=list[Event])
    checkpoint: Checkpoint | None = None
    transitions: list[Started | Ended] = field(default_factory=list[Started | Ended])
    usage: Usage | None = None


class LeasedJournal:
    """The record of a session that this process holds.

    One writer a session: while a write is under way, what happens meanwhile is collected, and deltas
    of one block that follow each other become one. With no load a token is an event.

    Whatever goes wrong with a write, the session is given up: the write may have happened. Whoever
    takes the session next, perhaps this process, reads what is true.
    """

    def __init__(
        self,
        leases: Leases,
        lease: Lease,
        loaded: Loaded,
        *,
        ttl: timedelta,
        wakeups: Wakeups,
        environment: Environment,
        environment_version: int,
        agent_version: int,
        since: float,
    ) -> None:
        self._agent_version = agent_version
        self._since = since
        self.standing: Standing = loaded.standing
        self.interrupted = asyncio.Event()
        self.draining = asyncio.Event()
        self.released = False
        """Whether the last write gave the session back."""
        self.checkpoints = 0
        """How many changes of the stored state were written."""
        self._leases, self._lease, self._ttl = leases, lease, ttl
        self._wakeups = wakeups
        self._environment: Environment = environment
        self._environment_version: int = environment_version
        self._newest_environment_version: int = environment_version
        self._base_pos = loaded.base_pos
        self._saved = _Saved.of(loaded.standing)
        self._to_stop = ""
        self._confirmed = False
        self._pending = _Pending()
        self._something = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = False
        self._error: BearingsError | None = None

    def emit(self, event: Event) -> None:
        """Let an event happen: it changes the standing at once, and is recorded soon.

        Raises:
            Fenced: The session is another holder's now.
            Unavailable: It is not known whether earlier events were recorded.
        """
        if self._error is not None:
            raise self._error
        apply(self.standing, event)
        pending = self._pending
        last = pending.events[-1] if pending.events else None
        joined = None if last is None else _join(last, event)
        if joined is not None:
            pending.events[-1] = joined
        else:
            pending.events.append(event)
        if isinstance(event, _BORDERS):
            self._note(event)
        self._something.set()

    def raise_if_lost(self) -> None:
        """Raise why the session is no longer this holder's, if it is not."""
        if self._error is not None:
            raise self._error

    async def settle(self) -> None:
        """Wait until everything emitted so far is recorded.

        Raises:
            Fenced: The session is another holder's now.
            Unavailable: It is not known whether the events were recorded.
        """
        while self._error is None and (self._pending.events or self._writing):
            self._written.clear()
            await self._written.wait()
        if self._error is not None:
            raise self._error

    async def environment(self) -> Mapping[str, str]:
        """Return the live values of the session's surroundings, as text.

        They are those of the newest write, or of the claim before there was one.
        """
        if self._confirmed:
            await self.settle()
        if self._newest_environment_version != self._environment_version:
            values, version = await self._leases.environment(self._lease)
            self._environment = values
            self._environment_version = version
            self._newest_environment_version = version
        return {name: environment_text(value) for name, value in self._environment.items()}

    def stop(self, reply_id: str) -> None:
        """Interrupt a reply: now if it is being written, as soon as it begins otherwise."""
        if not reply_id:
            return
        self._to_stop = reply_id
        if reply_id == self.standing.state.reply_id and not self.standing.ended:
            self.interrupted.set()

    async def write(self) -> None:
        """Write what waits, renew the lease in between, and end when the session is lost or released.

        A write of which nothing was sent is tried again, and so is a renewal; one whose answer was
        lost is not, because it may have happened. The holder gives up at 0.7 of the lease's time
        without a confirmed write, counted from when that write was sent.
        """
        confirmed = self._since
        heartbeat, patience = self._ttl.total_seconds() / 4, self._ttl.total_seconds() * 0.7
        try:
            while not self.released:
                with suppress(TimeoutError):
                    async with asyncio.timeout(heartbeat):
                        await self._something.wait()
                self._something.clear()
                async with asyncio.timeout_at(confirmed + patience):
                    confirmed = await self._write()
                self._written.set()
        except BearingsError as error:
            self._error = error
        except TimeoutError:
            self._error = Unavailable("The database did not confirm the lease in time.")
        except Exception as error:  # noqa: BLE001 - whoever writes the reply is told, and it is logged there
            self._error = Unavailable("The session's record broke off.")
            self._error.__cause__ = error
        finally:
            # Whatever ended the writing, nobody may wait for it any longer.
            if self._error is None and not self.released:
                self._error = Unavailable("The session's record is closed.")
            self._written.set()

    async def _write(self) -> float:
        """Write what waits, and return when the write that succeeded was sent."""
        pending, self._pending = self._pending, _Pending()
        self._writing = bool(pending.events)
        drafts = [Draft(event.type, event.reply_id, event.encode()) for event in pending.events]
        batch = Batch(drafts, pending.checkpoint, pending.transitions, pending.usage)
        while True:
            sent = asyncio.get_running_loop().time()
            try:
                appended = await self._leases.append(self._lease, batch, ttl=self._ttl)
                break
            except NotSent:
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable:
                if drafts:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        self._confirmed = True
        self.checkpoints += pending.checkpoint is not None
        self._newest_environment_version = appended.environment_version
        self.stop(appended.interrupt)
        ends = any(isinstance(each, Ended) for each in pending.transitions)
        self.released = ends and appended.queued == 0
        self._writing = False
        if drafts:
            self._wakeups.appended(self._lease.session_id, _entries(appended.base, drafts))
        return sent

    def _note(self, event: Event) -> None:
        """Add what a finished step changed in the stored state to what waits to be written."""
        pending, state = self._pending, self.standing.state
        earlier = pending.checkpoint
        messages = earlier.messages if earlier is not None else {}
        for stored in self._saved.changes(state.context, base_pos=self._base_pos):
            waiting = messages.get(stored.pos)
            if waiting is not None:
                stored.blocks = waiting.blocks | stored.blocks
            messages[stored.pos] = stored
        self._saved = _Saved.of(self.standing)
        progress = isinstance(event, ModelCallEndEvent | ToolResultEndEvent | ReplyEndEvent)
        pending.checkpoint = Checkpoint(
            after=len(pending.events),
            head=state.model_copy(update={"context": []}),
            answered=self.standing.answered,
            messages=messages,
            progress=progress or (earlier is not None and earlier.progress),
        )
        match event:
            case ReplyStartEvent():
                self.interrupted.clear()
                self.stop(self._to_stop)
                pending.transitions.append(Started(event.reply_id, self._agent_version))
            case ReplyEndEvent():
                pending.transitions.append(
                    Ended(event.reply_id, event.finished_reason, event.error)
                )
                tail = state.own_tail(self.standing.agent_name)
                pending.usage = tail.usage if tail is not None else None
            case _:
                pass


@dataclass(frozen=True)
class _Saved:
    """The last message of a context as it is stored: it alone, and what comes behind it, may change."""

    index: int
    message: Msg | None
    blocks: Sequence[Block]

    @classmethod
    def of(cls, standing: Standing) -> "_Saved":
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


def _join(last: Event, event: Event) -> Event | None:
    """Make one delta of two that follow each other in one block; None when they do not."""
    if isinstance(last, _DELTAS) and len(last.delta) > MOST_JOINED:
        return None
    match last, event:
        case (TextBlockDeltaEvent(), TextBlockDeltaEvent()) | (
            ThinkingBlockDeltaEvent(),
            ThinkingBlockDeltaEvent(),
        ) if last.block_id == event.block_id:
            return last.model_copy(update={"delta": last.delta + event.delta})
        case (ToolCallDeltaEvent(), ToolCallDeltaEvent()) | (
            ToolResultTextDeltaEvent(),
            ToolResultTextDeltaEvent(),
        ) if last.tool_call_id == event.tool_call_id:
            return last.model_copy(update={"delta": last.delta + event.delta})
        case _:
            return None


def _entries(base: int, drafts: Sequence[Draft]) -> list[LogEntry]:
    return [
        LogEntry(base + at, draft.type, draft.reply_id, draft.data)
        for at, draft in enumerate(drafts)
    ]
