"""Turns the chunks of one streamed answer into pieces."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from app.adapters.models.loose_json import as_list, as_object
from app.adapters.models.openai_calls import CallDelta, Calls, FunctionDelta
from app.adapters.models.openai_errors import bad_answer, cut, error_in_stream
from app.core.errors import ModelError
from app.core.messages import Usage
from app.core.sanitise import TextJoiner
from app.core.values import JsonObject
from app.ports.models import Finished, Piece, TextPiece, ThinkingPiece, ToolCallPiece

MAX_HELD_BYTES = 16 * 1024 * 1024
REASONING_FIELD = "reasoning_field"
"""The key in a thinking block's extra fields: under which name the provider sent the thought."""

THOUGHT_FIELDS: dict[str, JsonObject] = {
    name: {REASONING_FIELD: name} for name in ("reasoning_content", "reasoning")
}
"""Fields of thoughts that go back to the provider, and what a piece says of them."""

_REASONS: dict[str, Literal["stop", "tool_calls", "length", "content_filter"]] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
"""Why models stop; what is not here is `stop`."""

_FAILURES = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Finish reasons by which providers say that they could not finish."""


# Typed dictionaries: pydantic fills them in 2.4 microseconds a chunk, models take 5.9. What
# providers disagree about is an object, which also lets half characters through to the joiners.
class _Delta(TypedDict, total=False):
    content: object
    refusal: object
    reasoning_content: object
    reasoning: object
    thinking: object
    reasoning_details: object
    tool_calls: list[CallDelta] | None
    function_call: FunctionDelta | None


class _Choice(TypedDict, total=False):
    index: int | None
    delta: _Delta | None
    message: _Delta | None
    finish_reason: str | None
    usage: object


class _Chunk(TypedDict, total=False):
    choices: list[_Choice] | None
    usage: object
    error: object
    kind: Annotated[object, Field(alias="object")]


_CHUNK = TypeAdapter(_Chunk)


class Lines:
    """Splits bytes into lines; a line that came in half waits for its end.

    Of a JSON document, which some servers send when asked for a stream, every line waits.
    """

    def __init__(self, *, is_document: bool = False) -> None:
        self._is_document = is_document
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their ends.

        Raises:
            ModelError: What has to wait is larger than 16 MiB.
        """
        lines = [data] if self._is_document else data.split(b"\n")
        if len(lines) > 1 and self._held:
            lines[0] = b"".join((*self._held, lines[0]))
            self._held, self._size = [], 0
        if rest := lines.pop():
            self._held.append(rest)
            self._size += len(rest)
            if self._size > MAX_HELD_BYTES:
                raise bad_answer("a line without an end")
        return lines

    def rest(self) -> list[bytes]:
        """Return what has no end: half a line, or the document."""
        held = b"".join(self._held).strip()
        if self._is_document and not held.startswith(b"{"):  # a stream with the wrong label
            return held.split(b"\n")
        return [held]


