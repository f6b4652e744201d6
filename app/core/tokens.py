"""Estimates how many tokens a prompt takes, without a tokenizer."""

import json

from app.core.messages import (
    Block,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.core.values import JsonObject

BYTES_PER_TOKEN = 4
TOKENS_PER_MEDIUM = 2000


def count_text(text: str) -> int:
    """Estimate the tokens of a text: its UTF-8 bytes over four, as AgentScope does."""
    return round(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def count_message(message: Msg) -> int:
    """Estimate the tokens of a message's blocks; names and roles are not counted."""
    return sum(_count_block(block) for block in message.content)


def count_tools(schemas: list[JsonObject]) -> int:
    """Estimate the tokens that tool schemas take."""
    return count_text(json.dumps(schemas)) if schemas else 0


def _count_block(block: Block) -> int:
    match block:
        case TextBlock():
            return count_text(block.text)
        case ThinkingBlock():
            return count_text(block.thinking)
        case HintBlock():
            return _count_output(block.hint)
        case ToolCallBlock():
            return count_text(block.input)
        case ToolResultBlock():
            return _count_output(block.output)
        case DataBlock():
            return TOKENS_PER_MEDIUM


def _count_output(output: str | list[TextBlock | DataBlock]) -> int:
    if isinstance(output, str):
        return count_text(output)
    return sum(_count_block(block) for block in output)
