"""Asks a second model when the first cannot answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from app.core.errors import ModelError
from app.ports.models import ChatModel, Finished, Piece, Prompt, Restarted


class FallbackModel:
    """A model that is stood in for by another one.

    The second is not asked when the request itself was refused. A wrong name or parameter would
    otherwise be paid for by the second model for ever, and nobody would see the mistake; and a
    context that is too long is made shorter by the engine, after which the first can answer again.
    """

    def __init__(self, first: ChatModel, second: ChatModel) -> None:
        self._first = first
        self._second = second

    @property
    def name(self) -> str:
        """The first model's name; `Finished.model` tells when the second has answered."""
        return self._first.name

    @property
    def context_size(self) -> int:
        """The smaller window, in tokens: what fits has to fit when the second must step in."""
        return min(self._first.context_size, self._second.context_size)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Ask the first model, and when it fails the second.

        Yields:
            The answer's pieces; `Restarted` before the second's, when the first had said something.

        Raises:
            ModelError: The first's, when the request is wrong; else the second's.
        """
        is_void = False
        try:
            async with aclosing(self._first.stream(prompt)) as pieces:
                async for piece in pieces:
                    is_void = not isinstance(piece, Restarted)
                    yield piece
                    if isinstance(piece, Finished):
                        return
        except ModelError as error:
            if _is_wrong_everywhere(error):
                raise
        else:
            return
        async with aclosing(self._second.stream(prompt)) as pieces:
            async for piece in pieces:
                if is_void and not isinstance(piece, Restarted):
                    yield Restarted()
                is_void = False
                if isinstance(piece, Finished):
                    yield replace(piece, model=piece.model or self._second.name)
                else:
                    yield piece


def _is_wrong_everywhere(error: ModelError) -> bool:
    # A conflict (409) has the type of wrong requests too, but passes.
    return error.info.type == "invalid_request" and not error.retryable
