"""Asks models that speak OpenAI's chat-completions protocol, as nearly every provider does.

There is no SDK: OpenAI's takes 123 microseconds to parse what is parsed here in 3.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

import httpx
import orjson
from pydantic import JsonValue

from app.adapters.models.openai_answer import Answer, Lines
from app.adapters.models.openai_errors import TRANSPORT_ERRORS, broken_off, refused, unreachable
from app.adapters.models.openai_messages import written
from app.core.errors import ModelError
from app.core.sanitise import storable
from app.core.specs import ModelSpec
from app.core.values import JsonObject
from app.ports.models import Piece, Prompt, ToolSchema

MAX_ERROR_BODY_BYTES = 64 * 1024
ERROR_BODY_SECONDS = 10.0
DRAIN_SECONDS = 0.25
"""How long to wait for the end of a body after `[DONE]`; a connection read to its end is used again."""

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
        except TRANSPORT_ERRORS as error:
            raise unreachable(error) from error
        is_document = "application/json" in response.headers.get("content-type", "")
        answer, lines = Answer(secret=self._api_key), Lines(is_document=is_document)
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
        except TRANSPORT_ERRORS as error:
            if not answer.has_ended:
                raise broken_off(error) from error
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
        except TRANSPORT_ERRORS:
            body = b""
        return refused(response.status_code, response.headers, body, secret=self._api_key)


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
    except TRANSPORT_ERRORS:
        return


def _is_at(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _body(prompt: Prompt, spec: ModelSpec, *, host: str) -> JsonObject:
    """Write the request; equal prompts give equal bytes, and null in the parameters drops a field.

    The limit goes out as `max_tokens`, which every server knows: some ignore the newer
    `max_completion_tokens` in silence. OpenAI's own reasoning models take only the newer one.
    """
    messages = written(
        prompt,
        shows_images="image" in spec.input_types,
        thought_field=next(
            (wanted for domain, wanted in _THOUGHTS_WANTED.items() if _is_at(host, domain)), None
        ),
    )
    body: JsonObject = {
        "model": spec.name,
        "messages": cast("JsonValue", messages),
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
