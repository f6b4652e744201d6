"""Asks models that speak OpenAI's chat-completions protocol, as nearly every provider does.

Top down: the model, the prompt as a request, the answer's chunks as pieces, and what went wrong as a
`ModelError`. There is no SDK: OpenAI's takes 123 microseconds to parse what is parsed here in 3.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Annotated, Literal, NoReturn, TypeAlias, cast

import aiohttp
import httpx
import orjson
from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from app.core.errors import ModelError
from app.core.messages import (
    Base64Source,
    Block,
    DataBlock,
    ErrorType,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
)
from app.core.repair import paired
from app.core.sanitise import TextJoiner, clean_text, is_clean, storable
from app.core.specs import ModelSpec
from app.core.values import JsonObject
from app.ports.models import (
    Finished,
    Piece,
    Prompt,
    TextPiece,
    ThinkingPiece,
    ToolCallPiece,
    ToolSchema,
)

MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_ERROR_CHARS = 500
MAX_HELD_BYTES = 16 * 1024 * 1024
ERROR_BODY_SECONDS = 10.0
DRAIN_SECONDS = 0.25
"""How long to wait for the end of a body after `[DONE]`; a connection read to its end is used again."""

MAX_CHECKED_CHARS = 100_000
NO_OUTPUT = "(no output)"
REASONING_FIELD = "reasoning_field"
"""The key in a thinking block's extra fields: under which name the provider sent the thought."""

_OWN_FIELDS = frozenset({"model", "messages", "stream", "tools"})

_THOUGHTS_WANTED = {
    "deepseek.com": "reasoning_content",
    "moonshot.ai": "reasoning_content",
    "moonshot.cn": "reasoning_content",
    # These answer 400 to fields they do not know, as after a change of models.
    "openai.com": "",
    "openai.azure.com": "",
    "mistral.ai": "",
}
"""Under which field a host wants thoughts back on tool calls, from the first one on; `""` for never.

Others are given them once they have sent one.
"""

_NEW_LIMIT_HOSTS = ("openai.com", "openai.azure.com")

# httpx-aiohttp lets through what it has no httpx name for.
_TransportError: TypeAlias = httpx.HTTPError | httpx.StreamError | aiohttp.ClientError | OSError
_TRANSPORT_ERRORS = (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError)


class OpenAIModel:
    """A model behind `{base_url}/chat/completions`; every answer is streamed."""

    def __init__(
        self, spec: ModelSpec, *, client: httpx.AsyncClient, base_url: str, api_key: str | None
    ) -> None:
        self._spec = spec
        self._client = client
        self._base_url = base_url
        # A key pasted with its line break would not fit a header.
        self._api_key = (api_key or "").strip()

    @property
    def name(self) -> str:
        """The model's name at its provider."""
        return self._spec.name

    @property
    def context_size(self) -> int:
        """Tokens that the model's window holds, as its spec says."""
        return self._spec.context_size

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Ask the model. Closing the generator closes the connection at once.

        Yields:
            The answer's pieces as they come, `Finished` last.

        Raises:
            ModelError: The model cannot answer, or stopped in the middle of its answer. What it says
                never holds the API key.
        """
        request = self._request(prompt)
        try:
            response = await self._client.send(request, stream=True)
        except _TRANSPORT_ERRORS as error:
            raise _unreachable(error) from error
        is_document = "application/json" in response.headers.get("content-type", "")
        answer, lines = _Answer(secret=self._api_key), _Lines(is_document=is_document)
        try:
            if not response.is_success:
                raise await self._refused(response)
            body = response.aiter_bytes()
            async for data in body:
                for line in lines.feed(data):
                    for piece in answer.read_line(line):
                        yield piece
                if answer.done:
                    await _drain(body)
                    break
        except _TRANSPORT_ERRORS as error:
            if not answer.has_ended:
                raise _broken_off(error) from error
        finally:
            await response.aclose()
        for piece in answer.end(lines.rest()):
            yield piece

    def _request(self, prompt: Prompt) -> httpx.Request:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            # Compression holds tokens back until a block is full.
            "accept-encoding": "identity",
        }
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        try:
            url = httpx.URL(self._base_url)
            url = url.copy_with(path=url.path.rstrip("/") + "/chat/completions")
            content = _encode(_body(prompt, self._spec, host=url.host))
            return self._client.build_request("POST", url, content=content, headers=headers)
        except (httpx.InvalidURL, UnicodeError):
            # Without the cause, which quotes the header: the key would reach the log.
            raise ModelError(
                "The model's address or API key holds characters that do not belong there.",
                type="setup",
                code="model_invalid_request",
            ) from None

    async def _refused(self, response: httpx.Response) -> ModelError:
        try:
            async with asyncio.timeout(ERROR_BODY_SECONDS):
                body = await _read(response, limit=MAX_ERROR_BODY_BYTES)
        except _TRANSPORT_ERRORS:
            body = b""
        return _model_error(
            response.status_code,
            _complaint(_parsed(body)),
            secret=self._api_key,
            retry_after_seconds=_retry_after(response.headers),
        )


async def _read(response: httpx.Response, *, limit: int) -> bytes:
    """Read a body, of an endless one only its first `limit` bytes."""
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) >= limit:
            break
    return bytes(body[:limit])


async def _drain(body: AsyncIterator[bytes]) -> None:
    """Wait a moment for a body's end, so that its connection can be used again."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in body:
                pass
    except _TRANSPORT_ERRORS:
        return


