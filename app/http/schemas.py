"""Wire shapes, only where the wire differs from the core."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Generic, Literal, Self, TypeAlias, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from app.core.errors import Invalid
from app.core.messages import Content, DataBlock, Decision, PermissionRule, TextBlock
from app.core.specs import RESERVED_FIELDS, EnvironmentValue
from app.core.state import AgentState, load_state
from app.core.values import FieldName, JsonObject, Label, Value
from app.ports.stores import OnBusy

Item = TypeVar("Item")

MOST_TEXT = 1_000_000
MOST_FIELDS = 64
MOST_VALUE = 4096
"""Characters of a live value, as of an agent's `extra_fields`."""

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MOST_TEXT)]
Title: TypeAlias = Annotated[str, StringConstraints(max_length=256)]
Id: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f\ufffd]+$", max_length=128)
]
StateDocument: TypeAlias = Annotated[
    JsonObject, WithJsonSchema({"$ref": "#/components/schemas/AgentState"})
]
"""An `AgentState` as it comes in, to be read by `read_state`."""


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
    state: StateDocument | None = None
    """An `AgentState` document to begin with, AgentScope's too; unknown fields are ignored."""


class SessionChange(Value):
    """What to change; what is left out stays."""

    title: Title | None = None
    metadata: Annotated[JsonObject, Field(max_length=MOST_FIELDS)] | None = None


class NewMessage(Value):
    """A message to be answered."""

    content: Text | Annotated[list[Content], Field(min_length=1, max_length=256)]
    """Text, or a list of text and data blocks."""
    name: Label = "user"
    on_busy: OnBusy = "enqueue"
    """What happens while a reply is being written or waits for somebody: answer in order (`enqueue`),
    refuse with 409 (`reject`), stop the reply and keep what it wrote (`interrupt`), stop it and take
    back what it wrote (`rollback`), or join it before its next reasoning step (`steer`)."""
    context: Annotated[JsonObject, Field(max_length=MOST_FIELDS)] = {}
    """The runtime context: given to tools, never shown to the model, gone when the reply ends."""
    structured_output: None = None
    """Not there yet: answers are text."""
    max_iters: int | None = Field(default=None, ge=1, le=1000)
    """Rounds of reasoning and acting, instead of the agent's."""

    @field_validator("content")
    @classmethod
    def _says_something(cls, content: str | list[Content]) -> str | list[Content]:
        blocks = [TextBlock(text=content)] if isinstance(content, str) else content
        texts = [block.text for block in blocks if isinstance(block, TextBlock)]
        if len(texts) == len(blocks) and not any(text.strip() for text in texts):
            raise ValueError("a message needs some text or data")
        if any(len(text) > MOST_TEXT for text in texts):
            raise ValueError(f"a text has more than {MOST_TEXT} characters")
        return content

    @property
    def blocks(self) -> list[TextBlock | DataBlock]:
        """The content as blocks."""
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content


CallId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
MOST_ANSWERS = 256


class NewDecision(Value):
    """What a person decided about a call."""

    tool_call_id: CallId
    decision: Decision
    input: JsonObject | None = None
    """With `edit`: the arguments that the call runs with."""
    message: Annotated[str, StringConstraints(max_length=MOST_TEXT)] = ""
    """With `reject`: why, for the agent. With `respond`: the result, in the tool's place."""
    rules: Annotated[list[PermissionRule], Field(max_length=0)] = []
    """Not there yet: a decision is about its call alone."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.decision == "edit") != (self.input is not None):
            raise ValueError("input goes with the decision edit, and edit needs it")
        if self.decision == "respond" and not self.message.strip():
            raise ValueError("respond needs a message")
        return self


class NewDecisions(Value):
    """Decisions about some of the calls that a reply waits for."""

    results: Annotated[list[NewDecision], Field(min_length=1, max_length=MOST_ANSWERS)]

    @field_validator("results")
    @classmethod
    def _each_once(cls, results: list[NewDecision]) -> list[NewDecision]:
        return _each_call_once(results)


class NewToolResult(Value):
    """The result of a call that the client executed."""

    tool_call_id: CallId
    output: (
        Annotated[str, StringConstraints(max_length=MOST_TEXT)]
        | Annotated[list[Content], Field(max_length=256)]
    )
    """Text, or a list of text and data blocks."""
    state: Literal["success", "error"] = "success"


class NewToolResults(Value):
    """Results of some of the calls that a reply waits for."""

    results: Annotated[list[NewToolResult], Field(min_length=1, max_length=MOST_ANSWERS)]

    @field_validator("results")
    @classmethod
    def _each_once(cls, results: list[NewToolResult]) -> list[NewToolResult]:
        return _each_call_once(results)


_Answer = TypeVar("_Answer", NewDecision, NewToolResult)


def _each_call_once(results: list[_Answer]) -> list[_Answer]:
    if len({each.tool_call_id for each in results}) < len(results):
        raise ValueError("a call is named twice")
    return results


class Fork(Value):
    """What a copy of a session begins with."""

    through_message_id: Id | None = None
    """The last message that it holds; everything when left out."""
    title: Title = ""
    metadata: Annotated[JsonObject, Field(max_length=MOST_FIELDS)] = {}


Environment: TypeAlias = Annotated[
    dict[FieldName, EnvironmentValue | None], Field(max_length=MOST_FIELDS)
]


def check_environment(values: Mapping[str, EnvironmentValue], *, at: str) -> None:
    """Refuse names that the runtime tells itself, and values too long to be told.

    Args:
        values: Live values.
        at: Where they stand in the body, as a JSON pointer.

    Raises:
        Invalid: A name is reserved, or a value longer than 4,096 characters.
    """
    problems = [
        (f"{at}/{name}", "this name is the runtime's own")
        for name in sorted(RESERVED_FIELDS.intersection(values))
    ]
    problems += [
        (f"{at}/{name}", f"a value is longer than {MOST_VALUE} characters")
        for name, value in values.items()
        if isinstance(value, str) and len(value) > MOST_VALUE
    ]
    if problems:
        raise Invalid("The values are not valid; `errors` says where.", errors=problems)


def read_state(document: JsonObject, *, at: Sequence[str] = ()) -> AgentState:
    """Read an `AgentState` document, ours or AgentScope's, ignoring fields that we do not know.

    Args:
        document: The document.
        at: Where it stands in the body.

    Raises:
        RequestValidationError: A known field has a wrong value.
    """
    try:
        return load_state(document)
    except ValidationError as error:
        body: object = document
        for name in reversed(at):
            body = {name: body}
        wrong = [
            {**each, "loc": ("body", *at, *each["loc"])}
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise RequestValidationError(wrong, body=body) from error


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
    """The service is there."""

    status: Literal["ok"] = "ok"


class Wrong(Value):
    """One thing that is wrong with a request."""

    pointer: str
    """Where, as a JSON pointer into the body, or `/query/…`, `/path/…`, `/header/…`."""
    detail: str


class Problem(Value):
    """What went wrong, as RFC 9457 has it."""

    type: str
    """`urn:bearings:` and the code."""
    title: str
    status: int
    detail: str
    """For people: what is wrong and what to do."""
    instance: str
    """The path that was asked for."""
    code: str
    """Stable, for programs."""
    request_id: str
    """Stands in the log, too."""
    errors: list[Wrong] = []
    """With status 422: what is wrong where."""
    reply_id: str = ""
    """With code `session_busy`: the reply that is being written or comes next."""
