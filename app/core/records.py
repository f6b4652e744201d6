"""What is kept and shown: agents, sessions, replies, and the log's entries."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from app.core.messages import Decision, ErrorInfo, FinishedReason, ToolCallBlock, Usage
from app.core.specs import AgentSpec
from app.core.values import JsonObject, Timestamp, Value

SessionStatus: TypeAlias = Literal["idle", "queued", "running", "awaiting"]
ReplyStatus: TypeAlias = Literal["queued", "running", "awaiting", "ended"]
Environment: TypeAlias = dict[str, JsonValue]

NO_USAGE = Usage(input_tokens=0, output_tokens=0)


class Agent(AgentSpec):
    """A version of an agent's definition; it never changes."""

    id: str
    version: int
    created_at: Timestamp
    updated_at: Timestamp

    @property
    def spec(self) -> AgentSpec:
        """The definition alone, as a person wrote it."""
        kept = {name: getattr(self, name) for name in AgentSpec.model_fields}
        return AgentSpec.model_construct(**kept)


class Session(Value):
    """A snapshot of a conversation with one agent."""

    id: str
    agent_id: str
    agent_version: int | None
    """The version that the session is pinned to; null when it follows the newest."""
    title: str
    metadata: JsonObject
    user_id: str | None = None
    status: SessionStatus
    reply_id: str | None = None
    """The reply that is being written or waits, if there is one."""
    queued: int
    """Replies that wait for their turn."""
    last_seq: int
    """Number of the newest event; 0 when there is none."""
    state_version: int
    """Changes with every change of the state; the ETag of `/state`."""
    pending_tool_calls: list[ToolCallBlock] = []
    """Calls that wait for a person or for somebody else to execute them."""
    usage: Usage
    created_at: Timestamp
    updated_at: Timestamp


class PendingCall(Value):
    """A call that waits for a person, or for somebody else to execute it."""

    kind: Literal["confirm", "external"]
    call: ToolCallBlock
    decisions: list[Decision] = []
    """What may be decided, when a person is asked."""


class Reply(Value):
    """One answer by the agent; its id is also the id of the message it writes."""

    id: str
    session_id: str
    message_id: str
    """The message that it answers."""
    status: ReplyStatus
    finished_reason: FinishedReason | None = None
    error: ErrorInfo | None = None
    usage: Usage
    created_at: Timestamp
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None


class Accepted(Value):
    """A message was taken on: it will be answered, whatever happens."""

    reply_id: str
    message_id: str
    after_seq: int
    """Events of this reply have larger numbers."""
    status: ReplyStatus


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event of a session's log, encoded once.

    Attributes:
        seq: Its number, gapless from 1 in its session.
        type: What happened.
        reply_id: The reply that it belongs to; `""` for none.
        data: The event as JSON text, without its number.
    """

    seq: int
    type: str
    reply_id: str
    data: bytes

    def wire(self) -> bytes:
        """Return the event as JSON text with its number behind the type."""
        comma = self.data.find(b",")
        number = b',"seq":%d' % self.seq
        if comma < 0:
            return self.data[:-1] + number + b"}"
        return self.data[:comma] + number + self.data[comma:]
