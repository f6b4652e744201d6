"""Wire shapes, only where the wire differs from the core."""

from typing import Annotated, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from app.core.messages import Content, DataBlock, TextBlock
from app.core.specs import RESERVED_FIELDS, EnvironmentValue
from app.core.state import AgentState
from app.core.values import FieldName, JsonObject, Label, Value

Item = TypeVar("Item")

MOST_TEXT = 1_000_000
MOST_FIELDS = 64

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MOST_TEXT)]
Title: TypeAlias = Annotated[str, StringConstraints(max_length=256)]
Id: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class List(Value, Generic[Item]):
    """A part of a list; `next_cursor` leads to the next part, null at the end."""

    data: list[Item]
    next_cursor: str | None


class NewSession(Value):
    """What a session begins with."""

    agent_id: Id
    agent_version: Literal["pin", "follow"] = "pin"
    """`pin` keeps the version that is newest now; `follow` always runs the newest."""
    title: Title = ""
    metadata: Annotated[JsonObject, Field(max_length=MOST_FIELDS)] = {}
    """Yours: sessions can be listed by it."""
    user_id: Id | None = None
    environment: dict[FieldName, EnvironmentValue] = Field(default={}, max_length=MOST_FIELDS)
    state: AgentState | None = None
    """An `AgentState` document to begin with, AgentScope's too."""

    @field_validator("environment")
    @classmethod
    def _not_reserved(cls, values: dict[str, EnvironmentValue]) -> dict[str, EnvironmentValue]:
        return refuse_reserved(values)


class SessionChange(Value):
    """What to change; what is left out stays."""

    title: Title | None = None
    metadata: Annotated[JsonObject, Field(max_length=MOST_FIELDS)] | None = None


class NewMessage(Value):
    """A message to be answered."""

    content: Text | Annotated[list[Content], Field(min_length=1, max_length=256)]
    """Text, or a list of text and data blocks."""
    name: Label = "user"
    on_busy: Literal["enqueue", "reject"] = "enqueue"
    """What happens when a reply is being written: answer in order, or refuse with 409."""
    max_iters: int | None = Field(default=None, ge=1, le=1000)
    """Rounds of reasoning and acting, instead of the agent's."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if isinstance(self.content, list) and not any(
            isinstance(block, DataBlock) or block.text.strip() for block in self.content
        ):
            raise ValueError("content: a message needs some text or data")
        return self

    @property
    def blocks(self) -> list[TextBlock | DataBlock]:
        """The content as blocks."""
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content


Environment: TypeAlias = Annotated[
    dict[FieldName, EnvironmentValue | None], Field(max_length=MOST_FIELDS)
]


def refuse_reserved(values: dict[str, EnvironmentValue]) -> dict[str, EnvironmentValue]:
    """Refuse names that the runtime tells itself, and values too long to be told.

    Raises:
        ValueError: A name is reserved, or a value longer than 4,096 characters.
    """
    if taken := sorted(RESERVED_FIELDS.intersection(values)):
        raise ValueError(f"{', '.join(taken)}: these names are the runtime's own")
    if any(len(str(value)) > 4096 for value in values.values()):  # noqa: PLR2004 - as extra_fields
        raise ValueError("a value is longer than 4,096 characters")
    return values


class Interruption(Value):
    """What an interruption did, truly."""

    status: Literal["interrupting", "interrupted", "idle"]
    reply_id: str | None = None


class EventPage(Value):
    """A part of a session's log."""

    data: list[dict[str, JsonValue]]
    next_cursor: str | None
    """Give it as `after`; null at the end of the log for now."""
    last_seq: int


class ToolGroup(Value):
    """A built-in group of tools."""

    name: str
    tools: list[dict[str, JsonValue]]


class Health(Value):
    """Whether the service is there."""

    status: Literal["ok", "unavailable"]
