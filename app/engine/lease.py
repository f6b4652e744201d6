"""Holds a session: records what happens under its fence, and notices when the session is lost."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from app.core.apply import Calls, Standing, apply
from app.core.errors import BearingsError, NotSent, Unavailable
from app.core.events import (
    Event,
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
    ToolResultEndEvent,
)
from app.core.messages import Msg, Usage
from app.core.records import Environment, LogEntry, PendingCall
from app.core.specs import environment_text
from app.engine.failpoints import armed, failpoint
from app.engine.unwritten import BeforeEnd, Pending, Saved, kind_of
from app.engine.wakeups import Wakeups
from app.ports.leases import (
    Appended,
    Batch,
    Checkpoint,
    Claim,
    Continued,
    Draft,
    Ended,
    Joined,
    Leases,
    Loaded,
    Parked,
    Started,
    StoredMessage,
)

_BORDERS = (
    ReplyStartEvent,
    HintBlockEvent,
    MessageJoinedEvent,
    ModelCallEndEvent,
    ToolResultEndEvent,
    RequireUserConfirmEvent,
    RequireExternalExecutionEvent,
    StateUpdatedEvent,
    ReplyResumedEvent,
    ReplyEndEvent,
)
"""Events behind which the state is whole and worth storing."""
_PREAMBLE = (ReplyStartEvent, HintBlockEvent, ModelCallStartEvent)
"""What comes before a model says anything: it can wait a moment, and be written with the answer."""

RETRY_SECONDS = 0.2
LINGER_SECONDS = 0.005
"""How long a preamble waits for the model's first word, to be one write with it."""

