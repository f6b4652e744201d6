"""Models that answer what a test wrote down."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from app.core.messages import Usage
from app.ports.models import Finished, Piece, Prompt, TextPiece, ThinkingPiece, ToolCallPiece

USAGE = Usage(input_tokens=10, output_tokens=5)


def say(*texts: str) -> list[Piece]:
    return [*[TextPiece(text) for text in texts], Finished(USAGE)]


def think(*texts: str) -> list[Piece]:
    return [ThinkingPiece(text) for text in texts]


def call(*calls: tuple[str, str, str]) -> list[Piece]:
    """Calls as (id, tool, arguments)."""
    pieces: list[Piece] = [
        ToolCallPiece(index, id=call_id, name=name, arguments=arguments)
        for index, (call_id, name, arguments) in enumerate(calls)
    ]
    return [*pieces, Finished(USAGE, "tool_calls")]


class WrittenModel:
    """Answers its turns in order; an exception in a turn is raised there, `HANG` waits for ever."""

    HANG = object()

    def __init__(self, turns: Sequence[Sequence[object]], *, context_size: int = 1000) -> None:
        self._turns = list(turns)
        self._context_size = context_size
        self.prompts: list[Prompt] = []
        self.hanging = asyncio.Event()

    @property
    def name(self) -> str:
        return "fake-model"

    @property
    def context_size(self) -> int:
        return self._context_size

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        kept = [
            message.model_copy(update={"content": list(message.content)})
            for message in prompt.context
        ]
        self.prompts.append(Prompt(prompt.system, kept, prompt.tools, prompt.may_call_tools))
        for piece in self._turns.pop(0):
            if isinstance(piece, Exception):
                raise piece
            if piece is self.HANG:
                self.hanging.set()
                await asyncio.Event().wait()
            else:
                yield piece
            await asyncio.sleep(0)
