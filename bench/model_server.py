"""A chat-completions server that costs next to nothing, so that what is measured is not the model.

What it answers is in the model's name, as parts with commas between them:

    text-N       N chunks of text
    size-B       B bytes of text in each chunk (6)
    tools-RxK    first R rounds of K tool calls each, then the text
"""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import uvloop

WORDS = ("north ", "by east ", "and half a ", "point, ", "steady ", "as she goes, ", "six knots ")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSAL = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
MODEL = re.compile(rb'"model"\s*:\s*"([^"]*)"')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
AT_ONCE = 64
"""Chunks written before other connections have their turn."""


def framed(payload: Any) -> bytes:
    """Return one event as one chunk of a chunked body."""
    data = b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def piece(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return framed({**head, "choices": [choice]})


def ending(finish: str, tokens: int) -> list[bytes]:
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": tokens + 8}
    return [
        piece({}, finish),
        framed({"choices": [], "usage": usage}),
        b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    ]


@dataclass(frozen=True)
class Script:
    """What a model's name asks for."""

    texts: int = 1
    size: int = 6
    rounds: int = 0
    calls: int = 1

    @classmethod
    @cache
    def read(cls, name: str) -> "Script":
        found = dict(re.findall(r"(text|size|tools)-(\d+(?:x\d+)?)", name))
        rounds, _, calls = found.get("tools", "0").partition("x")
        return cls(
            texts=int(found.get("text", 1)),
            size=int(found.get("size", 6)),
            rounds=int(rounds),
            calls=int(calls or 1),
        )


@cache
def text_answer(script: Script) -> list[bytes]:
    words = [(word * (script.size // len(word) + 1))[: script.size] for word in WORDS]
    pieces = [piece({"content": word}) for word in words]
    first = piece({"role": "assistant", "content": ""})
    told = [pieces[at % len(pieces)] for at in range(script.texts)]
    return [first, *told, *ending("stop", script.texts)]


def smallest(schema: dict[str, Any]) -> Any:
    """Return a value that a simple JSON schema allows."""
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: smallest(properties[name]) for name in schema.get("required", ())}
    by_kind: dict[Any, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": []}
    return schema["enum"][0] if "enum" in schema else by_kind.get(kind, "x")


def tool_answer(script: Script, request: dict[str, Any], done: int) -> list[bytes]:
    tool = request["tools"][0]["function"]
    arguments = json.dumps(smallest(tool["parameters"]))
    calls = [
        {
            "index": at,
            "id": f"call_{len(request['messages'])}_{done}_{at}",
            "type": "function",
            "function": {"name": tool["name"], "arguments": arguments},
        }
        for at in range(script.calls)
    ]
    return [*[piece({"tool_calls": [call]}) for call in calls], *ending("tool_calls", 8)]


def answer(body: bytes) -> list[bytes]:
    """Return the frames of an answer; a long conversation is read only when the script needs it."""
    named = MODEL.search(body)
    script = Script.read(named[1].decode() if named else "")
    if script.rounds:
        request = json.loads(body)
        done = 0
        for message in reversed(request["messages"]):
            # A runtime hint comes as a user's message too; only the bench's own words begin a reply.
            if message["role"] == "user" and "system-reminder" not in str(message["content"]):
                break
            done += bool(message.get("tool_calls"))
        if done < script.rounds:
            return tool_answer(script, request, done)
    return text_answer(script)


class Connection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = LENGTH.search(head)
        if length is None or not head.startswith(b"POST"):
            self._received.clear()
            self._transport.write(REFUSAL)
            return
        whole = end + 4 + int(length[1])
        if len(self._received) < whole:
            return
        frames = answer(bytes(self._received[end + 4 : whole]))
        del self._received[:whole]
        if len(frames) <= AT_ONCE:
            # A write a chunk, as models do.
            self._transport.write(HEAD + frames[0])
            for frame in frames[1:]:
                self._transport.write(frame)
        else:
            self._task = asyncio.get_running_loop().create_task(self._write(frames))

    async def _write(self, frames: list[bytes]) -> None:
        self._transport.write(HEAD)
        for at, frame in enumerate(frames):
            self._transport.write(frame)
            if at % AT_ONCE == 0:
                await asyncio.sleep(0)
                await self._writable.wait()
        self._task = None


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
