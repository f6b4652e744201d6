"""Asks a model again when it failed in a way that may pass."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from app.core.errors import ModelError
from app.ports.models import ChatModel, Finished, Piece, Prompt, Restarted

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
SPREAD = 0.1
"""Of the wait that a provider asks for, at most this share is added, lest all come back at once."""


class RetryingModel:
    """A model that is asked again after retryable errors.

    Waits double from half a second, of which a random share is slept (full jitter); a wait that the
    provider asks for comes first. None is longer than 30 s.

    Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        retries: int,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._model = model
        self._retries = retries
        self._random = random
        self._sleep = sleep

    @property
    def name(self) -> str:
        """The held model's name."""
        return self._model.name

    @property
    def context_size(self) -> int:
        """The held model's window, in tokens."""
        return self._model.context_size

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Ask the model, and ask it again while it fails and may not fail next time.

        Yields:
            The answer's pieces; `Restarted` before those of a new try, when an earlier one had said
            something. It comes with the first of them: nothing is void before there is better.

        Raises:
            ModelError: The last try's, or one that trying again cannot mend.
        """
        is_void = False
        for failures in range(self._retries + 1):
            has_said = False
            try:
                async with aclosing(self._model.stream(prompt)) as pieces:
                    async for piece in pieces:
                        if is_void and not isinstance(piece, Restarted):
                            yield Restarted()
                        is_void = False
                        has_said = not isinstance(piece, Restarted)
                        yield piece
                        if isinstance(piece, Finished):
                            return
            except ModelError as error:
                if failures == self._retries or not error.retryable:
                    raise
                is_void = is_void or has_said
                delay = self._delay(failures, error.retry_after_seconds)
            else:
                return
            await self._sleep(delay)

    def _delay(self, failures: int, asked_seconds: float | None) -> float:
        """Choose how long to wait, in seconds, after so many earlier failures."""
        if asked_seconds is not None:
            return min(MAX_DELAY_SECONDS, asked_seconds * (1 + SPREAD * self._random()))
        return self._random() * min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**failures)
