"""Takes sessions that have something to do, and writes their replies, many at once."""

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from app.core.apply import apply
from app.core.errors import BearingsError
from app.core.events import MessageReceivedEvent
from app.core.records import Agent
from app.engine.equipment import Equipment, Meter
from app.engine.failpoints import failpoint
from app.engine.ids import Clock, NewId
from app.engine.lease import LeasedJournal
from app.engine.reply import NO_TASKS, resume_reply, write_reply
from app.engine.tool_calls import Bench
from app.engine.wakeups import Wakeups
from app.ports.leases import Claim, Leases, Loaded, Queued
from app.ports.stores import Taker

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How long a session waits at most when nobody says that it has something to do."""
LAST_WRITE_SECONDS = 1.5
"""What giving sessions back may take beyond the grace: the database may be out of reach."""
MOST_WARM_SESSIONS = 500
MOST_WARM_MESSAGES = 200_000
LONGEST_PAUSE_SECONDS = 60.0
"""How long a session rests at most when taking it fails again and again."""


@dataclass
class _Warm:
    """A session's standing as of a version of its stored state."""

    version: int
    loaded: Loaded
    meter: Meter


@dataclass
class _Held:
    """A session that this worker holds."""

    claim: Claim
    warm: _Warm
    journal: LeasedJournal


