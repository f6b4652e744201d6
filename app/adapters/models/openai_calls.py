"""Tells apart the tool calls of one answer, of which providers have many ways to send pieces."""

import json
from dataclasses import dataclass, field

import orjson
from typing_extensions import TypedDict

from app.core.sanitise import TextJoiner, clean_text, storable
from app.ports.models import ToolCallPiece

MAX_CHECKED_CHARS = 100_000


class FunctionDelta(TypedDict, total=False):
    """A piece of what a call says."""

    name: str | None
    arguments: object


class CallDelta(TypedDict, total=False):
    """A piece of a call, as it comes in a chunk."""

    index: int | None
    id: str | None
    function: FunctionDelta | None


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


class Calls:
    """The calls of one answer so far."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: CallDelta) -> ToolCallPiece | None:
        """Take a piece of a call; a call is told of once its name is known."""
        function = delta.get("function") or FunctionDelta()
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
