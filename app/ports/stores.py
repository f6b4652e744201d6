"""The doors to what is kept.

Every method names the tenant, and what belongs to another one is not there: `NotFound`, as for an id
that never was. All of them raise `Unavailable` when the database cannot be reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from app.core.apply import Standing
from app.core.messages import Block, ErrorInfo, FinishedReason, Msg, Usage
from app.core.records import Accepted, Agent, Environment, LogEntry, Reply, Session, SessionStatus
from app.core.specs import AgentSpec
from app.core.state import AgentState
from app.core.values import JsonObject

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


OnBusy: TypeAlias = Literal["enqueue", "reject"]


@dataclass(frozen=True)
class Submission:
    """A message to be answered."""

    reply_id: str
    message: Msg
    received: bytes
    """The `MESSAGE_RECEIVED` event, encoded: the log and every reader get these bytes."""
    on_busy: OnBusy
    context: JsonObject
    """The runtime context, kept until the reply ends."""
    max_iters: int | None


class Replies(Protocol):
    """Messages that were accepted, and the replies that answer them."""

    async def submit(
        self, tenant: str, session_id: str, submission: Submission, *, once: Once | None
    ) -> Made[Accepted]:
        """Accept a message: when this returns, it will be answered, whatever happens.

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

    async def interrupt(self, tenant: str, session_id: str) -> str | None:
        """Ask that the reply which is written now, or comes next, be stopped.

        Returns:
            The reply that will stop; None when the session is idle.
        """
        ...


class EventLog(Protocol):
    """The logs of all sessions, as readers see them."""

    async def bounds(self, tenant: str, session_id: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event kept; (1, 0) for an empty log.

        Raises:
            NotFound: There is no such session.
        """
        ...

    async def read(self, session_id: str, *, after: int, limit: int) -> list[LogEntry]:
        """Return the events behind a number, in order. The caller has checked whose session it is."""
        ...

    async def positions(self, session_ids: Sequence[str]) -> dict[str, "Position"]:
        """Say how far each of these sessions is; one that is deleted is left out."""
        ...


@dataclass(frozen=True)
class Position:
    """How far a session is.

    Attributes:
        last_seq: Number of its newest event.
        interrupt: The reply that somebody asked to stop; `""` for none.
    """

    last_seq: int
    interrupt: str


@dataclass(frozen=True)
class Lease:
    """The right to write to a session: every write carries it, and an old one writes nothing."""

    tenant: str
    session_id: str
    owner: str
    epoch: int


@dataclass(frozen=True)
class Queued:
    """A message that waits for its answer."""

    reply_id: str
    message: Msg
    context: JsonObject
    max_iters: int | None


@dataclass(frozen=True)
class Claim:
    """A session taken to write its reply.

    Attributes:
        lease: The right to write.
        agent: The definition that the session runs with.
        state_version: Version of the stored state.
        environment: The live values.
        environment_version: Changes with them.
        running: The reply that another holder left unfinished, if there is one; it goes on with the
            agent's version that it began with.
        attempts: How often the session was taken up since it last got anywhere, this time included.
        interrupt: The reply that somebody asked to stop; `""` for none.
    """

    lease: Lease
    agent: Agent
    state_version: int
    environment: Environment
    environment_version: int
    running: Queued | None
    attempts: int
    interrupt: str


@dataclass(frozen=True)
class Draft:
    """An event to be appended."""

    type: str
    reply_id: str
    data: bytes


@dataclass
class StoredMessage:
    """A message's row, and which of its blocks are new or changed.

    Attributes:
        pos: Where it stands in the session's history.
        message: The message; its blocks are taken from `blocks`.
        blocks: The blocks to write, by their place in the message.
    """

    pos: int
    message: Msg
    blocks: dict[int, Block]


@dataclass
class Checkpoint:
    """What a step changed in the stored state: it costs what is new, not what is old.

    Attributes:
        after: How many events of the batch the state includes.
        head: The state without its context.
        answered: The standing's flag of that name, stored beside the state.
        messages: New and changed messages.
        progress: Whether the reply got further, which makes its attempts count from zero.
    """

    after: int
    head: AgentState
    answered: bool
    messages: dict[int, StoredMessage]
    progress: bool


@dataclass(frozen=True)
class Started:
    """The batch begins this reply, with this version of its agent to its end."""

    reply_id: str
    agent_version: int


@dataclass(frozen=True)
class Ended:
    """The batch ends this reply."""

    reply_id: str
    reason: FinishedReason
    error: ErrorInfo | None


@dataclass(frozen=True)
class Batch:
    """What a holder writes at once: all of it, or nothing when it lost the session."""

    drafts: Sequence[Draft] = ()
    checkpoint: Checkpoint | None = None
    transitions: Sequence[Started | Ended] = ()
    usage: Usage | None = None


@dataclass(frozen=True)
class Appended:
    """What the database says of a write.

    Attributes:
        base: Number of the batch's first event.
        interrupt: The reply that somebody asked to stop; `""` for none.
        environment_version: Changes with the live values.
        queued: Replies that wait for their turn.
    """

    base: int
    interrupt: str
    environment_version: int
    queued: int


@dataclass(frozen=True)
class Loaded:
    """A session's standing as stored, with the events since folded in.

    Attributes:
        standing: Where it stands.
        base_pos: Position of the context's first message in the session's history.
    """

    standing: Standing
    base_pos: int


class Leases(Protocol):
    """One writer a session."""

    async def claim(
        self,
        *,
        owner: str,
        ttl: timedelta,
        session_id: str | None = None,
        apart_from: Sequence[str] = (),
    ) -> Claim | None:
        """Take a session that has something to do and no living holder.

        Args:
            owner: A new id for each call.
            ttl: How long the lease holds without a write.
            session_id: Only this session; any when None.
            apart_from: Sessions to leave to others.

        Returns:
            The claim; None when there is nothing to take.
        """
        ...

    async def load(self, claim: Claim) -> Loaded:
        """Read where the session stands."""
        ...

    async def next_queued(self, lease: Lease) -> Queued | None:
        """Return the oldest message that waits for its answer."""
        ...

    async def append(self, lease: Lease, batch: Batch, *, ttl: timedelta) -> Appended:
        """Write a batch and renew the lease; a batch that ends a reply with none queued releases it.

        Raises:
            Fenced: The session is no longer this holder's; nothing was written.
        """
        ...

    async def release(self, lease: Lease, *, pause: timedelta) -> None:
        """Give the session back: another holder may go on after a pause. Nothing if it was lost."""
        ...

    async def environment(self, lease: Lease) -> tuple[Environment, int]:
        """Return the live values and their version."""
        ...


class Signals(Protocol):
    """Carries wake-ups between replicas: hints only, which may be lost."""

    def send(self, topic: str, session_id: str) -> None:
        """Tell the other replicas, soon; never blocks and never fails."""
        ...