class Worker:
    """Writes the replies of this process."""

    def __init__(
        self,
        leases: Leases,
        wakeups: Wakeups,
        equip: Callable[[Agent], Equipment],
        *,
        clock: Clock,
        new_id: NewId,
        lease_ttl: timedelta,
        capacity: int,
    ) -> None:
        """Prepare; nothing is taken yet.

        Args:
            leases: Where sessions are taken.
            wakeups: Says which have something to do.
            equip: Puts an agent's model and tools together.
            clock: Tells the time.
            new_id: Makes ids.
            lease_ttl: How long a dead holder keeps others out.
            capacity: Most replies written at once.
        """
        self._leases, self._wakeups, self._equip = leases, wakeups, equip
        self._clock, self._new_id = clock, new_id
        self._ttl, self._capacity = lease_ttl, capacity
        self._held: dict[str, _Held] = {}
        self._asked_for: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warm: OrderedDict[str, _Warm] = OrderedDict()
        self._warm_messages = 0
        self._claiming = asyncio.Lock()
        self._draining = False
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take sessions."""
        self._loop = asyncio.create_task(self._take())

    async def stop(self, grace: timedelta) -> None:
        """Take no more sessions, and give back those held, each behind its next finished step.

        Args:
            grace: How long steps are waited for; then they are broken off, to be made again elsewhere.
        """
        self._draining = True
        for held in self._held.values():
            held.journal.draining.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds() + LAST_WRITE_SECONDS):
                await self._leave(grace)

    async def _leave(self, grace: timedelta) -> None:
        if self._loop is not None:
            # A claim that is under way is waited for: its session would be nobody's until the TTL.
            async with self._claiming:
                self._loop.cancel()
            await asyncio.wait({self._loop})
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace.total_seconds())
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _take(self) -> None:
        """Take sessions for ever, as fast as there is room for them."""
        loop = asyncio.get_running_loop()
        next_look = loop.time()
        while True:
            if len(self._tasks) >= self._capacity:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            try:
                # Hints may come without end, and what nobody hints at must be found all the same: the
                # sessions of holders that died, and hints that were lost.
                patience = next_look - loop.time()
                session_id = await self._wakeups.wait_for_work(patience) if patience > 0 else None
                async with self._claiming:
                    found = await self._claim(session_id)
            except BearingsError as error:
                log.warning("cannot take sessions", reason=error.detail)
                await asyncio.sleep(LOOK_SECONDS)
            except Exception:
                # The outermost loop: whatever is wrong, other sessions wait to be taken.
                log.exception("cannot take sessions")
                await asyncio.sleep(LOOK_SECONDS)
            else:
                # After a look that found something there may be more of it.
                if session_id is None and not found:
                    next_look = loop.time() + LOOK_SECONDS

    async def _claim(self, session_id: str | None) -> bool:
        """Take one session and begin to serve it; tell whether there was one.

        One that is still held here is asked for again when it is let go.
        """
        if session_id in self._held:
            self._asked_for.add(session_id)
            return False
        sent = asyncio.get_running_loop().time()
        claim = await self._leases.claim(
            owner=self._new_id("own"),
            ttl=self._ttl,
            session_id=session_id,
            apart_from=list(self._held),
        )
        if claim is None:
            return False
        failpoint("claim.after")
        self._begin(self._serve(claim, None, since=sent))
        return True

    def offer(self, session_id: str) -> Taker | None:
        """Offer to write a session's reply at once; None when there is no room for it here."""
        if self._loop is None or self._draining or session_id in self._held:
            return None
        if len(self._tasks) >= self._capacity:
            return None
        return Taker(owner=self._new_id("own"), ttl=self._ttl)

    def take(self, claim: Claim, queued: Queued, *, since: float) -> None:
        """Write the reply of a session that was taken as offered.

        Args:
            claim: The session.
            queued: The message that it was taken with.
            since: When it was asked for, by the loop's clock.
        """
        self._begin(self._serve(claim, queued, since=since))

    def abandon(self, session_id: str, owner: str) -> None:
        """Give back what may have been taken as offered, when nobody knows whether it was."""
        self._begin(self._abandon(session_id, owner))

    async def _abandon(self, session_id: str, owner: str) -> None:
        with suppress(BearingsError):
            await self._leases.abandon(session_id, owner)
            self._wakeups.call_worker(session_id)

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, claim: Claim, queued: Queued | None, *, since: float) -> None:
        """Hold a session until nothing waits there any more, or until it is lost.

        Args:
            claim: The session.
            queued: The message to begin with; the oldest that waits when None.
            since: When it was asked for, by the loop's clock: its lease began no sooner.
        """
        session_id = claim.lease.session_id
        held: _Held | None = None
        failed = False
        try:
            warm = await self._standing(claim)
            held = self._held[session_id] = self._holding(claim, warm, since=since)
            await self._hold(held, queued)
        except BearingsError as error:
            failed = True
            cause = error.__cause__
            log.warning(
                "session lost",
                session_id=session_id,
                reason=error.detail,
                **({"cause": repr(cause)} if cause else {}),
            )
        except Exception:
            failed = True
            log.exception("a reply broke off", session_id=session_id)
        finally:
            if held is not None:
                self._let_go(held)
            if held is None or not held.journal.released:
                await self._give_back(claim, failed=failed)

    def _holding(self, claim: Claim, warm: _Warm, *, since: float) -> _Held:
        journal = LeasedJournal(
            self._leases,
            claim,
            warm.loaded,
            ttl=self._ttl,
            wakeups=self._wakeups,
            since=since,
            on_release=lambda: self._released(held),
        )
        held = _Held(claim, warm, journal)
        if self._draining:
            journal.draining.set()
        return held

    def _released(self, held: _Held) -> None:
        """Be ready to take a session again, before anybody hears that its reply has ended."""
        self._keep_warm(held)
        self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        session_id = held.claim.lease.session_id
        if self._held.get(session_id) is not held:
            return
        del self._held[session_id]
        if session_id in self._asked_for:
            self._asked_for.discard(session_id)
            self._wakeups.call_worker(session_id)

    async def _hold(self, held: _Held, queued: Queued | None) -> None:
        """Write replies while the journal is written to the store beside them.

        When the session is lost, the step that is under way ends too: it may not act any longer.
        """
        session_id, journal = held.claim.lease.session_id, held.journal
        recording = asyncio.create_task(journal.write())
        writing = asyncio.create_task(self._write_replies(held, queued))
        try:
            with self._wakeups.running(session_id, journal.stop):
                wanted = held.claim.wanted
                journal.stop(wanted.interrupt, withdraw=wanted.withdraw)
                await asyncio.wait({recording, writing}, return_when=asyncio.FIRST_COMPLETED)
                if not writing.done() and not journal.released:
                    writing.cancel()
                    await asyncio.gather(writing, return_exceptions=True)
                    journal.raise_if_lost()
                await writing
        finally:
            recording.cancel()
            writing.cancel()
            await asyncio.gather(recording, writing, return_exceptions=True)

    async def _write_replies(self, held: _Held, queued: Queued | None) -> None:
        claim, journal = held.claim, held.journal
        attempts, running = claim.attempts, claim.running
        if running is not None and not journal.standing.ended:
            if running.parked:
                journal.go_on(running.reply_id)
            await resume_reply(
                self._bench(held, running),
                held.warm.meter,
                attempts=attempts,
                tasks=running.tasks or NO_TASKS,
                parked=running.parked,
            )
            attempts = 0
        while not (journal.released or journal.draining.is_set()):
            queued = queued or await self._leases.next_queued(claim.lease)
            if queued is None:
                return
            received = MessageReceivedEvent(reply_id=queued.reply_id, message=queued.message)
            apply(journal.standing, received)
            bench = self._bench(held, queued)
            await write_reply(bench, held.warm.meter, reply_id=queued.reply_id, attempts=attempts)
            attempts, queued = 0, None

    def _bench(self, held: _Held, queued: Queued) -> Bench:
        equipment = self._equip(held.claim.agent)
        if queued.max_iters is not None:
            equipment = dataclasses.replace(equipment, max_iters=queued.max_iters)
        return Bench(held.journal, equipment, self._clock, self._new_id, queued.context)

    async def _standing(self, claim: Claim) -> _Warm:
        """Return where the session stands: from memory if that is the newest, else from the store."""
        warm = self._warm.pop(claim.lease.session_id, None)
        if warm is not None:
            self._warm_messages -= len(warm.loaded.standing.state.context)
            if warm.version == claim.state_version and claim.running is None:
                return warm
        loaded = await self._leases.load(claim)
        return _Warm(claim.state_version, loaded, Meter())

    def _keep_warm(self, held: _Held) -> None:
        claim, journal = held.claim, held.journal
        loaded = dataclasses.replace(held.warm.loaded, standing=journal.standing, since=())
        version = claim.state_version + journal.checkpoints
        self._warm[claim.lease.session_id] = _Warm(version, loaded, held.warm.meter)
        self._warm_messages += len(journal.standing.state.context)
        while (
            len(self._warm) > MOST_WARM_SESSIONS or self._warm_messages > MOST_WARM_MESSAGES
        ) and self._warm:
            _, dropped = self._warm.popitem(last=False)
            self._warm_messages -= len(dropped.loaded.standing.state.context)

    async def _give_back(self, claim: Claim, *, failed: bool) -> None:
        """Let another holder, or this process, go on; if that fails, the lease's end will.

        At once, unless taking the session has failed before: whatever is wrong is given more and more
        time to pass.
        """
        again = claim.attempts - 1 if failed else 0
        pause = timedelta(seconds=min(2.0**again, LONGEST_PAUSE_SECONDS) if again > 0 else 0)
        failpoint("release.before")
        with suppress(BearingsError):
            await self._leases.release(claim.lease, pause=pause)
            if not pause:
                self._wakeups.call_worker(claim.lease.session_id)
