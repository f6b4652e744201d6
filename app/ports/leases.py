"""The door to sessions that are held: one holder at a time writes, and says so with every write.

All methods raise `Unavailable` when the database cannot be reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias

from app.core.apply import Calls, Standing
from app.core.events import Event
from app.core.messages import Block, ErrorInfo, FinishedReason, Msg, Usage
from app.core.records import Agent, Environment, PendingCall
from app.core.state import AgentState, TasksContext
from app.core.values import JsonObject


@dataclass(frozen=True)
class Lease:
    """The right to write to a session: every write carries it, and an old one writes nothing."""

    tenant: str
    session_id: str
    owner: str
    epoch: int


@dataclass(frozen=True)
class Queued:
    """A reply to be written, or to go on with.

    Attributes:
        reply_id: Its id.
        message: The message that it answers.
        context: The runtime context that came with it.
        max_iters: Rounds of reasoning and acting, instead of the agent's.
        parked: Whether it waited for somebody, and goes on now: nothing of it is half done.
        tasks: The plan when the reply began, to go back to; None when there was none.
    """

    reply_id: str
    message: Msg
    context: JsonObject
    max_iters: int | None
    parked: bool = False
    tasks: TasksContext | None = None


@dataclass(frozen=True)
class Wanted:
    """What people want of a session, as the database knows it.

    Attributes:
        interrupt: The reply that somebody asked to stop; `""` for none.
        withdraw: Whether what it wrote is to be taken back.
        inputs: Messages that wait to join the reply which is being written.
        queued: Replies that wait for their turn.
        environment_version: Changes with the live values.
    """

    interrupt: str = ""
    withdraw: bool = False
    inputs: int = 0
    queued: int = 0
    environment_version: int = 0


@dataclass(frozen=True)
class Claim:
    """A session taken to write its reply.

    Attributes:
        lease: The right to write.
        agent: The definition that the session runs with.
        state_version: Version of the stored state.
        environment: The live values.
        running: The reply that another holder left unfinished, if there is one; it goes on with the
            agent's version that it began with.
        attempts: How often the session was taken up since it last got anywhere, this time included.
        wanted: What people want of the session.
    """

    lease: Lease
    agent: Agent
    state_version: int
    environment: Environment
    running: Queued | None
    attempts: int
    wanted: Wanted


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
        calls: What the standing knows of unfinished calls, stored beside the state.
        messages: New and changed messages.
        trims: Messages that have become shorter: how many of their blocks stay, by position, and -1
            for a message that is gone.
        progress: Whether the reply got further, which makes its attempts count from zero.
    """

    after: int
    head: AgentState
    answered: bool
    calls: Calls
    messages: dict[int, StoredMessage]
    trims: dict[int, int]
    progress: bool


@dataclass(frozen=True)
class Started:
    """The batch begins this reply, with this version of its agent to its end."""

    reply_id: str
    agent_version: int
    tasks: TasksContext


@dataclass(frozen=True)
class Continued:
    """The batch goes on with this reply, which waited."""

    reply_id: str


@dataclass(frozen=True)
class Joined:
    """With the batch this message joins the reply."""

    message_id: str


@dataclass(frozen=True)
class Parked:
    """With the batch this reply begins to wait for these calls, and the session is released."""

    reply_id: str
    calls: Sequence[PendingCall]


@dataclass(frozen=True)
class Ended:
    """The batch ends this reply; withdrawn, if what it wrote was taken back."""

    reply_id: str
    reason: FinishedReason
    error: ErrorInfo | None
    withdrawn: bool = False


Transition: TypeAlias = Started | Continued | Joined | Parked | Ended


@dataclass(frozen=True)
class Batch:
    """What a holder writes at once: all of it, or nothing when it lost the session."""

    drafts: Sequence[Draft] = ()
    checkpoint: Checkpoint | None = None
    transitions: Sequence[Transition] = ()
    usage: Usage | None = None


@dataclass(frozen=True)
class Appended:
    """What the database says of a write.

    Attributes:
        base: Number of the batch's first event.
        wanted: What people want of the session.
        released: Whether the write gave the session back.
        refused: Nothing was written, because the batch ends a reply that people still want something
            of: a message waits to join it, or it is to be stopped or taken back.
    """

    base: int
    wanted: Wanted
    released: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Loaded:
    """A session's standing as stored.

    Attributes:
        standing: Where it stood when it was stored.
        base_pos: Position of the context's first message in the session's history.
        since: What has happened after that.
    """

    standing: Standing
    base_pos: int
    since: Sequence[Event] = ()


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
        """Write a batch and renew the lease.

        The session is released by a batch that ends a reply with none queued, and by one that parks.

        Raises:
            Fenced: The session is no longer this holder's; nothing was written.
        """
        ...

    async def release(self, lease: Lease, *, pause: timedelta) -> None:
        """Give the session back: another holder may go on after a pause. Nothing if it was lost."""
        ...

    async def abandon(self, session_id: str, owner: str) -> None:
        """Release what was taken by this owner, by someone who never heard whether it was."""
        ...

    async def inputs(self, lease: Lease) -> Sequence[Msg]:
        """Return the messages that wait to join the reply, oldest first."""
        ...

    async def environment(self, lease: Lease) -> tuple[Environment, int]:
        """Return the live values and their version."""
        ...
