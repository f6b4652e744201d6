"""One reply: ask what comes next, do it, tell what happened, ask again."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import cast

from app.core.apply import Standing
from app.core.decide import CallModel, Finish, RunTools, decide
from app.core.errors import ModelError
from app.core.events import Event, ReplyEndEvent, ReplyResumedEvent, ReplyStartEvent
from app.core.messages import ErrorInfo, FinishedReason
from app.engine.equipment import Meter
from app.engine.journal import Journal
from app.engine.model_calls import call_model, end_model_call
from app.engine.tool_calls import INTERRUPTED, LOST, Bench, close_call, run_calls

CANCEL_PATIENCE_SECONDS = 1.5
"""How long a step that was told to stop is waited for; then it goes on alone, unheard."""

MAX_ATTEMPTS = 4


async def write_reply(bench: Bench, meter: Meter, *, reply_id: str, attempts: int = 1) -> None:
    """Write a reply from its beginning to its one terminal event.

    The messages that it answers stand in `received`. A model that fails ends the reply with an
    error, an interruption ends it with what was said so far; neither is an exception. When the
    process is about to end, the reply is left behind its last finished step, without an end.

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
    if attempts > MAX_ATTEMPTS:
        await _give_up(bench)
        return
    await _go_on(bench, meter)


async def resume_reply(bench: Bench, meter: Meter, *, attempts: int) -> None:
    """Go on with a reply that another holder left unfinished.

    A model call that was not finished is withdrawn and made again. A tool call that was started and
    has no result runs again if its tool is idempotent; otherwise nobody can know what it did, and its
    result says so.

    Args:
        bench: The record and the agent's equipment.
        meter: Counts the prompt's tokens.
        attempts: How often the reply was taken up since it last got anywhere.

    Raises:
        Fenced: The session is another holder's now.
        Unavailable: The record cannot be written.
    """
    standing = bench.journal.standing
    standing.agent_name = bench.equipment.name
    bench.journal.emit(
        ReplyResumedEvent(
            reply_id=standing.state.reply_id,
            discard=standing.half_written(),
            created_at=bench.now(),
        )
    )
    if attempts > MAX_ATTEMPTS:
        await _give_up(bench)
        return
    for call in standing.state.get_unfinished_tool_calls(bench.equipment.name):
        tool = bench.equipment.tools.get(call.name)
        if call.state == "allowed" and not (tool is not None and tool.idempotent):
            close_call(bench, call, reason=LOST)
    await _go_on(bench, meter)


async def _go_on(bench: Bench, meter: Meter) -> None:
    while True:
        step = decide(bench.journal.standing, max_iters=bench.equipment.max_iters)
        gate = _Gate(bench.journal)
        behind = replace(bench, journal=gate)
        match step:
            case Finish(reason):
                await _end(bench, reason)
                return
            case _ if bench.journal.interrupted.is_set():
                await _end(bench, "interrupted")
                return
            case _ if bench.journal.draining.is_set():
                await bench.journal.settle()
                return
            case RunTools(calls):
                work = run_calls(behind, calls)
            case CallModel(last):
                work = call_model(behind, meter, last=last)
        try:
            await _unless_interrupted(work, gate)
        except ModelError as error:
            await _end(bench, "error", error.info)
            return


async def _give_up(bench: Bench) -> None:
    error = ErrorInfo(
        type="internal",
        code="crashed_repeatedly",
        message=f"The reply was taken up {MAX_ATTEMPTS} times without getting any further.",
    )
    await _end(bench, "error", error, closing=LOST)


async def _end(
    bench: Bench,
    reason: FinishedReason,
    error: ErrorInfo | None = None,
    *,
    closing: str = INTERRUPTED,
) -> None:
    """Close what is open, so that every call has its result, and end the reply."""
    standing = bench.journal.standing
    if standing.calling:
        end_model_call(bench, finished=None)
    for call in standing.state.get_unfinished_tool_calls(bench.equipment.name):
        close_call(bench, call, reason=closing)
    bench.journal.emit(
        ReplyEndEvent(
            reply_id=standing.state.reply_id,
            session_id=standing.state.session_id,
            finished_reason=reason,
            error=error,
            created_at=bench.now(),
        )
    )
    await bench.journal.settle()


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

    async def settle(self) -> None:
        await self.inner.settle()

    async def environment(self) -> Mapping[str, str]:
        return await self.inner.environment()


async def _unless_interrupted(work: Coroutine[object, object, None], gate: _Gate) -> None:
    """Do a step to its end, or stop it when the reply is interrupted or this task is cancelled.

    Cancellation is verified: a step that does not stop in time is left alone behind a shut gate.
    """
    step = asyncio.ensure_future(work)
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
            # What it fails with now or later is nobody's business any more: the reply stops anyway.
            step.add_done_callback(_forget)
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
