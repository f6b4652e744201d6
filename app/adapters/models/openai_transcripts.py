"""Remembers conversations as they were written, so that each request writes only what is new."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_

from app.adapters.models.openai_json import encode
from app.adapters.models.openai_messages import Transcript
from app.core.messages import Msg, TextBlock
from app.core.values import JsonObject
from app.ports.models import Prompt

MOST_KEPT_BYTES = 4 * 1024 * 1024
"""A conversation that is longer when it is written, by its images, is written anew each time."""


@dataclass(frozen=True)
class _Begun:
    """All of a conversation but its last message, written.

    Attributes:
        first: Its first message, held weakly: what is written goes with the conversation.
        others: The messages behind the first; each is known again by being the same object.
        tool_names: The tools that were offered.
        thought_field: What its thoughts have taught.
        written: The messages as JSON, with commas between them.
    """

    first: weakref.ref[Msg]
    others: Sequence[Msg]
    tool_names: frozenset[str]
    thought_field: str | None
    written: bytes

    def begins(self, context: Sequence[Msg], tool_names: frozenset[str]) -> bool:
        """Whether a conversation goes on from here, with a last message that is not in it."""
        return (
            self.first() is context[0]
            and self.tool_names == tool_names
            and len(self.others) + 1 < len(context)
            and all(map(is_, self.others, islice(context, 1, None)))
        )


class Transcripts:
    """The conversations of one model.

    What a message becomes depends on nothing behind it, and of a conversation only the last message
    changes in place. Five thousand messages take 13 ms to write, and 0.3 ms to find written.
    """

    def __init__(self, *, shows_images: bool, thought_field: str | None) -> None:
        """Prepare to write.

        Args:
            shows_images: Whether the model takes images.
            thought_field: Where thoughts go back; `None` until one shows how, `""` for nowhere.
        """
        self._shows_images = shows_images
        self._thought_field = thought_field
        self._begun: dict[int, _Begun] = {}
        """By the identity of their first message, and as long as that lives."""

    def write(self, prompt: Prompt) -> bytes:
        """Write the system prompt, the summary and the conversation as a JSON list."""
        tool_names = frozenset(tool.name for tool in prompt.tools)
        opening = Transcript(self._shows_images, tool_names, self._thought_field)
        opening.say("system", [TextBlock(text=prompt.system)])
        opening.say("user", [TextBlock(text=prompt.summary)])
        parts = [_joined(opening.messages)]
        if prompt.context:
            begun, thought_field = self._beginning(prompt.context, tool_names)
            last = Transcript(self._shows_images, tool_names, thought_field)
            last.add(prompt.context[-1])
            parts += [begun, _joined(last.messages)]
        return b"[%b]" % b",".join(filter(None, parts))

    def _beginning(
        self, context: Sequence[Msg], tool_names: frozenset[str]
    ) -> tuple[bytes, str | None]:
        """Return all but the last message, written, and where thoughts go back behind them."""
        key = id(context[0])
        known = self._begun.get(key)
        if known is not None and not known.begins(context, tool_names):
            known = None
        done = len(known.others) + 1 if known else 0
        transcript = Transcript(
            self._shows_images, tool_names, known.thought_field if known else self._thought_field
        )
        new = context[done:-1]
        for message in new:
            transcript.add(message)
        before = known.written if known else b""
        written = b",".join(filter(None, (before, _joined(transcript.messages))))
        if new and len(written) <= MOST_KEPT_BYTES:
            self._begun[key] = _Begun(
                weakref.ref(context[0], lambda _: self._begun.pop(key, None)),
                context[1:-1],
                tool_names,
                transcript.thought_field,
                written,
            )
        return written, transcript.thought_field


def _joined(messages: list[JsonObject]) -> bytes:
    return encode(messages)[1:-1]
