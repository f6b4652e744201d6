"""Asks models that speak OpenAI's chat-completions protocol, as nearly every provider does.

There is no SDK: OpenAI's takes 123 microseconds to parse what is parsed here in 3.
"""

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from urllib.parse import urlsplit

import aiohttp

from app.adapters.models.openai_answer import Answer, Lines
from app.adapters.models.openai_errors import (
    TRANSPORT_ERRORS,
    broken_off,
    refused,
    unfit,
    unreachable,
)
from app.adapters.models.openai_json import encode
from app.adapters.models.openai_transcripts import Transcripts
from app.core.errors import ModelError
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
        self,
        spec: ModelSpec,
        *,
        client: aiohttp.ClientSession,
        base_url: str,
        api_key: str | None,
        proxy: str | None = None,
    ) -> None:
        """Prepare what all requests have in common; nothing is connected.

        Args:
            spec: Which model, and how it is asked.
            client: Carries the requests; its time limits hold.
            base_url: Where the provider is. One that is no address fails when the model is asked.
            api_key: Goes along as a bearer token.
            proxy: The address of an HTTP proxy to ask through.
        """
        self._spec = spec
        self._client = client
        self._url, self._host = _address(base_url)
        self._transcripts = Transcripts(
            shows_images="image" in spec.input_types, thought_field=_thoughts_wanted(self._host)
        )
        # A key pasted with its line break would not fit a header.
        self._api_key = (api_key or "").strip()
        self._proxy = proxy
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            # Compression holds tokens back until a block is full.
            "accept-encoding": "identity",
            "user-agent": "bearings",
        }
        if self._api_key:
            self._headers["authorization"] = f"Bearer {self._api_key}"

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
        response = await self._ask(prompt)
        is_document = "application/json" in response.headers.get("content-type", "")
        answer, lines = Answer(secret=self._api_key), Lines(is_document=is_document)
        try:
            if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                raise await self._refused(response)
            while data := await response.content.readany():
                for piece in answer.read(lines.feed(data)):
                    yield piece
                if answer.done:
                    await _drain(response.content)
                    break
        except TRANSPORT_ERRORS as error:
            if not answer.has_ended:
                raise broken_off(error) from error
        finally:
            # Of a body that was read to its end, the connection is kept all the same.
            response.close()
        for piece in answer.end(lines.rest()):
            yield piece

    async def _ask(self, prompt: Prompt) -> aiohttp.ClientResponse:
        if not self._url or not self._api_key.isascii():
            raise unfit()
        body = self._body(prompt)
        try:
            return await self._client.post(
                self._url,
                data=body,
                headers=self._headers,
                allow_redirects=False,
                proxy=self._proxy,
            )
        except TRANSPORT_ERRORS as error:
            raise unreachable(error) from error
        except ValueError:
            # Without the cause, which quotes the header: the key would reach the log.
            raise unfit() from None

    def _body(self, prompt: Prompt) -> bytes:
        """Write the request; equal prompts give equal bytes, and null in the parameters drops a field.

        The limit goes out as `max_tokens`, which every server knows: some ignore the newer
        `max_completion_tokens` in silence. OpenAI's own reasoning models take only the newer one.
        """
        spec = self._spec
        fields: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
        if prompt.tools:
            fields["tools"] = [_tool(tool) for tool in prompt.tools]
        if spec.max_output_tokens is not None and not (
            spec.parameters.keys() & {"max_tokens", "max_completion_tokens"}
        ):
            newer = any(_is_at(self._host, each) for each in _NEW_LIMIT_HOSTS)
            fields["max_completion_tokens" if newer else "max_tokens"] = spec.max_output_tokens
        fields |= {
            key: spec.parameters[key] for key in sorted(spec.parameters.keys() - _OWN_FIELDS)
        }
        if not prompt.tools:
            fields.pop("tool_choice", None)
        elif not prompt.may_call_tools:
            # The tools still go along: they are the head of what the provider has cached.
            fields["tool_choice"] = "none"
        fields = {key: value for key, value in fields.items() if value is not None}
        # The conversation is written already, most of it long ago.
        return b'{"model":%b,"messages":%b,%b' % (
            encode(spec.name),
            self._transcripts.write(prompt),
            encode(fields)[1:],
        )

    async def _refused(self, response: aiohttp.ClientResponse) -> ModelError:
        try:
            async with asyncio.timeout(ERROR_BODY_SECONDS):
                body = await _read(response.content, limit=MAX_ERROR_BODY_BYTES)
        except TRANSPORT_ERRORS:
            body = b""
        return refused(response.status, response.headers, body, secret=self._api_key)


def _address(base_url: str) -> tuple[str, str]:
    """Return where completions are asked for, a query kept, and the host; nothing of no address."""
    try:
        base = urlsplit(base_url)
        host = base.hostname or ""
        _ = base.port  # raises when it is no number
    except ValueError:
        return "", ""
    return base._replace(path=base.path.rstrip("/") + "/chat/completions").geturl(), host


async def _read(body: aiohttp.StreamReader, *, limit: int) -> bytes:
    """Read a body, of an endless one only its first `limit` bytes."""
    found = bytearray()
    while len(found) < limit and (data := await body.readany()):
        found += data
    return bytes(found[:limit])


async def _drain(body: aiohttp.StreamReader) -> None:
    """Wait a moment for a body's end, so that its connection can be used again."""
    if body.at_eof():
        return
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await body.readany():
                pass
    except TRANSPORT_ERRORS:
        return


def _is_at(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _thoughts_wanted(host: str) -> str | None:
    return next(
        (wanted for domain, wanted in _THOUGHTS_WANTED.items() if _is_at(host, domain)), None
    )


def _tool(tool: ToolSchema) -> JsonObject:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }
