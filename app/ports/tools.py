"""The door to tools."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from pydantic import JsonValue

from app.core.messages import ToolResultState
from app.core.state import TasksContext
from app.core.values import JsonObject
from app.ports.models import ToolSchema


@dataclass(frozen=True)
class TextChunk:
    """More text of a result."""

    text: str


@dataclass(frozen=True)
class DataChunk:
    """Data in a result: base64 text."""

    data: str
    media_type: str


@dataclass(frozen=True)
class ToolEnd:
    """How a call ended; without it, a call that raises nothing succeeded."""

    state: ToolResultState
    metadata: JsonObject


ToolChunk: TypeAlias = TextChunk | DataChunk | ToolEnd


class Tasks(Protocol):
    """The session's plan, as a tool may read and change it."""

    def read(self) -> TasksContext:
        """Return the plan as it is now."""
        ...

    def write(self, tasks: TasksContext) -> None:
        """Replace the plan; what is read and written without an await in between is not lost."""
        ...


@dataclass(frozen=True)
class ToolCall:
    """One call, as a tool receives it.

    Attributes:
        id: The call's id, unique in its reply.
        key: Stable for this call across crashes and replicas, for use as an idempotency key.
        arguments: What the model asked for, checked against the tool's schema.
        now: When the call began, as a timestamp.
        session_id: Whose call it is.
        context: The runtime context that came with the message; no model sees it.
        tasks: The session's plan.
    """

    id: str
    key: str
    arguments: JsonObject
    now: str
    session_id: str
    tasks: Tasks
    context: JsonObject = field(default_factory=dict[str, JsonValue])


class Tool(Protocol):
    """Something that an agent can do."""

    @property
    def schema(self) -> ToolSchema:
        """What a model is told of the tool; the same object every time."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether calls of this tool may run at once with others of the same round."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether a call may run again when nobody knows whether it took effect."""
        ...

    def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        """Do what the call asks.

        Yields:
            The result as it comes.

        Raises:
            Exception: Anything; it becomes an error result with the exception's text.
        """
        ...


class Toolbox(Protocol):
    """The built-in groups of tools."""

    def groups(self) -> dict[str, Sequence[Tool]]:
        """Return the tools by the group's name, in a fixed order."""
        ...
