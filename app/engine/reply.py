"""One reply: ask what comes next, do it, tell what happened, ask again."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from app.core.apply import Standing
from app.core.decide import AskPerson, CallModel, Finish, RunTools, decide
from app.core.errors import ModelError
from app.core.events import (
    Event,
    MessageJoinedEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    StateUpdatedEvent,
)
from app.core.messages import ErrorInfo, FinishedReason, Msg, ToolCallBlock
from app.core.records import PendingCall
from app.core.state import TasksContext
from app.engine.equipment import Meter
from app.engine.failpoints import failpoint
from app.engine.journal import Journal
from app.engine.model_calls import call_model, end_model_call
from app.engine.tool_calls import INTERRUPTED, LOST, Bench, ask, close_call, run_calls

CANCEL_PATIENCE_SECONDS = 1.5
"""How long a step that was told to stop is waited for; then it goes on alone, unheard."""

MAX_ATTEMPTS = 4
NO_TASKS = TasksContext()


async def write_reply(bench: Bench, meter: Meter, *, reply_id: str, attempts: int = 1) -> None:
    """Write a reply from its beginning to its one terminal event.

    The messages that it answers stand in `received`. A model that fails ends the reply with an
    error, an interruption ends it with what was said so far; neither is an exception. A call that
    needs a person leaves it waiting, without an end. So does a process that is about to end, behind
    the last finished step.

    Args:
        bench: The record and the agent's equipment.
        meter: Counts the prompt's tokens.
        reply_id: The reply's id, which is also its message's.
        attempts: How often its session was taken up without getting any further, this time included.

    Raises:
        Fenced: The session is another holder's now.
        Unavailable: The record cannot be written; the reply goes on when the session is taken again.
    """
    bench.journal.emit(
        ReplyStartEvent(
            reply_id=reply_id,
            session_id=bench.journal.standing.state.session_id,
            name=bench.equipment.name,
            created_at=bench.now(),
        )
    )
    tasks = bench.journal.standing.state.tasks_context
    await _go_on(bench, meter, tasks=tasks, given_up=attempts > MAX_ATTEMPTS)


async def resume_reply(
    bench: Bench,
    meter: Meter,
    *,
    attempts: int,
    tasks: TasksContext = NO_TASKS,
    parked: bool = False,
) -> None:
    """Go on with a reply that waited for somebody, or that another holder left unfinished.

    A model call that was not finished is withdrawn and made again. A tool call that was started and
    has no result runs again if its tool is idempotent; otherwise nobody can know what it did, and its
    result says so.

    Args:
        bench: The record and the agent's equipment.
        meter: Counts the prompt's tokens.
        attempts: How often the reply was taken up since it last got anywhere.
        tasks: The plan when the reply began.
        parked: Whether it waited: then nothing of it was broken off.

    Raises:
        Fenced: The session is another holder's now.
        Unavailable: The record cannot be written.
    """
    standing = bench.journal.standing
    standing.agent_name = bench.equipment.name
    given_up = attempts > MAX_ATTEMPTS
    if not parked or given_up:
        bench.journal.emit(
            ReplyResumedEvent(
                reply_id=standing.state.reply_id,
                discard=standing.half_written(),
                created_at=bench.now(),
            )
        )
    if not given_up:
        for call in standing.state.get_unfinished_tool_calls(bench.equipment.name):
            tool = bench.equipment.tools.get(call.name)
            begun = call.id in standing.calls.started and call.state == "allowed"
            if begun and not (tool is not None and tool.idempotent):
                close_call(bench, call, reason=LOST)
    await _go_on(bench, meter, tasks=tasks, given_up=given_up)


async def _go_on(bench: Bench, meter: Meter, *, tasks: TasksContext, given_up: bool) -> None:
    """Take step after step until the reply has ended, or is left to wait or to others."""
    then: _Then = _End("error", CRASHED, closing=LOST) if given_up else "go on"
    while then != "leave":
        if then == "go on":
            then = await _step(bench, meter)
        elif await _end(bench, then, tasks=tasks):
            return
        elif bench.journal.interrupted.is_set():
            then = _End("interrupted", closing=then.closing)
        elif then.error is None:
            then = "go on"


async def _step(bench: Bench, meter: Meter) -> "_Then":
    """Take one step, and say what comes then: another one, an end, or nothing here and now."""
    journal = bench.journal
    step = decide(journal.standing, max_iters=bench.equipment.max_iters)
    failpoint("decide.after")
    if journal.interrupted.is_set() and not isinstance(step, Finish):
        return _End("interrupted")
    if isinstance(step, CallModel | Finish) and await _join_inputs(bench):
        return "go on"
    match step:
        case Finish(reason):
            return _End("interrupted" if journal.interrupted.is_set() else reason)
        case AskPerson(calls):
            await _wait_for(bench, calls)
            return "leave"
        case _ if journal.draining.is_set():
            await journal.settle()
            return "leave"
        case _:
            return await _act(bench, meter, step)


async def _act(bench: Bench, meter: Meter, step: RunTools | CallModel) -> "_Then":
    """Run tools or ask the model, unless the reply is interrupted meanwhile."""
    gate = _Gate(bench.journal)
    behind = replace(bench, journal=gate)
    match step:
        case RunTools(calls):
            work = run_calls(behind, calls)
        case CallModel(last):
            work = call_model(behind, meter, last=last)
    try:
        await _unless_interrupted(work, gate)
    except ModelError as error:
        return _End("error", error.info)
    return "go on"


async def _wait_for(bench: Bench, calls: Sequence[ToolCallBlock]) -> None:
    """Leave the reply waiting; calls that were announced and have lost it are announced again."""
    await bench.journal.settle()
    if not bench.journal.parked:
        ask(bench, calls)
        await bench.journal.settle()


async def _join_inputs(bench: Bench) -> bool:
    """Let messages that were sent to steer the reply join it; tell whether there were any."""
    messages = await bench.journal.inputs()
    for message in messages:
        bench.journal.emit(
            MessageJoinedEvent(
                reply_id=bench.journal.standing.state.reply_id,
                message_id=message.id,
                created_at=bench.now(),
            )
        )
    return bool(messages)


@dataclass(frozen=True)
class _End:
    """How a reply is to end.

    Attributes:
        reason: Why.
        error: What went wrong, if anything did.
        closing: The result of calls that are left without one.
    """

    reason: FinishedReason
    error: ErrorInfo | None = None
    closing: str = INTERRUPTED


_Then: TypeAlias = _End | Literal["go on", "leave"]

CRASHED = ErrorInfo(
    type="internal",
    code="crashed_repeatedly",
    message=f"The reply was taken up {MAX_ATTEMPTS} times without getting any further.",
)


async def _end(bench: Bench, end: _End, *, tasks: TasksContext) -> bool:
    """Close what is open, so that every call has its result, and end the reply.

    Messages that wait to join it do so first: they are part of the conversation, however it ends.

    Returns:
        Whether it has ended; not when people still want something of it.
    """
    journal, standing = bench.journal, bench.journal.standing
    if standing.calling:
        end_model_call(bench, finished=None)
    for call in standing.state.get_unfinished_tool_calls(bench.equipment.name):
        close_call(bench, call, reason=end.closing)
    withdrawn = journal.interrupted.is_set() and journal.withdrawing
    if withdrawn:
        _roll_back(bench, tasks)
    await _join_inputs(bench)
    return await journal.end(
        ReplyEndEvent(
            reply_id=standing.state.reply_id,
            session_id=standing.state.session_id,
            finished_reason=end.reason,
            error=end.error,
            created_at=bench.now(),
        ),
        withdrawn=withdrawn,
    )


def _roll_back(bench: Bench, tasks: TasksContext) -> None:
    """Take back everything that the reply wrote, and what it planned."""
    standing = bench.journal.standing
    reply_id, now = standing.state.reply_id, bench.now()
    bench.journal.emit(
        ReplyResumedEvent(
            reply_id=reply_id,
            discard=standing.written_blocks(),
            reason="rolled_back",
            created_at=now,
        )
    )
    if standing.state.tasks_context != tasks:
        bench.journal.emit(
            StateUpdatedEvent(
                reply_id=reply_id,
                part="tasks",
                value=tasks.model_dump(mode="json", exclude_none=True),
                created_at=now,
            )
        )


@dataclass
class _Gate:
    """A journal for one step: shut, it lets nothing more through from a step that does not stop."""

    inner: Journal
    shut: bool = False

    @property
    def standing(self) -> Standing:
        return self.inner.standing

    @property
    def interrupted(self) -> asyncio.Event:
        return self.inner.interrupted

    @property
    def draining(self) -> asyncio.Event:
        return self.inner.draining

    def emit(self, event: Event) -> None:
        if self.shut:
            raise asyncio.CancelledError
        self.inner.emit(event)

    @property
    def withdrawing(self) -> bool:
        return self.inner.withdrawing

    @property
    def parked(self) -> bool:
        return self.inner.parked

    def park(self, event: Event, calls: Sequence[PendingCall]) -> None:
        if self.shut:
            raise asyncio.CancelledError
        self.inner.park(event, calls)

    async def end(self, event: ReplyEndEvent, *, withdrawn: bool) -> bool:
        return await self.inner.end(event, withdrawn=withdrawn)

    async def inputs(self) -> Sequence[Msg]:
        return await self.inner.inputs()

    async def settle(self) -> None:
        await self.inner.settle()

    async def environment(self) -> Mapping[str, str]:
        return await self.inner.environment()


async def _unless_interrupted(work: Coroutine[object, object, None], gate: _Gate) -> None:
    """Do a step to its end, or stop it when the reply is interrupted or this task is cancelled.

    Cancellation is verified: a step that does not stop in time is left alone behind a shut gate.
    """
    step = asyncio.ensure_future(work)
    # What it fails with is told below, or is nobody's business any more because the reply stops.
    step.add_done_callback(_forget)
    waiting = asyncio.ensure_future(gate.interrupted.wait())
    stopped = False
    try:
        await asyncio.wait({step, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not step.done():
            stopped = True
            step.cancel()
            await asyncio.wait({step}, timeout=CANCEL_PATIENCE_SECONDS)
            gate.shut = True
    if step.done() and step.cancelled() and not stopped:
        # Nobody here cancelled it: something that it used was, which is a failure like any other.
        raise ModelError(
            "The model's client was cancelled.", type="internal", code="model_cancelled"
        )
    if step.done() and not step.cancelled():
        _raise_from(step)


def _forget(step: asyncio.Future[None]) -> None:
    if not step.cancelled():
        step.exception()


def _raise_from(step: asyncio.Future[None]) -> None:
    """Raise what a step failed with; of a group of tools, what the first of them failed with."""
    error = step.exception()
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if error is not None:
        raise error
