"""Writes a prompt's conversation as the protocol's messages."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import orjson
from pydantic import JsonValue

from app.adapters.models.openai_answer import REASONING_FIELD, THOUGHT_FIELDS
from app.core.messages import (
    Base64Source,
    Block,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.core.repair import paired
from app.core.sanitise import is_clean
from app.core.values import JsonObject

NO_OUTPUT = "(no output)"

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass
class Transcript:
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
            for blocks in _rounds(message.content):
                self._round(blocks)
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

    def _round(self, blocks: list[Block]) -> None:
        """Write one round: its hint, what the assistant said and called, and then all results."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[JsonValue] = []
        results: list[JsonObject] = []
        for block in paired(blocks):
            match block:
                case HintBlock():
                    self._hint(block)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                    self._learn_thought_field(block)
                case ToolCallBlock():
                    calls.append(self._call(block))
                case ToolResultBlock():
                    results.append(self._result(block))
                case TextBlock() | DataBlock():
                    texts.append(_text(block))
        text = "\n".join(each for each in texts if each.strip())
        if text or calls:
            message: JsonObject = {"role": "assistant", "content": text or None}
            if calls:
                if self.thought_field:
                    message[self.thought_field] = "\n".join(thoughts)
                message["tool_calls"] = calls
            self.messages.append(message)
        self.messages += results

    def _learn_thought_field(self, block: ThinkingBlock) -> None:
        name = (block.model_extra or {}).get(REASONING_FIELD)
        if self.thought_field != "" and isinstance(name, str) and name in THOUGHT_FIELDS:
            self.thought_field = name

    def _call(self, block: ToolCallBlock) -> JsonObject:
        return {
            "id": block.id,
            "type": "function",
            "function": {
                "name": self._tool_name(block.name),
                "arguments": _arguments(block.input),
            },
        }

    def _result(self, block: ToolResultBlock) -> JsonObject:
        output = [block.output] if isinstance(block.output, str) else map(_text, block.output)
        text = "\n".join(each for each in output if each.strip())
        return {
            "role": "tool",
            "tool_call_id": block.id,
            "content": text or NO_OUTPUT,
            "name": self._tool_name(block.name),
        }

    def _tool_name(self, name: str) -> str:
        """Write a name that a model made up so that providers, which check names, take it back."""
        if name in self.tool_names or _TOOL_NAME.fullmatch(name):
            return name
        return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def _rounds(blocks: list[Block]) -> list[list[Block]]:
    """Part an assistant's message at hints, which others say, and at results.

    A result joins the round of its call, wherever it stands: in the protocol all results of a
    message follow it at once. What the model goes on to say behind a call is of the same round.
    """
    rounds: list[list[Block]] = [[]]
    waiting: dict[str, list[Block]] = {}
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            if block.id in waiting:
                waiting.pop(block.id).append(block)
            continue
        last = rounds[-1][-1] if rounds[-1] else None
        if isinstance(block, HintBlock) or isinstance(last, ToolResultBlock):
            rounds.append([])
        rounds[-1].append(block)
        if isinstance(block, ToolCallBlock):
            waiting[block.id] = rounds[-1]
    return rounds


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
