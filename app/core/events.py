"""Everything that can happen in a session: one union, and the log is a list of these.

Types and fields are AgentScope 2.0's, with a few of ours beside them. An event's number belongs to
the log and is not part of the event; fields at their default are left out on the wire.
"""

from functools import cache
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, JsonValue, TypeAdapter

from app.core.messages import (
    Decision,
    ErrorInfo,
    FinishedReason,
    Msg,
    PermissionRule,
    Role,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from app.core.values import JsonObject, Timestamp, Value


@cache
def _defaults(kind: type["_Event"]) -> list[tuple[str, object]]:
    return [
        (name, field.get_default(call_default_factory=True, validated_data={}))
        for name, field in kind.model_fields.items()
        if not field.is_required()
    ]


class _Event(Value):
    TYPE: ClassVar[str]

    id: str = ""
    created_at: Timestamp = ""
    metadata: JsonObject = Field(default_factory=dict[str, JsonValue])

    def encode(self) -> bytes:
        """Write the event as one line of JSON: its type first, no nulls, no fields at their default."""
        left_out = {"type"}
        for name, default in _defaults(type(self)):
            if getattr(self, name) == default:
                left_out.add(name)
        rest = self.model_dump_json(exclude=left_out, exclude_none=True).encode()
        head = b'{"type":"' + self.TYPE.encode() + b'"'
        return head + (b"}" if rest == b"{}" else b"," + rest[1:])


class _ReplyEvent(_Event):
    reply_id: str


class _BlockEvent(_ReplyEvent):
    block_id: str


class _ToolEvent(_ReplyEvent):
    tool_call_id: str


class MessageReceivedEvent(_ReplyEvent):
    """A message was accepted; the reply named here will answer it."""

    TYPE: ClassVar[str] = "MESSAGE_RECEIVED"
    type: Literal["MESSAGE_RECEIVED"] = "MESSAGE_RECEIVED"
    message: Msg


class MessageJoinedEvent(_ReplyEvent):
    """A message that was sent to steer this reply is part of the context from here on."""

    TYPE: ClassVar[str] = "MESSAGE_JOINED"
    type: Literal["MESSAGE_JOINED"] = "MESSAGE_JOINED"
    message_id: str


class ReplyStartEvent(_ReplyEvent):
    """A reply has begun; the messages that it answers are now part of the context."""

    TYPE: ClassVar[str] = "REPLY_START"
    type: Literal["REPLY_START"] = "REPLY_START"
    session_id: str
    name: str
    role: Role = "assistant"


class ReplyResumedEvent(_ReplyEvent):
    """What the blocks named here said is withdrawn.

    `recovered`: its writer died, and the reply goes on. `model_retried`: the model is asked again.
    `rolled_back`: somebody took the whole reply back, and it ends.
    """

    TYPE: ClassVar[str] = "REPLY_RESUMED"
    type: Literal["REPLY_RESUMED"] = "REPLY_RESUMED"
    discard: list[str] = Field(default_factory=list[str])
    reason: Literal["recovered", "model_retried", "rolled_back"] = "recovered"


class ReplyEndEvent(_ReplyEvent):
    """A reply is over; nothing with its id follows."""

    TYPE: ClassVar[str] = "REPLY_END"
    type: Literal["REPLY_END"] = "REPLY_END"
    session_id: str
    finished_reason: FinishedReason
    error: ErrorInfo | None = None


class ModelCallStartEvent(_ReplyEvent):
    """A model is being asked."""

    TYPE: ClassVar[str] = "MODEL_CALL_START"
    type: Literal["MODEL_CALL_START"] = "MODEL_CALL_START"
    model_name: str


class ModelCallEndEvent(_ReplyEvent):
    """A model has answered, or was stopped."""

    TYPE: ClassVar[str] = "MODEL_CALL_END"
    type: Literal["MODEL_CALL_END"] = "MODEL_CALL_END"
    input_tokens: int
    output_tokens: int
    cache_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    finished_reason: Literal["completed", "interrupted"] = "completed"


class TextBlockStartEvent(_BlockEvent):
    """The agent begins to speak."""

    TYPE: ClassVar[str] = "TEXT_BLOCK_START"
    type: Literal["TEXT_BLOCK_START"] = "TEXT_BLOCK_START"


class TextBlockDeltaEvent(_BlockEvent):
    """More text of a block."""

    TYPE: ClassVar[str] = "TEXT_BLOCK_DELTA"
    type: Literal["TEXT_BLOCK_DELTA"] = "TEXT_BLOCK_DELTA"
    delta: str


class TextBlockEndEvent(_BlockEvent):
    """A text block is whole; `text`, when given, replaces what the deltas said."""

    TYPE: ClassVar[str] = "TEXT_BLOCK_END"
    type: Literal["TEXT_BLOCK_END"] = "TEXT_BLOCK_END"
    text: str | None = None


class ThinkingBlockStartEvent(_BlockEvent):
    """The model begins to think."""

    TYPE: ClassVar[str] = "THINKING_BLOCK_START"
    type: Literal["THINKING_BLOCK_START"] = "THINKING_BLOCK_START"


class ThinkingBlockDeltaEvent(_BlockEvent):
    """More of a thought."""

    TYPE: ClassVar[str] = "THINKING_BLOCK_DELTA"
    type: Literal["THINKING_BLOCK_DELTA"] = "THINKING_BLOCK_DELTA"
    delta: str


class ThinkingBlockEndEvent(_BlockEvent):
    """A thought is whole; `metadata` holds what its provider wants to see again."""

    TYPE: ClassVar[str] = "THINKING_BLOCK_END"
    type: Literal["THINKING_BLOCK_END"] = "THINKING_BLOCK_END"


class HintBlockEvent(_BlockEvent):
    """The runtime told the agent something; the hint is part of the context from here on."""

    TYPE: ClassVar[str] = "HINT_BLOCK"
    type: Literal["HINT_BLOCK"] = "HINT_BLOCK"
    source: str | None = None
    hint: str


class ToolCallStartEvent(_ToolEvent):
    """The model begins to write a tool call."""

    TYPE: ClassVar[str] = "TOOL_CALL_START"
    type: Literal["TOOL_CALL_START"] = "TOOL_CALL_START"
    tool_call_name: str


class ToolCallDeltaEvent(_ToolEvent):
    """More of a call's arguments, as JSON text."""

    TYPE: ClassVar[str] = "TOOL_CALL_DELTA"
    type: Literal["TOOL_CALL_DELTA"] = "TOOL_CALL_DELTA"
    delta: str


class ToolCallEndEvent(_ToolEvent):
    """A tool call is whole."""

    TYPE: ClassVar[str] = "TOOL_CALL_END"
    type: Literal["TOOL_CALL_END"] = "TOOL_CALL_END"


class ToolResultStartEvent(_ToolEvent):
    """A tool is about to run; written before it does. A second one for a call starts it anew."""

    TYPE: ClassVar[str] = "TOOL_RESULT_START"
    type: Literal["TOOL_RESULT_START"] = "TOOL_RESULT_START"
    tool_call_name: str


class ToolResultTextDeltaEvent(_ToolEvent):
    """More text of a tool's result."""

    TYPE: ClassVar[str] = "TOOL_RESULT_TEXT_DELTA"
    type: Literal["TOOL_RESULT_TEXT_DELTA"] = "TOOL_RESULT_TEXT_DELTA"
    delta: str


class ToolResultDataDeltaEvent(_ToolEvent):
    """Data in a tool's result."""

    TYPE: ClassVar[str] = "TOOL_RESULT_DATA_DELTA"
    type: Literal["TOOL_RESULT_DATA_DELTA"] = "TOOL_RESULT_DATA_DELTA"
    block_id: str
    media_type: str
    data: str | None = None
    url: str | None = None


class ToolResultEndEvent(_ToolEvent):
    """A tool call has its result."""

    TYPE: ClassVar[str] = "TOOL_RESULT_END"
    type: Literal["TOOL_RESULT_END"] = "TOOL_RESULT_END"
    state: ToolResultState


class RequireUserConfirmEvent(_ReplyEvent):
    """The reply waits until people have decided about these calls."""

    TYPE: ClassVar[str] = "REQUIRE_USER_CONFIRM"
    type: Literal["REQUIRE_USER_CONFIRM"] = "REQUIRE_USER_CONFIRM"
    tool_calls: list[ToolCallBlock]


class RequireExternalExecutionEvent(_ReplyEvent):
    """The reply waits until somebody else has executed these calls and told the results."""

    TYPE: ClassVar[str] = "REQUIRE_EXTERNAL_EXECUTION"
    type: Literal["REQUIRE_EXTERNAL_EXECUTION"] = "REQUIRE_EXTERNAL_EXECUTION"
    tool_calls: list[ToolCallBlock]


class ConfirmResult(Value):
    """What a person decided about one call."""

    confirmed: bool
    tool_call: ToolCallBlock
    """The call as it will run: an edited one has its new input."""
    rules: list[PermissionRule] | None = None
    decision: Decision
    message: str = ""
    """Why it was rejected, or the answer in the tool's place."""


class UserConfirmResultEvent(_ReplyEvent):
    """People have decided about calls that waited for them."""

    TYPE: ClassVar[str] = "USER_CONFIRM_RESULT"
    type: Literal["USER_CONFIRM_RESULT"] = "USER_CONFIRM_RESULT"
    confirm_results: list[ConfirmResult]


class ExternalExecutionResultEvent(_ReplyEvent):
    """Calls that waited for somebody else have their results."""

    TYPE: ClassVar[str] = "EXTERNAL_EXECUTION_RESULT"
    type: Literal["EXTERNAL_EXECUTION_RESULT"] = "EXTERNAL_EXECUTION_RESULT"
    execution_results: list[ToolResultBlock]


class UserInterruptEvent(_ReplyEvent):
    """Somebody asked that this reply be stopped."""

    TYPE: ClassVar[str] = "USER_INTERRUPT"
    type: Literal["USER_INTERRUPT"] = "USER_INTERRUPT"


class StateUpdatedEvent(_Event):
    """A part of what the agent knows has a new value, which stands in `value` as a whole."""

    TYPE: ClassVar[str] = "STATE_UPDATED"
    type: Literal["STATE_UPDATED"] = "STATE_UPDATED"
    reply_id: str = ""
    """The reply that changed it, if one did."""
    part: Literal["tasks", "environment", "state", "hint"]
    value: JsonObject


Event: TypeAlias = (
    MessageReceivedEvent
    | MessageJoinedEvent
    | ReplyStartEvent
    | ReplyResumedEvent
    | ReplyEndEvent
    | ModelCallStartEvent
    | ModelCallEndEvent
    | TextBlockStartEvent
    | TextBlockDeltaEvent
    | TextBlockEndEvent
    | ThinkingBlockStartEvent
    | ThinkingBlockDeltaEvent
    | ThinkingBlockEndEvent
    | HintBlockEvent
    | ToolCallStartEvent
    | ToolCallDeltaEvent
    | ToolCallEndEvent
    | ToolResultStartEvent
    | ToolResultTextDeltaEvent
    | ToolResultDataDeltaEvent
    | ToolResultEndEvent
    | RequireUserConfirmEvent
    | RequireExternalExecutionEvent
    | UserConfirmResultEvent
    | ExternalExecutionResultEvent
    | UserInterruptEvent
    | StateUpdatedEvent
)

_adapter: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


def decode(data: str | bytes) -> Event:
    """Read an event that `encode` wrote, here or in a newer release.

    Raises:
        pydantic.ValidationError: The text is no event of ours.
    """
    return _adapter.validate_json(data, extra="ignore")
