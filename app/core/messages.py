"""What is said: messages, and the blocks that they are made of.

Fields and defaults are those of AgentScope 2.0, so that a message written there loads here and the
other way round. Ids and times have no factory here, because the core neither reads a clock nor draws
a random number; the engine fills in what is empty.
"""

from typing import Annotated, Literal, Self, TypeAlias, cast

from pydantic import ConfigDict, Field, JsonValue, ModelWrapValidatorHandler, model_validator

from app.core.values import Items, JsonObject, Timestamp, Value

Role: TypeAlias = Literal["user", "assistant", "system"]
ToolCallState: TypeAlias = Literal["pending", "asking", "allowed", "submitted", "finished"]
ToolResultState: TypeAlias = Literal["success", "error", "interrupted", "denied", "running"]
FinishedReason: TypeAlias = Literal["completed", "interrupted", "exceed_max_iters", "error"]
ErrorType: TypeAlias = Literal[
    "authentication",
    "permission",
    "rate_limit",
    "invalid_request",
    "upstream",
    "connection",
    "internal",
    "setup",
    "unknown",
]


MOST_TOKENS = 2**40


class Usage(Value):
    """Tokens that model calls cost."""

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cache_input_tokens: int = Field(default=0, ge=0)
    """Of the input tokens, those the provider read from its prompt cache."""
    cache_creation_input_tokens: int = Field(default=0, ge=0)

    def clamped(self) -> "Usage":
        """Bound what a provider says, so that sums of any number of calls fit a database's integer."""
        return Usage(**{name: min(value, MOST_TOKENS) for name, value in self.model_dump().items()})

    def plus(self, other: "Usage") -> "Usage":
        """Add up two usages, field by field."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_input_tokens=self.cache_input_tokens + other.cache_input_tokens,
            cache_creation_input_tokens=(
                self.cache_creation_input_tokens + other.cache_creation_input_tokens
            ),
        )


class ErrorInfo(Value):
    """Why a reply failed, in words a frontend may show."""

    type: ErrorType = "unknown"
    message: str
    code: str | None = None
    """A stable code of ours, such as `model_rate_limited`; absent in AgentScope's documents."""


class PermissionRule(Value):
    """A rule that allows, denies or asks about calls of one tool."""

    tool_name: str
    rule_content: str | None = None
    behavior: Literal["allow", "deny", "ask", "passthrough"]
    source: str


Decision: TypeAlias = Literal["approve", "edit", "reject", "respond"]
"""What a person may say of a call: run it, run it changed, do not, or "I answer in its place"."""


class _Block(Value):
    created_at: Timestamp = ""
    finished_at: Timestamp | None = None


class TextBlock(_Block):
    """Text that was said."""

    type: Literal["text"] = "text"
    id: str = ""
    text: str


class ThinkingBlock(_Block):
    """What a model thought before it spoke; providers add fields of their own, such as signatures."""

    model_config = ConfigDict(extra="allow")

    type: Literal["thinking"] = "thinking"
    id: str = ""
    thinking: str

    @model_validator(mode="wrap")
    @classmethod
    def _keep_what_providers_add(
        cls, data: object, handler: ModelWrapValidatorHandler[Self]
    ) -> Self:
        """Keep them too where unknown fields are ignored, as in a state that comes from elsewhere."""
        block = handler(data)
        if isinstance(data, dict):
            given = cast("dict[str, JsonValue]", data)
            extra = {key: value for key, value in given.items() if key not in cls.model_fields}
            object.__setattr__(block, "__pydantic_extra__", extra)
        return block


class Base64Source(Value):
    """Data carried in the block itself."""

    type: Literal["base64"] = "base64"
    data: str
    media_type: str


class URLSource(Value):
    """Data that is fetched from an address."""

    type: Literal["url"] = "url"
    url: str
    media_type: str


class DataBlock(_Block):
    """An image or another medium."""

    type: Literal["data"] = "data"
    id: str = ""
    source: Annotated[Base64Source | URLSource, Field(discriminator="type")]
    name: str | None = None


Content: TypeAlias = Annotated[TextBlock | DataBlock, Field(discriminator="type")]
"""What people and tools may say: text and data."""


class HintBlock(_Block):
    """Something the runtime tells the agent, sent to the model as a message of the user's role."""

    type: Literal["hint"] = "hint"
    id: str = ""
    hint: str | Items[Content]
    source: str | None = None


class ToolCallBlock(_Block):
    """A tool call as the model wrote it."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: str
    """The arguments, as the JSON text that the model sent."""
    state: ToolCallState = "pending"
    suggested_rules: Items[PermissionRule] = Field(default_factory=list[PermissionRule])


class ToolResultBlock(_Block):
    """What came of a tool call; its id is the call's."""

    type: Literal["tool_result"] = "tool_result"
    id: str
    name: str
    output: str | Items[Content]
    state: ToolResultState = "running"
    metadata: JsonObject = Field(default_factory=dict[str, JsonValue])


Block: TypeAlias = Annotated[
    TextBlock | ThinkingBlock | DataBlock | HintBlock | ToolCallBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class Msg(Value):
    """A message: who said it, in which role, and the blocks it is made of."""

    name: str
    role: Role
    content: Items[Block]
    id: str = ""
    metadata: JsonObject = Field(default_factory=dict[str, JsonValue])
    created_at: Timestamp = ""
    usage: Usage | None = None
    finished_at: Timestamp | None = None
    finished_reason: FinishedReason | None = None
    structured_output: JsonObject | None = None
    error: ErrorInfo | None = None

    @property
    def text(self) -> str:
        """All text of the message, its text blocks joined by line breaks."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))


def text_of(output: str | list[TextBlock | DataBlock]) -> str:
    """Join the text of a hint or a tool's output; data blocks count as nothing."""
    if isinstance(output, str):
        return output
    return "".join(block.text for block in output if isinstance(block, TextBlock))


def UserMsg(name: str, content: str | list[TextBlock | DataBlock]) -> Msg:  # noqa: N802
    """Make a message of the user's role; the name is AgentScope's, kept so that its examples run."""
    return Msg(name=name, role="user", content=_blocks(content))


def AssistantMsg(name: str, content: str | list[Block]) -> Msg:  # noqa: N802
    """Make a message of the assistant's role."""
    blocks: list[Block] = [TextBlock(text=content)] if isinstance(content, str) else content
    return Msg(name=name, role="assistant", content=blocks)


def SystemMsg(name: str, content: str | list[TextBlock]) -> Msg:  # noqa: N802
    """Make a message of the system's role."""
    blocks: list[Block] = (
        [TextBlock(text=content)] if isinstance(content, str) else list[Block](content)
    )
    return Msg(name=name, role="system", content=blocks)


def _blocks(content: str | list[TextBlock | DataBlock]) -> list[Block]:
    return [TextBlock(text=content)] if isinstance(content, str) else list[Block](content)