class Answer:
    """Turns the chunks of one answer into pieces.

    Chunks that are there together become one piece, as long as they are of one kind: everybody behind
    this would only join them again, one after the other.
    """

    def __init__(self, *, secret: str) -> None:
        self.done = False
        self._secret = secret
        self._reason = ""
        self._usage = Usage(input_tokens=0, output_tokens=0)
        self._speaks: Literal["text", "thought", "calls"] = "text"
        self._said: list[str] = []
        """Text or thoughts, whichever is spoken, that no piece holds yet."""
        self._joiner = TextJoiner()
        self._thought_extra: JsonObject = {}
        self._calls = Calls()
        self._pieces: list[Piece] = []

    @property
    def has_ended(self) -> bool:
        """Whether the provider said that the answer is whole."""
        return self.done or bool(self._reason)

    def read(self, lines: Sequence[bytes]) -> Iterator[Piece]:
        """Read lines of the stream: data counts, comments and other fields do not.

        Yields:
            What the lines say.

        Raises:
            ModelError: A line is no chunk, or tells of an error; what stood before it was yielded.
        """
        try:
            for line in lines:
                self._read_line(line)
        finally:
            self._gather()
            pieces, self._pieces = self._pieces, []
            yield from pieces

    def end(self, rest: list[bytes]) -> list[Piece]:
        """Read what stands after the last line's end, and finish.

        Raises:
            ModelError: The answer is not whole, or the provider says that it failed.
        """
        try:
            for line in rest:
                self._read_line(line)
        except ModelError as error:
            # A chunk that was cut is no garbage.
            if error.code != "model_bad_answer":
                raise
        if not self.has_ended:
            raise cut()
        if self._reason in _FAILURES:
            raise ModelError(
                f"The provider could not finish the answer: {self._reason}.",
                code="model_upstream",
                retryable=True,
            )
        self._end_voice()
        reason = _REASONS.get(self._reason, "stop")
        if reason in {"stop", "tool_calls"}:
            # Some say "stop" after calls, and some "tool_calls" after none.
            reason = "tool_calls" if self._calls else "stop"
        return [*self._pieces, *self._calls.end(), Finished(self._usage, reason)]

    def _read_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            line = line[5:]
        elif not line.startswith(b"{"):  # proxies put bare errors between the events
            return
        line = line.strip()
        if not line or self.done:
            return
        if line == b"[DONE]":
            self.done = True
            return
        self._read_chunk(line)

    def _read_chunk(self, raw: bytes) -> None:
        try:
            chunk = _CHUNK.validator.validate_json(raw)
        except ValidationError:
            chunk = _read_leniently(raw)
        if usage := chunk.get("usage"):
            self._usage = _usage(usage)
        if chunk.get("error") or chunk.get("kind") == "error":
            raise error_in_stream(raw, secret=self._secret)
        for choice in chunk.get("choices") or ():
            if choice.get("index"):  # another candidate: one is enough
                continue
            if delta := choice.get("delta") or choice.get("message"):
                self._take(delta)
            if reason := choice.get("finish_reason"):
                self._reason = reason.lower()
            if usage := choice.get("usage"):  # Moonshot's place for it
                self._usage = _usage(usage)

    def _take(self, delta: _Delta) -> None:
        if len(delta) > 1 or "content" not in delta:
            self._think(delta)
        content = delta.get("content")
        if isinstance(content, str):
            self._say(content)
        elif content:
            self._take_parts(content)
        if isinstance(refusal := delta.get("refusal"), str):
            self._say(refusal)
        calls = delta.get("tool_calls") or ()
        if function := delta.get("function_call"):
            calls = [CallDelta(index=0, function=function)]
        for call in calls:
            self._switch("calls")
            if piece := self._calls.add(call):
                self._call(piece)

    def _think(self, delta: _Delta) -> None:
        """Take the first field that holds a thought; some providers send it under two names."""
        for name in ("reasoning_content", "reasoning", "thinking"):
            thought = delta.get(name)
            if thought and isinstance(thought, str):
                self._add_thought(thought, THOUGHT_FIELDS.get(name, {}))
                return
        for part in as_list(delta.get("reasoning_details")):
            thought = as_object(part).get("text")
            if isinstance(thought, str):
                self._add_thought(thought, {})

    def _take_parts(self, content: object) -> None:
        """Take content that is a list, as Mistral's reasoning models send it."""
        for each in as_list(content):
            part = as_object(each)
            if isinstance(text := part.get("text"), str):
                self._say(text)
            for thought in as_list(part.get("thinking")):
                if isinstance(text := as_object(thought).get("text"), str):
                    self._add_thought(text, {})

    def _say(self, text: str) -> None:
        if text:
            self._switch("text")
            self._said.append(text)

    def _add_thought(self, thought: str, extra: JsonObject) -> None:
        self._switch("thought")
        if extra != self._thought_extra:
            self._gather()
            self._thought_extra = extra
        self._said.append(thought)

    def _call(self, piece: ToolCallPiece) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, ToolCallPiece) and last.index == piece.index:
            self._pieces[-1] = replace(last, arguments=last.arguments + piece.arguments)
        else:
            self._pieces.append(piece)

    def _switch(self, to: Literal["text", "thought", "calls"]) -> None:
        if to != self._speaks:
            self._end_voice()
            self._speaks = to

    def _end_voice(self) -> None:
        """Make pieces of all that was said, half characters at its end included."""
        self._gather()
        self._add_said(self._joiner.end())

    def _gather(self) -> None:
        """Make one piece of what was said since the last one."""
        if self._said:
            self._add_said(self._joiner.add("".join(self._said)))
            self._said.clear()

    def _add_said(self, said: str) -> None:
        if said:
            is_text = self._speaks == "text"
            self._pieces.append(
                TextPiece(said) if is_text else ThinkingPiece(said, self._thought_extra)
            )


def _read_leniently(raw: bytes) -> _Chunk:
    """Read a chunk with half characters or broken UTF-8 in it, which the fast way refuses."""
    try:
        return _CHUNK.validate_python(json.loads(raw.decode("utf-8", "replace")))
    except (ValueError, RecursionError) as error:
        raise bad_answer("a line that is no chunk of an answer") from error


def _usage(value: object) -> Usage:
    counts = as_object(value)
    details = as_object(counts.get("prompt_tokens_details"))
    return Usage(
        input_tokens=_count(counts, "prompt_tokens", "input_tokens"),
        output_tokens=_count(counts, "completion_tokens", "output_tokens"),
        cache_input_tokens=_count(details, "cached_tokens")
        or _count(counts, "prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens"),
        cache_creation_input_tokens=_count(counts, "cache_creation_input_tokens"),
    )


def _count(counts: dict[str, object], *names: str) -> int:
    """Return the first count that is one; 0 when there is none."""
    for name in names:
        count = counts.get(name)
        if isinstance(count, int) and count > 0:
            return count
    return 0
