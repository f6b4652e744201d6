"""The doors to what is kept.

Every method names the tenant, and what belongs to another one is not there: `NotFound`, as for an id
that never was. All of them raise `Unavailable` when the database cannot be reached.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from app.core.events import Event, MessageReceivedEvent
from app.core.messages import Msg
from app.core.records import (
    Accepted,
    Agent,
    Environment,
    LogEntry,
    PendingCall,
    Reply,
    Session,
    SessionStatus,
)
from app.core.specs import AgentSpec
from app.core.state import AgentState
from app.core.values import JsonObject
from app.ports.leases import Claim

Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """A part of a list, and where the next part begins; None at the end."""

    data: Sequence[Item]
    next_cursor: str | None


@dataclass(frozen=True)
class Once:
    """Makes a request happen once: the same key and fingerprint give the first answer again.

    Attributes:
        key: The client's Idempotency-Key.
        scope: What is asked for; the same key in another scope is another key.
        fingerprint: A hash of the request, so that a reused key is found out.
    """

    key: str
    scope: str
    fingerprint: bytes


@dataclass(frozen=True)
class Made(Generic[Item]):
    """What a request made; `replayed` when an earlier one with its key did."""

    value: Item
    replayed: bool = False


class Agents(Protocol):
    """Agents and their versions."""

    async def create(
        self, tenant: str, agent_id: str, spec: AgentSpec, *, once: Once | None
    ) -> Made[Agent]:
        """Keep a new agent as version 1."""
        ...

    async def get(self, tenant: str, agent_id: str, *, version: int | None = None) -> Agent:
        """Return a version of an agent, the newest by default.

        Raises:
            NotFound: There is no such agent or version.
        """
        ...

    async def page(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Agent]:
        """List the newest version of each agent, newest agent first."""
        ...

    async def versions(
        self, tenant: str, agent_id: str, *, limit: int, cursor: str | None
    ) -> Page[Agent]:
        """List an agent's versions, newest first."""
        ...

    async def replace(
        self, tenant: str, agent_id: str, spec: AgentSpec, *, if_version: int | None
    ) -> Agent:
        """Make a new version.

        Raises:
            NotFound: There is no such agent.
            VersionMismatch: The newest version is not `if_version`.
        """
        ...

    async def delete(self, tenant: str, agent_id: str) -> None:
        """Hide an agent from lists and new sessions; its sessions go on.

        Raises:
            NotFound: There is no such agent.
        """
        ...


@dataclass(frozen=True)
class NewSession:
    """What a session begins with."""

    agent_id: str
    follow_agent: bool
    title: str
    metadata: JsonObject
    user_id: str | None
    environment: Environment
    state: AgentState | None


@dataclass(frozen=True)
class Copy:
    """How a session is copied: up to which message (all when None), and what people see of it."""

    through_message_id: str | None
    title: str
    metadata: JsonObject


@dataclass(frozen=True)
class SessionFilter:
    """Which sessions to list; None means any."""

    agent_id: str | None = None
    user_id: str | None = None
    status: SessionStatus | None = None
    metadata: JsonObject | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True)
class SessionChange:
    """What to change of a session; None leaves it."""

    title: str | None
    metadata: JsonObject | None


class Sessions(Protocol):
    """Sessions, their states and their history."""

    async def create(
        self, tenant: str, session_id: str, new: NewSession, *, once: Once | None
    ) -> Made[Session]:
        """Begin a session.

        Raises:
            NotFound: There is no such agent.
        """
        ...

    async def fork(
        self, tenant: str, session_id: str, new_id: str, copy: Copy, *, once: Once | None
    ) -> Made[Session]:
        """Begin a session with the conversation of another one, as of its last finished step.

        Raises:
            NotFound: There is no such session.
            Invalid: Its history has no such message.
        """
        ...

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a snapshot.

        Raises:
            NotFound: There is no such session.
        """
        ...

    async def page(
        self, tenant: str, which: SessionFilter, *, limit: int, cursor: str | None
    ) -> Page[Session]:
        """List sessions, newest first."""
        ...

    async def change(self, tenant: str, session_id: str, change: SessionChange) -> Session:
        """Change what people see of a session."""
        ...

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete a session with everything in it; whoever writes its reply is fenced off."""
        ...

    async def state(self, tenant: str, session_id: str) -> tuple[AgentState, int]:
        """Return the state as of the last finished step, and its version."""
        ...

    async def import_state(
        self, tenant: str, session_id: str, state: AgentState, *, if_version: int | None
    ) -> int:
        """Replace the whole state, and return its new version.

        Raises:
            SessionBusy: A reply is being written or waits for its turn.
            VersionMismatch: The state's version is not `if_version`.
        """
        ...

    async def environment(self, tenant: str, session_id: str) -> Environment:
        """Return the live values of the session's surroundings."""
        ...

    async def change_environment(
        self, tenant: str, session_id: str, values: Environment
    ) -> Environment:
        """Replace the live values, and return them."""
        ...

    async def messages(
        self,
        tenant: str,
        session_id: str,
        *,
        limit: int,
        cursor: str | None,
        newest_first: bool,
    ) -> Page[Msg]:
        """Page through the whole history."""
        ...


OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
"""What happens to a message while a reply is being written or waits for somebody.

`enqueue`: it is answered in its turn. `reject`: it is refused. `interrupt`: the reply is stopped and
keeps what it wrote. `rollback`: it is stopped and what it wrote is taken back. `steer`: the message
joins the reply before its next reasoning step.
"""


@dataclass(frozen=True)
class Submission:
    """A message to be answered."""

    reply_id: str
    """Of the reply that will answer it, unless it joins another one."""
    message: Msg
    on_busy: OnBusy
    context: JsonObject
    """The runtime context, kept until the reply ends."""
    max_iters: int | None

    def received(self, reply_id: str) -> MessageReceivedEvent:
        """Return the event that tells readers, as part of the reply that answers it."""
        return MessageReceivedEvent(
            reply_id=reply_id, message=self.message, created_at=self.message.created_at
        )


@dataclass(frozen=True)
class Taker:
    """Somebody who is ready to write a reply: under which owner's name, and for how long."""

    owner: str
    ttl: timedelta


@dataclass(frozen=True)
class Submitted:
    """A message that was accepted.

    Attributes:
        made: What the client is told.
        claim: The session, when the taker has it now.
        stopped: The reply that is stopped for it; `""` for none.
    """

    made: Made[Accepted]
    claim: Claim | None = None
    stopped: str = ""


class Replies(Protocol):
    """Messages that were accepted, and the replies that answer them."""

    async def submit(
        self,
        tenant: str,
        session_id: str,
        submission: Submission,
        *,
        once: Once | None,
        taker: Taker | None = None,
    ) -> Submitted:
        """Accept a message: when this returns, it will be answered, whatever happens.

        Args:
            tenant: Whose session.
            session_id: The session.
            submission: The message, and what is to happen when the session is busy.
            once: Makes a repeated request harmless.
            taker: Who takes the session with the message if it is idle, in the same write.

        Raises:
            NotFound: There is no such session.
            SessionBusy: It is writing a reply, and `on_busy` is `reject`.
            KeyReused: The idempotency key was used for something else.
            KeyInFlight: A request with this key is still being handled.
        """
        ...

    async def get(self, tenant: str, session_id: str, reply_id: str) -> Reply:
        """Return a reply."""
        ...

    async def page(
        self, tenant: str, session_id: str, *, limit: int, cursor: str | None
    ) -> Page[Reply]:
        """List a session's replies, newest first."""
        ...

    async def message(self, tenant: str, session_id: str, reply_id: str) -> Msg | None:
        """Return the message that a reply has written, None when it has written none."""
        ...

    async def answer(
        self,
        tenant: str,
        session_id: str,
        call_ids: Sequence[str],
        tell: Callable[[str, Sequence[PendingCall]], Event],
        *,
        once: Once | None,
    ) -> Made[Accepted]:
        """Take answers for calls that wait; the reply goes on when none is left.

        Args:
            tenant: Whose session.
            session_id: The session.
            call_ids: The calls that are answered, each once.
            tell: Makes the event that tells the answers, of the reply's id and the calls in that order.
                What it raises is raised here, and nothing is changed.
            once: Makes a repeated request harmless.

        Raises:
            NotFound: There is no such session.
            Conflict: A call does not wait, or no longer.
        """
        ...

    async def interrupt(self, tenant: str, session_id: str) -> str | None:
        """Ask that the reply which is written now, or comes next, be stopped.

        Returns:
            The reply that will stop; None when the session is idle.
        """
        ...


@dataclass(frozen=True)
class Position:
    """How far a session is.

    Attributes:
        last_seq: Number of its newest event.
        interrupt: The reply that somebody asked to stop; `""` for none.
        withdraw: Whether what it wrote is to be taken back.
    """

    last_seq: int
    interrupt: str
    withdraw: bool


class EventLog(Protocol):
    """The logs of all sessions, as readers see them."""

    async def bounds(self, tenant: str, session_id: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event kept; (1, 0) for an empty log.

        Raises:
            NotFound: There is no such session.
        """
        ...

    async def read(self, session_id: str, *, after: int, limit: int) -> list[LogEntry]:
        """Return the events behind a number, in order: some if there are any, and no more than fit.

        The caller has checked whose session it is.
        """
        ...

    async def positions(self, session_ids: Sequence[str]) -> dict[str, "Position"]:
        """Say how far each of these sessions is; one that is deleted is left out."""
        ...

    async def prune(self, older_than: timedelta) -> int:
        """Drop the old beginnings of logs, and return how many events that were.

        What goes is older than that, of replies that have ended, and part of the stored state. A log
        stays without gaps: its oldest event that is kept has another number, and cursors before it are
        gone.
        """
        ...


class Signals(Protocol):
    """Carries wake-ups between replicas: hints only, which may be lost."""

    def send(self, topic: str, subject: str) -> None:
        """Tell the other replicas, soon; never blocks and never fails."""
        ...

    async def start(self) -> None:
        """Begin to send and to hear, whether or not what carries wake-ups is there yet."""
        ...

    async def stop(self) -> None:
        """Send what waits, and end; bounded, and never fails."""
        ...
