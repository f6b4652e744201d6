"""Takes messages on, waits for their answers, and stops what is being written."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from app.core.messages import DataBlock, Msg, TextBlock
from app.core.records import Accepted, LogEntry
from app.core.values import JsonObject
from app.engine.answers import Answers
from app.engine.event_log import Logs
from app.engine.failpoints import failpoint
from app.engine.ids import Clock, NewId, timestamp
from app.engine.wakeups import Wakeups
from app.engine.worker import Worker
from app.ports.leases import Queued
from app.ports.stores import Made, OnBusy, Once, Submission, Submitted
from app.ports.stores import Replies as RepliesStore

_LAST = {"REPLY_END", "REQUIRE_USER_CONFIRM", "REQUIRE_EXTERNAL_EXECUTION"}
"""Events behind which a reply says nothing more, for good or until somebody answers."""


@dataclass(frozen=True)
class Said:
    """A message as a client sends it."""

    name: str
    content: Sequence[TextBlock | DataBlock]
    on_busy: OnBusy
    context: JsonObject
    max_iters: int | None


@dataclass(frozen=True)
class Stopping:
    """What an interruption did: the reply it concerns, and whether that has ended."""

    reply_id: str | None
    ended: bool


class Replies:
    """Messages and the replies that answer them."""

    def __init__(
        self,
        store: RepliesStore,
        logs: Logs,
        wakeups: Wakeups,
        *,
        clock: Clock,
        new_id: NewId,
        worker: Worker | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            store: Where messages are accepted.
            logs: Where replies are followed.
            wakeups: Told of what is accepted.
            clock: Tells the time.
            new_id: Makes ids.
            worker: Writes replies in this process: an idle session's is begun without a detour.
        """
        self._store, self._logs, self._wakeups = store, logs, wakeups
        self._clock, self._new_id = clock, new_id
        self._worker = worker

    async def submit(
        self, tenant: str, session_id: str, said: Said, *, once: Once | None
    ) -> Made[Accepted]:
        """Accept a message: when this returns, it will be answered, whatever happens.

        The reply is written by whoever takes the session, here or on another replica; that the
        client goes away changes nothing.

        Raises:
            NotFound: There is no such session.
            SessionBusy: It is writing a reply, and `on_busy` is `reject`.
            KeyReused: The idempotency key was used for something else.
            KeyInFlight: A request with this key is still being handled.
        """
        submission = self._submission(said)
        taker = None if self._worker is None else self._worker.offer(session_id)
        sent = asyncio.get_running_loop().time()
        failpoint("accept.before")
        try:
            submitted = await self._store.submit(
                tenant, session_id, submission, once=once, taker=taker
            )
        except BaseException:
            if self._worker is not None and taker is not None:
                # Perhaps it was taken all the same, and nobody would serve it until the lease ends.
                self._worker.abandon(session_id, taker.owner)
            raise
        failpoint("accept.after")
        made = submitted.made
        if not made.replayed:
            self._tell(session_id, submission, submitted)
        if self._worker is not None and submitted.claim is not None:
            queued = Queued(
                submission.reply_id, submission.message, submission.context, submission.max_iters
            )
            self._worker.take(submitted.claim, queued, since=sent)
        else:
            self._wakeups.call_worker(session_id)
        return made

    def _submission(self, said: Said) -> Submission:
        now = timestamp(self._clock())
        blocks = [
            block.model_copy(update={"id": self._new_id("blk"), "created_at": now})
            for block in said.content
        ]
        message = Msg(
            id=self._new_id("msg"),
            name=said.name,
            role="user",
            content=list(blocks),
            created_at=now,
        )
        return Submission(
            reply_id=self._new_id("rep"),
            message=message,
            on_busy=said.on_busy,
            context=said.context,
            max_iters=said.max_iters,
        )

    def _tell(self, session_id: str, submission: Submission, submitted: Submitted) -> None:
        """Wake readers and whoever holds the session."""
        accepted = submitted.made.value
        if submitted.stopped:
            withdraw = submission.on_busy == "rollback"
            self._wakeups.interrupt(session_id, submitted.stopped, withdraw=withdraw)
            return
        received = submission.received(accepted.reply_id)
        entry = LogEntry(
            accepted.after_seq + 1, received.TYPE, received.reply_id, received.encode()
        )
        self._wakeups.appended(session_id, [entry])

    async def answer(
        self,
        tenant: str,
        session_id: str,
        answers: Answers,
        *,
        once: Once | None,
    ) -> Made[Accepted]:
        """Take people's decisions, or results of calls that somebody else executed.

        Raises:
            NotFound: There is no such session.
            Conflict: A call does not wait, or no longer, or for something else.
            Invalid: A decision is not allowed for its call.
        """
        now = timestamp(self._clock())
        failpoint("answer.before")
        made = await self._store.answer(
            tenant,
            session_id,
            answers.call_ids,
            lambda reply_id, calls: answers.event(reply_id, calls, now=now),
            once=once,
        )
        failpoint("answer.after")
        if not made.replayed:
            self._wakeups.grown(session_id)
        self._wakeups.call_worker(session_id)
        return made

    async def follow(
        self, session_id: str, accepted: Accepted
    ) -> AsyncGenerator[Sequence[LogEntry], None]:
        """Read the events of one reply, until its terminal event or until it waits for somebody.

        Yields:
            The reply's next events, at least one at a time, `MESSAGE_RECEIVED` first. They end without
            a terminal event when the reply waits, when the session is deleted, or when this process is
            about to end.
        """
        tail = self._logs.tail(session_id, after=accepted.after_seq, just_appended=True)
        async with aclosing(tail) as log:
            async for entries in log:
                own = [entry for entry in entries if entry.reply_id == accepted.reply_id]
                if own:
                    yield own
                    if own[-1].type in _LAST:
                        return

    async def wait(
        self, tenant: str, session_id: str, accepted: Accepted, *, patience: timedelta
    ) -> Msg | None:
        """Wait for a reply and return its message.

        Returns:
            The message; None when it is not there in time, when the reply waits for somebody, or when
            this process is about to end.
        """
        if not await self._is_over(session_id, accepted, patience):
            return None
        message = await self._store.message(tenant, session_id, accepted.reply_id)
        if message is not None and message.finished_reason is not None:
            return message
        reply = await self._store.get(tenant, session_id, accepted.reply_id)
        if message is not None:
            # Stopped when another message had just joined it: it said nothing behind that.
            ended = {"finished_reason": reply.finished_reason, "error": reply.error}
            return message.model_copy(update=ended)
        return Msg(
            id=reply.id,
            name="",
            role="assistant",
            content=[],
            created_at=reply.created_at,
            usage=reply.usage,
            finished_at=reply.finished_at,
            finished_reason=reply.finished_reason,
            error=reply.error,
        )

    async def interrupt(self, tenant: str, session_id: str, *, patience: timedelta) -> Stopping:
        """Stop the reply that is being written, or that comes next, and see whether it has stopped.

        Args:
            tenant: Whose session.
            session_id: The session.
            patience: How long its end is waited for.

        Raises:
            NotFound: There is no such session.
        """
        _, newest = await self._logs.bounds(tenant, session_id)
        reply_id = await self._store.interrupt(tenant, session_id)
        if reply_id is None:
            return Stopping(None, ended=True)
        self._wakeups.interrupt(session_id, reply_id)
        self._wakeups.call_worker(session_id)
        follow = Accepted(reply_id=reply_id, message_id="", after_seq=newest, status="running")
        return Stopping(reply_id, ended=await self._is_over(session_id, follow, patience))

    async def _is_over(self, session_id: str, accepted: Accepted, patience: timedelta) -> bool:
        """Wait until a reply has ended; False when the time is up or this process is about to end."""
        try:
            async with asyncio.timeout(patience.total_seconds()):
                async for entries in self.follow(session_id, accepted):
                    if entries[-1].type == "REPLY_END":
                        return True
        except TimeoutError:
            pass
        return False
