"""The door to sessions that are held: one holder at a time writes, and says so with every write.

All methods raise `Unavailable` when the database cannot be reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from app.core.apply import Standing
from app.core.messages import Block, ErrorInfo, FinishedReason, Msg, Usage
from app.core.records import Agent, Environment
from app.core.state import AgentState
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
