"""What every model behind the port promises, asked of each."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager

import aiohttp
import pytest

from app.adapters.models.fallback import FallbackModel
from app.adapters.models.openai import OpenAIModel
from app.adapters.models.retrying import RetryingModel
from app.adapters.models.scripted import ScriptedModel
from app.core.messages import UserMsg
from app.core.specs import ModelSpec
from app.ports.models import (
    ChatModel,
    Finished,
    Piece,
    Prompt,
    TextPiece,
    ToolCallPiece,
    ToolSchema,
)
from tests.support.model_server import model_server
from tests.support.models import WrittenModel, say

TOOL = ToolSchema("TaskList", "List the tasks.", {"type": "object", "properties": {}})
TEXT = [
    {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in "abc"
]
END = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"_done": True}]


@asynccontextmanager
async def scripted() -> AsyncGenerator[ChatModel, None]:
    yield ScriptedModel()


@asynccontextmanager
async def retrying() -> AsyncGenerator[ChatModel, None]:
    yield RetryingModel(
        WrittenModel([say("a", "b")]), retries=1, random=lambda: 0.5, sleep=asyncio.sleep
    )


@asynccontextmanager
async def fallback() -> AsyncGenerator[ChatModel, None]:
    yield FallbackModel(WrittenModel([say("a", "b")]), WrittenModel([say("c")]))


@asynccontextmanager
async def openai() -> AsyncGenerator[ChatModel, None]:
    async with model_server([*TEXT, *END]) as server, aiohttp.ClientSession() as client:
        spec = ModelSpec(provider="openai", name="test")
        yield OpenAIModel(spec, client=client, base_url=server.base_url, api_key=None)


MODELS: dict[str, Callable] = {
    "scripted": scripted,
    "retrying": retrying,
    "fallback": fallback,
    "openai": openai,
}


@pytest.fixture(params=MODELS)
async def model(request: pytest.FixtureRequest) -> AsyncGenerator[ChatModel, None]:
    async with MODELS[request.param]() as made:
        yield made


def prompt(**more: object) -> Prompt:
    return Prompt(system="SYS", context=[UserMsg("user", "plan a trip")], tools=[TOOL], **more)


async def answer(model: ChatModel, asked: Prompt) -> list[Piece]:
    return [piece async for piece in model.stream(asked)]


async def test_a_model_has_a_name_and_a_window(model: ChatModel) -> None:
    assert model.name
    assert model.context_size > 0


async def test_an_answer_ends_with_finished_and_has_it_once(model: ChatModel) -> None:
    pieces = await answer(model, prompt())

    assert isinstance(pieces[-1], Finished)
    assert sum(isinstance(piece, Finished) for piece in pieces) == 1


async def test_an_answer_can_be_left_in_its_middle(model: ChatModel) -> None:
    async with aclosing(model.stream(prompt())) as pieces:
        first = await anext(pieces)

    assert not isinstance(first, Finished)


async def test_text_comes_in_pieces_that_are_not_empty(model: ChatModel) -> None:
    pieces = await answer(model, prompt(may_call_tools=False))

    assert all(piece.text for piece in pieces if isinstance(piece, TextPiece))
    assert any(isinstance(piece, TextPiece) for piece in pieces)


async def test_no_tool_is_called_when_none_may_be(model: ChatModel) -> None:
    pieces = await answer(model, prompt(may_call_tools=False))

    assert not any(isinstance(piece, ToolCallPiece) for piece in pieces)
