"""A model server that answers by the message's text alone, and asks invariant 6 of every request.

A message says what it wants: `m7 rounds=2 calls=3 chunks=5 pause=20` is two rounds of three tool calls,
and five chunks of text in each round and in the answer, with 20 ms between chunks.
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

WISH = re.compile(
    r"(m\S+) rounds=(\d+) calls=(\d+) chunks=(\d+) pause=(\d+)(?: pad=(\d+))?(?: waits=(\d+))?"
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Wish:
    """What a message asks of the model."""

    name: str
    rounds: int = 0
    calls: int = 1
    chunks: int = 3
    pause_ms: int = 10
    pad: int = 0
    """Characters more in each chunk."""
    waits: int = 0
    """Calls more in each round that wait for a person, or for the client."""

    @property
    def text(self) -> str:
        pad = f" pad={self.pad}" if self.pad else ""
        return (
            f"{self.name} rounds={self.rounds} calls={self.calls} chunks={self.chunks} "
            f"pause={self.pause_ms}{pad}" + (f" waits={self.waits}" if self.waits else "")
        )

    @classmethod
    def read(cls, text: str) -> "Wish | None":
        found = WISH.search(text)
        return (
            None
            if found is None
            else cls(found[1], *(int(each or 0) for each in found.groups()[1:]))
        )

    def words(self, turn: int) -> list[str]:
        """Return the chunks of text that the model says in a round."""
        return [f"{self.name}.{turn}.{at} " + "x" * self.pad for at in range(self.chunks)]

    def answer(self) -> str:
        """Return all that the model says until the reply is complete."""
        return "".join(word for turn in range(self.rounds + 1) for word in self.words(turn))


class Model:
    """Serves chat completions, and keeps what was wrong with requests."""

    def __init__(self) -> None:
        self.base_url = ""
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = re.search(r"\r\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._answer(json.loads(body), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.counts["left"] += 1
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        messages = request["messages"]
        self.counts["requests"] += 1
        self.violations += [f"6: {each}" for each in unpaired(messages)]
        wish, turn = asked(messages)
        writer.write(HEAD)
        for word in wish.words(turn):
            await asyncio.sleep(wish.pause_ms / 1000)
            _write(writer, {"content": word})
            await writer.drain()
        if turn < wish.rounds:
            for call in tool_calls(wish, turn):
                _write(writer, {"tool_calls": [call]})
                await asyncio.sleep(wish.pause_ms / 1000)
        _write(writer, {}, "tool_calls" if turn < wish.rounds else "stop")
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        _frame(writer, json.dumps({"choices": [], "usage": usage}))
        _frame(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def asked(messages: Sequence[dict[str, Any]]) -> tuple[Wish, int]:
    """Return what the newest message asks, and how many rounds of calls were made for it."""
    turn = 0
    for message in reversed(messages):
        if message["role"] == "user" and (wish := Wish.read(_text(message))):
            return wish, turn
        turn += bool(message.get("tool_calls"))
    return Wish("nobody"), 0


def tool_calls(wish: Wish, turn: int) -> list[dict[str, Any]]:
    """Return a round's calls: always the same for the same message and round."""
    chance = random.Random(f"{wish.name}.{turn}")
    calls = []
    for at in range(wish.calls + wish.waits):
        name = chance.choice(["Count", "Count", "TaskCreate", "TaskList"])
        if at >= wish.calls:
            name = chance.choice(["Careful", "Lookup"])
        arguments = {
            "Count": {"seconds": round(chance.uniform(0, 0.1), 3)},
            "Careful": {"seconds": round(chance.uniform(0, 0.1), 3)},
            "Lookup": {"q": wish.name},
            "TaskCreate": {"subject": f"{wish.name}.{turn}.{at}", "description": "d"},
            "TaskList": {},
        }[name]
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append(
            {
                "index": at,
                "id": f"call_{wish.name}_{turn}_{at}",
                "type": "function",
                "function": function,
            }
        )
    return calls


def unpaired(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Say where a conversation breaks the rule: each call has one result, right behind its message."""
    found: list[str] = []
    seen: set[str] = set()
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] == "tool":
            found.append(f"the result of {message.get('tool_call_id')} stands alone")
            continue
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        if not calls:
            continue
        found += [f"two calls are {call}" for call in calls if call in seen]
        seen.update(calls)
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at]["tool_call_id"])
            at += 1
        if Counter(results) != Counter(calls):
            found.append(f"calls {calls} have results {results}")
    return found


@asynccontextmanager
async def model_server() -> AsyncIterator[Model]:
    """Serve on a free port.

    Yields:
        The server.
    """
    model = Model()
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    model.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()
        await model.close()
        await server.wait_closed()


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _write(writer: asyncio.StreamWriter, delta: dict[str, Any], finish: str | None = None) -> None:
    _frame(writer, json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))


def _frame(writer: asyncio.StreamWriter, text: str) -> None:
    if writer.transport.is_closing():
        raise ConnectionResetError
    data = b"data: " + text.encode() + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
