"""The door to language models."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pydantic import JsonValue

from app.core.messages import Msg, Usage
from app.core.values import JsonObject


@dataclass(frozen=True)
class ToolSchema:
    """A tool as a model sees it: its parameters are a JSON Schema of type object."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True)
class Prompt:
    """What a model is asked.

    Attributes:
        system: The system prompt; the same bytes in every call of a session, so that it is cached.
        context: The conversation, oldest first. Every call has its result right behind it.
        tools: The tools that may be called, in a fixed order.
        may_call_tools: Whether the answer may hold tool calls.
        summary: What the conversation was about before `context` begins; `""` for nothing.
    """

    system: str
    context: Sequence[Msg]
    tools: Sequence[ToolSchema] = ()
    may_call_tools: bool = True
    summary: str = ""


@dataclass(frozen=True)
class TextPiece:
    """More text."""

    text: str


@dataclass(frozen=True)
class ThinkingPiece:
    """More of a thought; `extra` is what the provider wants to see again with it."""

    text: str
    extra: JsonObject = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True)
class ToolCallPiece:
    """A part of a tool call.

    Attributes:
        index: Which call of this answer, counted from 0 by the adapter.
        id: The call's id, in its first piece; `""` in later ones, or when the provider gives none.
        name: The tool, in the first piece.
        arguments: More of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Restarted:
    """The answer so far is void: the model is being asked again, and begins anew."""


@dataclass(frozen=True)
class Finished:
    """The answer is whole; the last piece of every stream that did not fail.

    Attributes:
        usage: What it cost; zeros when the provider does not say.
        reason: Why the model stopped.
        model: Who answered, when that is not the model that was asked.
    """

    usage: Usage
    reason: Literal["stop", "tool_calls", "length", "content_filter"] = "stop"
    model: str = ""


Piece: TypeAlias = TextPiece | ThinkingPiece | ToolCallPiece | Restarted | Finished


class ChatModel(Protocol):
    """Answers a prompt, piece by piece."""

    @property
    def name(self) -> str:
        """What frontends are told: the model's name."""
        ...

    @property
    def context_size(self) -> int:
        """Tokens that the model's window holds."""
        ...

    def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Ask the model.

        Yields:
            The answer's pieces as they come, `Finished` last. Closing the iterator ends the call.

        Raises:
            ModelError: The model cannot answer, or stopped in the middle of its answer.
        """
        ...