MERGE_TURNS = 2
"""Turns of the loop before a write, in which what is at hand gets to it: a short answer and its end."""


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
        claim: Claim,
        loaded: Loaded,
        *,
        ttl: timedelta,
        wakeups: Wakeups,
        since: float,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to hold a session.

        Args:
            leases: Where it is written to.
            claim: The session.
            loaded: Where it stood when it was stored, and what has happened since.
            ttl: How long the lease lasts without a write.
            wakeups: Told of what is written.
            since: When the claim was sent, by the loop's clock.
            on_release: Called as the session is given back, before anybody else hears of it.
        """
        self.interrupted = asyncio.Event()
        self.draining = asyncio.Event()
        self.withdrawing = False
        self.parked = False
        self.released = False
        """Whether the last write gave the session back."""
        self.checkpoints = 0
        """How many changes of the stored state were written."""
        self.standing: Standing = loaded.standing
        self._leases, self._lease, self._ttl = leases, claim.lease, ttl
        self._wakeups = wakeups
        self._since, self._on_release = since, on_release
        self._agent_version = claim.agent.version
        self._environment: Environment = claim.environment
        self._environment_version = claim.wanted.environment_version
        self._wanted = claim.wanted
        self._base_pos = loaded.base_pos
        self._saved = Saved.of(loaded.standing)
        self._to_stop = ("", False)
        self._confirmed = False
        self._refused = False
        self._withdrawn = False
        self._spent: Usage | None = None
        self._before_end: BeforeEnd | None = None
        self._pending = Pending()
        self._something = asyncio.Event()
        self._urgent = asyncio.Event()
        self._written = asyncio.Event()
        self._writing = False
        self._error: BearingsError | None = None
        for event in loaded.since:
            apply(self.standing, event)

    def emit(self, event: Event) -> None:
        """Let an event happen: it changes the standing at once, and is recorded soon.

        Raises:
            Fenced: The session is another holder's now.
            Unavailable: It is not known whether earlier events were recorded.
        """
        if self._error is not None:
            raise self._error
        rolled_back = isinstance(event, ReplyResumedEvent) and event.reason == "rolled_back"
        before = list(self.standing.state.context) if rolled_back else []
        if rolled_back:
            self._spent = self.standing.usage()
        apply(self.standing, event)
        self._pending.add(event)
        if isinstance(event, _BORDERS):
            self._note(event, before)
        self._something.set()
        if not isinstance(event, _PREAMBLE):
            self._urgent.set()

    def park(self, event: Event, calls: Sequence[PendingCall]) -> None:
        """Let the reply begin to wait for calls: with what is recorded next the session is let go."""
        self.emit(event)
        transitions = self._pending.transitions
        waiting = list(calls)
        if transitions and isinstance(earlier := transitions[-1], Parked):
            waiting = [*earlier.calls, *calls]
            transitions.pop()
        transitions.append(Parked(self.standing.state.reply_id, waiting))

    def go_on(self, reply_id: str) -> None:
        """Record with what comes next that a reply which waited goes on."""
        self._pending.transitions.append(Continued(reply_id))

    async def end(self, event: ReplyEndEvent, *, withdrawn: bool) -> bool:
        """Let the reply end, and wait until that is recorded; False when it has to go on."""
        self._withdrawn = withdrawn
        self._before_end = BeforeEnd.of(self.standing, event.reply_id)
        self._refused = False
        self.emit(event)
        await self.settle()
        return not self._refused

    async def inputs(self) -> Sequence[Msg]:
        """Return the messages that wait to join the reply, received and not yet in the context."""
        if not self._wanted.inputs:
            return []
        await self.settle()
        messages = await self._leases.inputs(self._lease)
        reply_id = self.standing.state.reply_id
        for message in messages:
            # Their events are in the log since they were accepted.
            apply(self.standing, MessageReceivedEvent(reply_id=reply_id, message=message))
        return messages

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
            self._urgent.set()
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
        if self._wanted.environment_version != self._environment_version:
            values, version = await self._leases.environment(self._lease)
            self._environment, self._environment_version = values, version
            self._wanted = replace(self._wanted, environment_version=version)
        return {name: environment_text(value) for name, value in self._environment.items()}

    def stop(self, reply_id: str, *, withdraw: bool = False) -> None:
        """Interrupt a reply: now if it is being written, as soon as it begins otherwise."""
        if not reply_id:
            return
        self._to_stop = (reply_id, withdraw)
        if reply_id == self.standing.state.reply_id and not self.standing.ended:
            self.withdrawing = self.withdrawing or withdraw
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
                if not self._something.is_set():
                    await _wait(self._something, heartbeat)
                if self._pending.events and not self._urgent.is_set():
                    await _wait(self._urgent, LINGER_SECONDS)
                for _ in range(MERGE_TURNS):
                    await asyncio.sleep(0)
                self._something.clear()
                self._urgent.clear()
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
        pending = Pending()
        if self._pending.events:
            pending, self._pending = self._pending, pending
        pending.whole()
        self._writing = bool(pending.events)
        drafts = [Draft(event.type, event.reply_id, event.encode()) for event in pending.events]
        batch = Batch(drafts, pending.checkpoint, pending.transitions, pending.usage)
        kind = kind_of(pending) if armed() else ""
        while True:
            sent = asyncio.get_running_loop().time()
            try:
                failpoint(f"append.{kind}.before")
                appended = await self._leases.append(self._lease, batch, ttl=self._ttl)
                failpoint(f"append.{kind}.after")
                break
            except NotSent:
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable:
                if drafts:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        self._confirmed = True
        self._wanted = appended.wanted
        if appended.refused and self._before_end is not None:
            self._reopen(pending, self._before_end)
        else:
            self._take_in(pending, drafts, appended)
        self.stop(appended.wanted.interrupt, withdraw=appended.wanted.withdraw)
        self._writing = False
        return sent

    def _take_in(self, pending: Pending, drafts: Sequence[Draft], appended: Appended) -> None:
        self.checkpoints += pending.checkpoint is not None
        self.released = appended.released
        self.parked = any(isinstance(each, Parked) for each in pending.transitions)
        if self.released:
            self._on_release()
        if drafts:
            entries = [
                LogEntry(appended.base + at, draft.type, draft.reply_id, draft.data)
                for at, draft in enumerate(drafts)
            ]
            self._wakeups.appended(self._lease.session_id, entries)

    def _reopen(self, refused: Pending, before: "BeforeEnd") -> None:
        """Let the end of the reply not have happened; what came before it is written again."""
        self._refused = True
        before.restore(self.standing)
        again = Pending(
            events=refused.events[:-1],
            transitions=[each for each in refused.transitions if not isinstance(each, Ended)],
        )
        saved = refused.checkpoint
        if again.events and saved is not None:
            context = self.standing.state.context
            messages = {
                pos: replace(stored, message=context[pos - self._base_pos])
                for pos, stored in saved.messages.items()
            }
            again.checkpoint = replace(
                saved,
                after=min(saved.after, len(again.events)),
                calls=self.standing.calls.model_copy(deep=True),
                messages=messages,
            )
        self._saved = Saved.of(self.standing)
        self._pending = again
        if again.events:
            self._something.set()
            self._urgent.set()

    def _note(self, event: Event, before: Sequence[Msg]) -> None:
        """Add what a finished step changed in the stored state to what waits to be written.

        Args:
            event: The step's last event.
            before: The context before it, when it took back more than the last message's end.
        """
        pending, state = self._pending, self.standing.state
        earlier = pending.checkpoint
        messages = earlier.messages if earlier is not None else {}
        trims = earlier.trims if earlier is not None else {}
        if before:
            self._saved = self._rewritten(before, messages, trims)
        for stored in self._saved.changes(state.context, base_pos=self._base_pos):
            waiting = messages.get(stored.pos)
            if waiting is not None:
                stored.blocks = waiting.blocks | stored.blocks
            messages[stored.pos] = stored
        self._saved = Saved.of(self.standing)
        progress = isinstance(event, ModelCallEndEvent | ToolResultEndEvent | ReplyEndEvent)
        pending.checkpoint = Checkpoint(
            after=len(pending.events),
            head=state.model_copy(update={"context": []}),
            answered=self.standing.answered,
            calls=self.standing.calls.model_copy(deep=True) if self.standing.calls else Calls(),
            messages=messages,
            trims=trims,
            progress=progress or (earlier is not None and earlier.progress),
        )
        match event:
            case ReplyStartEvent():
                self.interrupted.clear()
                self.withdrawing = False
                self._spent = None
                reply_id, withdraw = self._to_stop
                self.stop(reply_id, withdraw=withdraw)
                pending.transitions.append(
                    Started(event.reply_id, self._agent_version, state.tasks_context)
                )
            case MessageJoinedEvent():
                pending.transitions.append(Joined(event.message_id))
                left = max(self._wanted.inputs - 1, 0)
                self._wanted = replace(self._wanted, inputs=left)
            case ReplyEndEvent():
                pending.transitions.append(
                    Ended(event.reply_id, event.finished_reason, event.error, self._withdrawn)
                )
                pending.usage = self._spent or self.standing.usage()
            case _:
                pass

    def _rewritten(
        self, before: Sequence[Msg], messages: dict[int, StoredMessage], trims: dict[int, int]
    ) -> "Saved":
        """Have everything from the reply's first message on stored anew, as it is now."""
        context, reply_id = self.standing.state.context, self.standing.state.reply_id
        mine = [at for at, message in enumerate(before) if message.id == reply_id]
        first = mine[0] if mine else len(before)
        for pos in [pos for pos in messages if pos >= self._base_pos + first]:
            del messages[pos]
        for index in range(first, len(before)):
            left = len(context[index].content) if index < len(context) else -1
            trims[self._base_pos + index] = left
        return Saved(first, None, ())


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
