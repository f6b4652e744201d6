"""Tools for tests."""

import asyncio
from collections.abc import AsyncGenerator

from app.ports.models import ToolSchema
from app.ports.tools import TextChunk, ToolCall, ToolChunk


class WrittenTool:
    """A tool that answers as its test says."""

    def __init__(self, name: str, *, concurrent: bool = True, idempotent: bool = False) -> None:
        self._schema = ToolSchema(
            name, "", {"type": "object", "properties": {"x": {"type": "string"}}}
        )
        self._concurrent, self._idempotent = concurrent, idempotent
        self.calls: list[ToolCall] = []

    @property
    def schema(self) -> ToolSchema:
        return self._schema

    @property
    def concurrent(self) -> bool:
        return self._concurrent

    @property
    def idempotent(self) -> bool:
        return self._idempotent

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        self.calls.append(call)
        yield TextChunk(f"echo {call.arguments.get('x')}")


class Fail(WrittenTool):
    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        self.calls.append(call)
        raise RuntimeError("boom")
        yield TextChunk("")


class Stream(WrittenTool):
    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        self.calls.append(call)
        yield TextChunk("a")
        yield TextChunk("b")


class Hang(WrittenTool):
    """Never ends; says when it began, and may refuse to be cancelled."""

    def __init__(self, name: str, *, stubborn: bool = False) -> None:
        super().__init__(name)
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self._stubborn = stubborn

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        self.calls.append(call)
        self.begun.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise
        yield TextChunk("too late")


class After(WrittenTool):
    """Ends after another tool's call has begun and a few turns of the loop have passed."""

    async def run(self, call: ToolCall) -> AsyncGenerator[ToolChunk, None]:
        self.calls.append(call)
        for _ in range(20):
            await asyncio.sleep(0)
        yield TextChunk("second")