def _is_at(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _body(prompt: Prompt, spec: ModelSpec, *, host: str) -> JsonObject:
    """Write the request; equal prompts give equal bytes, and null in the parameters drops a field.

    The limit goes out as `max_tokens`, which every server knows: some ignore the newer
    `max_completion_tokens` in silence. OpenAI's own reasoning models take only the newer one.
    """
    body: JsonObject = {
        "model": spec.name,
        "messages": cast("JsonValue", _messages(prompt, spec, host=host)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
    if spec.max_output_tokens is not None and not (
        spec.parameters.keys() & {"max_tokens", "max_completion_tokens"}
    ):
        newer = any(_is_at(host, each) for each in _NEW_LIMIT_HOSTS)
        body["max_completion_tokens" if newer else "max_tokens"] = spec.max_output_tokens
    body |= {key: spec.parameters[key] for key in sorted(spec.parameters.keys() - _OWN_FIELDS)}
    if not prompt.tools:
        body.pop("tool_choice", None)
    elif not prompt.may_call_tools:
        # The tools still go along: they are the head of what the provider has cached.
        body["tool_choice"] = "none"
    return {key: value for key, value in body.items() if value is not None}


def _encode(body: JsonObject) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        # Half characters in a foreign tool's schema, or an integer beyond 64 bits.
        return json.dumps(storable(body), ensure_ascii=False, separators=(",", ":")).encode()


def _tool(tool: ToolSchema) -> JsonObject:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def _messages(prompt: Prompt, spec: ModelSpec, *, host: str) -> list[JsonObject]:
    transcript = _Transcript(
        shows_images="image" in spec.input_types,
        tool_names=frozenset(tool.name for tool in prompt.tools),
        thought_field=next(
            (wanted for domain, wanted in _THOUGHTS_WANTED.items() if _is_at(host, domain)), None
        ),
    )
    transcript.say("system", [TextBlock(text=prompt.system)])
    transcript.say("user", [TextBlock(text=prompt.summary)])
    for message in prompt.context:
        transcript.add(message)
    return transcript.messages


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass
class _Transcript:
    """Writes a conversation as the protocol's messages.

    What is written of a message depends on nothing that comes later, so that each request of a
    session begins with the whole of the one before, which the provider has cached.

    Attributes:
        shows_images: Whether the model takes images.
        tool_names: The tools that are offered: these names go out as they are.
        thought_field: Where thoughts go back; `None` until one shows how, `""` for nowhere.
        messages: What is written so far.
    """

    shows_images: bool
    tool_names: frozenset[str]
    thought_field: str | None
    messages: list[JsonObject] = field(default_factory=list[JsonObject])

    def add(self, message: Msg) -> None:
        """Write a message of the conversation."""
        if message.role == "assistant":
            self._answer(message.content)
            return
        said: list[TextBlock | DataBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock | DataBlock):
                said.append(block)
            elif isinstance(block, HintBlock):
                self.say(message.role, said)
                said = []
                self._hint(block)
        self.say(message.role, said)

    def say(self, role: Literal["system", "user"], said: Sequence[TextBlock | DataBlock]) -> None:
        """Write what was said, unless it is blank; as plain text where there are no images.

        Many servers refuse lists, most of all for the system's role.
        """
        parts: list[JsonValue] = []
        texts: list[str] = []
        shows_images = self.shows_images and role == "user"
        for block in said:
            image = _image(block) if shows_images and isinstance(block, DataBlock) else None
            text = _text(block) if image is None else ""
            if image is not None:
                parts.append(image)
            elif text.strip():
                parts.append({"type": "text", "text": text})
                texts.append(text)
        if len(parts) > len(texts):
            self.messages.append({"role": role, "content": parts})
        elif texts:
            self.messages.append({"role": role, "content": "\n".join(texts)})

    def _hint(self, block: HintBlock) -> None:
        said = [TextBlock(text=block.hint)] if isinstance(block.hint, str) else block.hint
        self.say("user", said)

    def _answer(self, blocks: list[Block]) -> None:
        """Split an assistant's message where results and hints, which others say, stand in it."""
        turn = _Turn()
        for block in paired(_calls_by_their_results(blocks)):
            match block:
                case ThinkingBlock():
                    turn.thoughts.append(block.thinking)
                    self._learn_thought_field(block)
                case ToolCallBlock():
                    turn.calls.append(self._call(block))
                case ToolResultBlock():
                    self._end(turn)
                    self._result(block)
                    turn = _Turn()
                case HintBlock():
                    self._end(turn)
                    self._hint(block)
                    turn = _Turn()
                case TextBlock() | DataBlock():
                    turn.texts.append(_text(block))
        self._end(turn)

    def _learn_thought_field(self, block: ThinkingBlock) -> None:
        name = (block.model_extra or {}).get(REASONING_FIELD)
        if self.thought_field != "" and isinstance(name, str) and name in _THOUGHT_FIELDS:
            self.thought_field = name

    def _end(self, turn: "_Turn") -> None:
        text = "\n".join(each for each in turn.texts if each.strip())
        if not text and not turn.calls:
            return
        message: JsonObject = {"role": "assistant", "content": text or None}
        if turn.calls:
            if self.thought_field:
                message[self.thought_field] = "\n".join(turn.thoughts)
            message["tool_calls"] = turn.calls
        self.messages.append(message)

    def _call(self, block: ToolCallBlock) -> JsonObject:
        return {
            "id": block.id,
            "type": "function",
            "function": {
                "name": self._tool_name(block.name),
                "arguments": _arguments(block.input),
            },
        }

    def _result(self, block: ToolResultBlock) -> None:
        output = [block.output] if isinstance(block.output, str) else map(_text, block.output)
        text = "\n".join(each for each in output if each.strip())
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": block.id,
                "content": text or NO_OUTPUT,
                "name": self._tool_name(block.name),
            }
        )

    def _tool_name(self, name: str) -> str:
        """Write a name that a model made up so that providers, which check names, take it back."""
        if name in self.tool_names or _TOOL_NAME.fullmatch(name):
            return name
        return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


@dataclass
class _Turn:
    """What the assistant says in one message of the protocol."""

    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[JsonValue] = field(default_factory=list[JsonValue])


def _calls_by_their_results(blocks: list[Block]) -> list[Block]:
    """Move what stands between a call and its result in front of the call.

    Models go on talking after a call; in the protocol, text and calls are one message, and nothing
    may part it from the results.
    """
    results = Counter(block.id for block in blocks if isinstance(block, ToolResultBlock))
    ordered: list[Block] = []
    awaited: set[str] = set()
    first_call = 0
    for block in blocks:
        match block:
            case ToolCallBlock():
                first_call = first_call if awaited else len(ordered)
                if results[block.id] > 0:
                    awaited.add(block.id)
                ordered.append(block)
            case ToolResultBlock():
                results[block.id] -= 1
                awaited.discard(block.id)
                ordered.append(block)
            case _ if awaited:
                ordered.insert(first_call, block)
                first_call += 1
            case _:
                ordered.append(block)
    return ordered


def _text(block: TextBlock | DataBlock) -> str:
    """Write a block as text: a medium that cannot be shown is at least mentioned."""
    if isinstance(block, TextBlock):
        return block.text
    named = f" named {block.name!r}" if block.name else ""
    return f"[A file of type {block.source.media_type}{named}, which cannot be shown here.]"


def _image(block: DataBlock) -> JsonObject | None:
    source = block.source
    if not source.media_type.startswith("image/"):
        return None
    if isinstance(source, Base64Source):
        url = f"data:{source.media_type};base64,{source.data}"
    elif source.url.startswith(("https://", "http://", "data:image/")):
        url = source.url
    else:
        return None
    return {"type": "image_url", "image_url": {"url": url}}


def _arguments(text: str) -> str:
    """Return the arguments as the model wrote them, or `{}` when they are no JSON object.

    Strict servers refuse a whole conversation for one call that was cut or holds NaN. The text is not
    written anew: that would round integers beyond 2**53.
    """
    return text if _is_object(text) else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        pass
    # Right all the same may be numbers that are too large for orjson.
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and is_clean(json.dumps(value, ensure_ascii=False))


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


# Typed dictionaries: pydantic fills them in 2.4 microseconds a chunk, models take 5.9. What
# providers disagree about is an object, which also lets half characters through to the joiners.
class _FunctionDelta(TypedDict, total=False):
    name: str | None
    arguments: object


class _CallDelta(TypedDict, total=False):
    index: int | None
    id: str | None
    function: _FunctionDelta | None


class _Delta(TypedDict, total=False):
    content: object
    refusal: object
    reasoning_content: object
    reasoning: object
    thinking: object
    reasoning_details: object
    tool_calls: list[_CallDelta] | None
    function_call: _FunctionDelta | None


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

_THOUGHT_FIELDS: dict[str, JsonObject] = {
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


class _Lines:
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
                raise _bad_answer("a line without an end")
        return lines

    def rest(self) -> list[bytes]:
        """Return what has no end: half a line, or the document."""
        held = b"".join(self._held).strip()
        if self._is_document and not held.startswith(b"{"):  # a stream with the wrong label
            return held.split(b"\n")
        return [held]


class _Answer:
    """Turns the chunks of one answer into pieces."""

    def __init__(self, *, secret: str) -> None:
        self.done = False
        self._secret = secret
        self._reason = ""
        self._usage = Usage(input_tokens=0, output_tokens=0)
        self._text = TextJoiner()
        self._thought = TextJoiner()
        self._thought_extra: JsonObject = {}
        self._speaks: Literal["text", "thought", "calls"] = "text"
        self._calls = _Calls()

    @property
    def has_ended(self) -> bool:
        """Whether the provider said that the answer is whole."""
        return self.done or bool(self._reason)

    def read_line(self, line: bytes) -> list[Piece]:
        """Read a line of the stream: data counts, comments and other fields do not.

        Raises:
            ModelError: The line is no chunk, or tells of an error.
        """
        if line.startswith(b"data:"):
            line = line[5:]
        elif not line.startswith(b"{"):  # proxies put bare errors between the events
            return []
        line = line.strip()
        if not line or self.done:
            return []
        if line == b"[DONE]":
            self.done = True
            return []
        return self._read(line)

    def end(self, rest: list[bytes]) -> list[Piece]:
        """Read what stands after the last line's end, and finish.

        Raises:
            ModelError: The answer is not whole, or the provider says that it failed.
        """
        pieces: list[Piece] = []
        try:
            for line in rest:
                pieces += self.read_line(line)
        except ModelError as error:
            # A chunk that was cut is no garbage.
            if error.code != "model_bad_answer":
                raise
        if not self.has_ended:
            raise _cut()
        if self._reason in _FAILURES:
            raise ModelError(
                f"The provider could not finish the answer: {self._reason}.",
                code="model_upstream",
                retryable=True,
            )
        self._end_voice(pieces)
        pieces += self._calls.end()
        reason = _REASONS.get(self._reason, "stop")
        if reason in {"stop", "tool_calls"}:
            # Some say "stop" after calls, and some "tool_calls" after none.
            reason = "tool_calls" if self._calls else "stop"
        return [*pieces, Finished(self._usage, reason)]

    def _read(self, raw: bytes) -> list[Piece]:
        try:
            chunk = _CHUNK.validator.validate_json(raw)
        except ValidationError:
            chunk = _read_leniently(raw)
        if usage := chunk.get("usage"):
            self._usage = _usage(usage)
        if chunk.get("error") or chunk.get("kind") == "error":
            raise _error_in_stream(raw, secret=self._secret)
        pieces: list[Piece] = []
        for choice in chunk.get("choices") or ():
            if choice.get("index"):  # another candidate: one is enough
                continue
            if delta := choice.get("delta") or choice.get("message"):
                self._take(delta, pieces)
            if reason := choice.get("finish_reason"):
                self._reason = reason.lower()
            if usage := choice.get("usage"):  # Moonshot's place for it
                self._usage = _usage(usage)
        return pieces

    def _take(self, delta: _Delta, pieces: list[Piece]) -> None:
        if len(delta) > 1 or "content" not in delta:
            self._think(delta, pieces)
        content = delta.get("content")
        if isinstance(content, str):
            self._say(content, pieces)
        elif content:
            self._take_parts(content, pieces)
        if isinstance(refusal := delta.get("refusal"), str):
            self._say(refusal, pieces)
        calls = delta.get("tool_calls") or ()
        if function := delta.get("function_call"):
            calls = [_CallDelta(index=0, function=function)]
        for call in calls:
            self._switch("calls", pieces)
            if piece := self._calls.add(call):
                pieces.append(piece)

    def _think(self, delta: _Delta, pieces: list[Piece]) -> None:
        """Take the first field that holds a thought; some providers send it under two names."""
        for name in ("reasoning_content", "reasoning", "thinking"):
            thought = delta.get(name)
            if thought and isinstance(thought, str):
                self._thought_extra = _THOUGHT_FIELDS.get(name, {})
                self._add_thought(thought, pieces)
                return
        for part in _list(delta.get("reasoning_details")):
            thought = _object(part).get("text")
            if isinstance(thought, str):
                self._thought_extra = {}
                self._add_thought(thought, pieces)

    def _take_parts(self, content: object, pieces: list[Piece]) -> None:
        """Take content that is a list, as Mistral's reasoning models send it."""
        for each in _list(content):
            part = _object(each)
            if isinstance(text := part.get("text"), str):
                self._say(text, pieces)
            for thought in _list(part.get("thinking")):
                if isinstance(text := _object(thought).get("text"), str):
                    self._thought_extra = {}
                    self._add_thought(text, pieces)

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        self._switch("text", pieces)
        if text := self._text.add(text):
            pieces.append(TextPiece(text))

    def _add_thought(self, thought: str, pieces: list[Piece]) -> None:
        self._switch("thought", pieces)
        if thought := self._thought.add(thought):
            pieces.append(ThinkingPiece(thought, self._thought_extra))

    def _switch(self, to: Literal["text", "thought", "calls"], pieces: list[Piece]) -> None:
        if to != self._speaks:
            self._end_voice(pieces)
            self._speaks = to

    def _end_voice(self, pieces: list[Piece]) -> None:
        if text := self._text.end():
            pieces.append(TextPiece(text))
        if thought := self._thought.end():
            pieces.append(ThinkingPiece(thought, self._thought_extra))


def _read_leniently(raw: bytes) -> _Chunk:
    """Read a chunk with half characters or broken UTF-8 in it, which the fast way refuses."""
    try:
        return _CHUNK.validate_python(json.loads(raw.decode("utf-8", "replace")))
    except (ValueError, RecursionError) as error:
        raise _bad_answer("a line that is no chunk of an answer") from error


@dataclass
class _Call:
    index: int
    id: str
    name: str = ""
    is_told: bool = False
    size: int = 0
    written: list[str] = field(default_factory=list[str])
    joiner: TextJoiner = field(default_factory=TextJoiner)

    def write(self, arguments: str) -> str:
        """Add to the arguments, and return what of it is whole characters."""
        if arguments := self.joiner.add(arguments):
            self.written.append(arguments)
            self.size += len(arguments)
        return arguments

    def is_whole(self) -> bool:
        """Whether the arguments are complete; long ones are taken not to be, to spare the time."""
        if self.size > MAX_CHECKED_CHARS or not self.written:
            return False
        if not self.written[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(orjson.loads("".join(self.written)), dict)
        except ValueError:
            return False


class _Calls:
    """Tells apart the calls of one answer, of which providers have many ways to send pieces."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: _CallDelta) -> ToolCallPiece | None:
        """Take a piece of a call; a call is told of once its name is known."""
        function = delta.get("function") or _FunctionDelta()
        call_id, name = clean_text(delta.get("id") or ""), clean_text(function.get("name") or "")
        arguments = _as_text(function.get("arguments"))
        index = delta.get("index")
        call = self._continued(index, call_id, name, arguments)
        if call is None:
            call = _Call(len(self._calls), call_id)
            self._calls.append(call)
        if index is not None:
            self._at[index] = call
        arguments = call.write(arguments)
        if call.is_told:
            return ToolCallPiece(call.index, arguments=arguments) if arguments else None
        call.id, call.name = call.id or call_id, call.name or name
        return self._tell(call) if call.name else None

    def end(self) -> list[ToolCallPiece]:
        """Return what still waits: half characters, and calls that never got a name."""
        pieces: list[ToolCallPiece] = []
        for call in self._calls:
            if left := call.joiner.end():
                call.written.append(left)
            if not call.is_told:
                pieces.append(self._tell(call))
            elif left:
                pieces.append(ToolCallPiece(call.index, arguments=left))
        return pieces

    @staticmethod
    def _tell(call: _Call) -> ToolCallPiece:
        call.is_told = True
        return ToolCallPiece(call.index, call.id, call.name, "".join(call.written))

    def _continued(
        self, index: int | None, call_id: str, name: str, arguments: str
    ) -> _Call | None:
        """Find the call that a piece continues; `None` when it begins one.

        Seen: no index; every call at index 0; the id or the name again in every piece; a fresh id in
        every piece (old vLLM); the same id for two calls at two indexes; no ids at all.
        """
        last = self._calls[-1] if self._calls else None
        if index is None:
            same = (call for call in self._calls if call.id == call_id)
            call = next(same, last) if call_id else last
        else:
            call = self._at.get(index, None if call_id or name else last)
        if call is None or (call_id and call_id == call.id):
            return call
        if call_id and (call.id or (name and call.name)):
            begins = bool(name) or call.is_whole()
        else:
            begins = bool(name and call.name) and (
                name != call.name or (bool(arguments.strip()) and call.is_whole())
            )
        return None if begins else call


def _as_text(written: object) -> str:
    """Return arguments as text: some servers send the object itself."""
    if isinstance(written, str):
        return written
    return "" if written is None else json.dumps(storable(written), ensure_ascii=False)


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _usage(value: object) -> Usage:
    counts = _object(value)
    details = _object(counts.get("prompt_tokens_details"))
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


@dataclass(frozen=True)
class _Complaint:
    """What a provider says is wrong.

    Attributes:
        message: In its words.
        code: Its code and its type, in small letters.
        status: The HTTP status, where the complaint itself holds one.
    """

    message: str = ""
    code: str = ""
    status: int | None = None


_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|context_window_exceeded"
    r"|maximum (context|model|prompt|input) length"  # OpenAI, vLLM, Mistral, OpenRouter, xAI
    r"|exceeds? the (available|model'?s?) (maximum )?context"  # llama.cpp, SGLang
    r"|context (size|length|window|limit)\W+(has been |was |is |be |of [^.]* )?"
    r"(exceed|overflow|too (small|long))"
    r"|(exceed\w*|longer than|larger than|more than|beyond) [^.]{0,40}context"
    r"|(prompt|input|request) (is )?too (long|large) (for|:)|prompt (is )?too long"
    r"|input token count [^.]*exceeds"  # Gemini
    r"|exceeded model token limit"  # Moonshot
    r"|range of input length"  # DashScope
    r"|reduce the length of the (messages|prompt|input)"  # OpenAI, Groq
    r"|tokens` \+ `max_new_tokens|must have less than \d+ tokens",  # TGI
    re.IGNORECASE,
)

_STATUS_OF_WORDS = (
    ("context_length", 400),
    ("exceed_context_size", 400),
    ("rate_limit", 429),
    ("quota", 429),
    ("api_key", 401),
    ("authentication", 401),
    ("permission", 403),
    ("invalid_request", 400),
    ("badrequest", 400),
    ("bad_request", 400),
)
"""Which status an error within a stream would have had, by its code; 500 when it says nothing."""

_KINDS: dict[int, tuple[ErrorType, str]] = {
    401: ("authentication", "model_authentication"),
    # An account without money is like one without rights: another provider can help.
    402: ("permission", "model_permission"),
    403: ("permission", "model_permission"),
    408: ("connection", "model_timeout"),
    429: ("rate_limit", "model_rate_limited"),
}
_NOT_OVERFLOW = frozenset({401, 402, 403, 429})
_TRY_AGAIN = frozenset({408, 409, 429})


def _model_error(
    status: int,
    complaint: _Complaint,
    *,
    secret: str,
    retry_after_seconds: float | None = None,
) -> ModelError:
    said = f"{complaint.code} {complaint.message}"
    is_server_side = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if status not in _NOT_OVERFLOW and _OVERFLOW.search(said):
        kind: tuple[ErrorType, str] = ("invalid_request", "model_context_overflow")
        retryable = False
    else:
        default: tuple[ErrorType, str] = (
            ("upstream", "model_upstream")
            if is_server_side
            else ("invalid_request", "model_invalid_request")
        )
        kind = _KINDS.get(status, default)
        # Money does not come back within seconds.
        retryable = (status in _TRY_AGAIN or is_server_side) and "insufficient_quota" not in said
    return ModelError(
        _shown(complaint.message, secret=secret) or _status_message(status),
        type=kind[0],
        code=kind[1],
        retryable=retryable,
        retry_after_seconds=retry_after_seconds,
    )


def _shown(message: str, *, secret: str) -> str:
    """Make a provider's message fit to be shown: one line of at most 500 characters, no key.

    The key goes first, so that cutting cannot leave a part of it.
    """
    message = " ".join(clean_text(message).split())
    if secret:
        message = message.replace(secret, "***")
    return message[:MAX_ERROR_CHARS]


def _status_message(status: int) -> str:
    try:
        phrase = f" ({HTTPStatus(status).phrase})"
    except ValueError:
        phrase = ""
    return f"The model's provider answered with status {status}{phrase}."


def _parsed(body: bytes) -> object:
    """Read an error's body: JSON where it is, else its text, but no web page."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.startswith("<") else text


def _complaint(value: object, *, depth: int = 0) -> _Complaint:
    """Find the message in an error document, of which there are many shapes."""
    if depth > 4:  # noqa: PLR2004 - deeper than any of them
        return _Complaint()
    if isinstance(value, str):
        return _Complaint(value)
    for each in _list(value):
        if (found := _complaint(each, depth=depth + 1)).message:
            return found
    document = _object(value)
    nested = next(filter(None, map(document.get, ("error", "errors", "detail"))), None)
    inner = _complaint(nested, depth=depth + 1) if nested else _Complaint()
    own = next(filter(None, map(document.get, ("message", "msg", "error_msg"))), "")
    message = own if isinstance(own, str) and not isinstance(nested, dict) else ""
    message = message or inner.message or (own if isinstance(own, str) else "")
    raw = _object(document.get("metadata")).get("raw")  # OpenRouter: what its provider said
    if isinstance(raw, str) and raw:
        message = f"{message}: {raw}"
    codes = [str(document[key]).lower() for key in ("code", "type") if document.get(key)]
    status = next((int(each) for each in codes if re.fullmatch("[45]\\d\\d", each)), None)
    return _Complaint(message, " ".join([*codes, inner.code]), inner.status or status)


def _error_in_stream(raw: bytes, *, secret: str) -> ModelError:
    complaint = _complaint(_parsed(raw))
    status = complaint.status or next(
        (status for word, status in _STATUS_OF_WORDS if word in complaint.code),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    if not complaint.message:
        complaint = _Complaint(
            "The provider reported an error within the answer.", complaint.code, status
        )
    return _model_error(status, complaint, secret=secret)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Read how long the provider asks to wait, in seconds; a date counts from the response's own."""
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after", "")
    if (seconds := _number(asked)) is not None:
        return seconds
    until = _date(asked)
    if until is None:
        return None
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text) else None


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_timeout(error: _TransportError) -> bool:
    # httpx-aiohttp calls every connection that broke a ConnectTimeout.
    timeouts = (httpx.TimeoutException, TimeoutError)
    return isinstance(error, timeouts) and not isinstance(error, httpx.ConnectTimeout)


def _unreachable(error: _TransportError) -> ModelError:
    """Tell why there was no answer; without the error's text, which names internal hosts."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return ModelError(
            "The model's address is not one that can be asked.",
            type="setup",
            code="model_invalid_request",
        )
    if _is_timeout(error):
        return _timeout()
    return ModelError(
        "The model's provider cannot be reached.",
        type="connection",
        code="model_connection",
        retryable=True,
    )


def _broken_off(error: _TransportError) -> ModelError:
    return _timeout() if _is_timeout(error) else _cut()


def _timeout() -> ModelError:
    return ModelError(
        "The model's provider did not answer in time.",
        type="connection",
        code="model_timeout",
        retryable=True,
    )


def _cut() -> ModelError:
    return ModelError(
        "The model's answer broke off.", type="upstream", code="model_stream_cut", retryable=True
    )


def _bad_answer(what: str) -> ModelError:
    return ModelError(
        f"The model's provider sent {what}.",
        type="upstream",
        code="model_bad_answer",
        retryable=True,
    )
