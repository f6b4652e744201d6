"""Wakes who waits for a session: readers of its log, and workers for its queue."""

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from app.core.errors import BearingsError
from app.core.records import LogEntry
from app.engine.recent import Recent
from app.ports.stores import EventLog, Signals

log = structlog.get_logger()

POLL_SECONDS = 1.0
"""How late a reader can be when every wake-up is lost."""
MOST_WANTED = 10_000
"""Sessions remembered as wanting a worker; those beyond are found by looking."""


class OnInterrupt(Protocol):
    """Is told that a reply is to be stopped, and whether what it wrote is to be taken back."""

    def __call__(self, reply_id: str, *, withdraw: bool = False) -> None:
        """Stop a reply."""
        ...


@dataclass
class Watch:
    """One waiter for one session."""

    _event: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    """The session was deleted."""
    stale: bool = True
    """Whether the store may hold events that memory does not."""

    def wake(self, *, stale: bool) -> None:
        """Let the waiter look again, in the store too when memory may lack something."""
        self.stale = self.stale or stale
        self._event.set()

    async def wait(self) -> None:
        """Wait for a wake-up since the last `clear`."""
        await self._event.wait()

    def clear(self) -> None:
        """Forget wake-ups so far; to be called before looking, never after."""
        self._event.clear()


class Wakeups:
    """The one place of a process where waiting happens.

    Local wake-ups are immediate. Those of other replicas come over `Signals`, and a single query a
    second finds what they lost, for everyone who waits: no waiter holds a connection.
    """

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._signals: Signals | None = None
        self._watches: dict[str, dict[int, Watch]] = {}
        self._seen: dict[str, int] = {}
        self._running: dict[str, OnInterrupt] = {}
        self.recent = Recent()
        self._work = asyncio.Event()
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self.closed = False
        """Whether this process is about to end: nobody waits any longer."""

    def close(self) -> None:
        """Let everyone who waits for a log look once more, and then go."""
        self.closed = True
        for session_id in self._watches:
            self._wake(session_id, stale=True)

    def join(self, signals: Signals) -> None:
        """Tell other replicas from now on."""
        self._signals = signals

    @contextmanager
    def watch(self, session_id: str, *, stale: bool = True) -> Generator[Watch, None, None]:
        """Be woken when the session's log grows.

        Args:
            session_id: The session.
            stale: Whether the store may hold events that memory does not; not for somebody who has
                just appended one here and reads from there on.

        Yields:
            The watch, woken as long as the block lasts.
        """
        watch = Watch(stale=stale)
        if not stale:
            # Whoever has not looked in the store counts on the next poll to say what is new there.
            self._seen.pop(session_id, None)
        self._watches.setdefault(session_id, {})[id(watch)] = watch
        try:
            yield watch
        finally:
            watches = self._watches[session_id]
            del watches[id(watch)]
            if not watches:
                del self._watches[session_id]

    @contextmanager
    def running(self, session_id: str, on_interrupt: OnInterrupt) -> Generator[None, None, None]:
        """Be told, while a session's reply is written here, of what somebody asks to stop."""
        self._running[session_id] = on_interrupt
        try:
            yield
        finally:
            if self._running.get(session_id) is on_interrupt:
                del self._running[session_id]

    def appended(self, session_id: str, entries: Sequence[LogEntry]) -> None:
        """Wake readers, here with the events themselves."""
        joins = self.recent.add(session_id, entries)
        self._wake(session_id, stale=not joins)
        if self._signals is not None:
            self._signals.send("grown", session_id)

    def grown(self, session_id: str) -> None:
        """Wake readers; they find the events themselves."""
        self._wake(session_id, stale=True)
        if self._signals is not None:
            self._signals.send("grown", session_id)

    def deleted(self, session_id: str) -> None:
        """Let readers of a session that is no more go; those of other replicas find out themselves."""
        self._let_go(session_id)
        self.grown(session_id)

    def call_worker(self, session_id: str) -> None:
        """Wake a worker for a session that has something to do, here and elsewhere."""
        self._want(session_id)
        if self._signals is not None:
            self._signals.send("work", session_id)

    def interrupt(self, session_id: str, reply_id: str, *, withdraw: bool = False) -> None:
        """Tell the holder of a session that a reply is to be stopped."""
        if on_interrupt := self._running.get(session_id):
            on_interrupt(reply_id, withdraw=withdraw)
        self.grown(session_id)
        if self._signals is not None:
            topic = "withdraw" if withdraw else "stop"
            self._signals.send(topic, f"{session_id}/{reply_id}")

    def heard(self, topic: str, subject: str) -> None:
        """Take in another replica's wake-up."""
        match topic:
            case "grown":
                self._wake(subject, stale=True)
            case "work":
                self._want(subject)
            case "stop" | "withdraw":
                session_id, _, reply_id = subject.partition("/")
                if on_interrupt := self._running.get(session_id):
                    on_interrupt(reply_id, withdraw=topic == "withdraw")
            case _:
                pass

    async def wait_for_work(self, timeout_seconds: float) -> str | None:
        """Return a session that wants a worker; None when the time is up: look yourself then."""
        if not self._wanted:
            self._work.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._work.wait()
            except TimeoutError:
                return None
        return self._wanted.popitem(last=False)[0]

    async def poll(self) -> None:
        """Find, once a second and for ever, what wake-ups have missed."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look()
            except BearingsError as error:
                log.warning("cannot poll", error=error.detail)
            except Exception:
                # Whatever is wrong: without this look a lost wake-up would stay lost.
                log.exception("cannot poll")

    async def _look(self) -> None:
        watched = list({*self._watches, *self._running})
        if not watched:
            self._seen.clear()
            return
        positions = await self._log.positions(watched)
        for session_id in watched:
            position = positions.get(session_id)
            if position is None:
                self._let_go(session_id)
                continue
            # Every reader that was there when the number was seen last has been told of it; one that
            # came later has looked in the store itself.
            if position.last_seq != self._seen.get(session_id):
                self._wake(session_id, stale=position.last_seq != self.recent.newest(session_id))
            if position.interrupt and (held := self._running.get(session_id)):
                held(position.interrupt, withdraw=position.withdraw)
        self._seen = {each: position.last_seq for each, position in positions.items()}

    def _let_go(self, session_id: str) -> None:
        self.recent.forget(session_id)
        for watch in self._watches.get(session_id, {}).values():
            watch.gone = True
            watch.wake(stale=True)

    def _wake(self, session_id: str, *, stale: bool) -> None:
        for watch in self._watches.get(session_id, {}).values():
            watch.wake(stale=stale)

    def _want(self, session_id: str) -> None:
        self._wanted[session_id] = None
        if len(self._wanted) > MOST_WANTED:
            self._wanted.popitem(last=False)
        self._work.set()
