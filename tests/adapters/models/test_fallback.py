import pytest

from app.adapters.models.fallback import FallbackModel
from app.adapters.models.retrying import RetryingModel
from app.core.errors import ModelError
from app.core.messages import Usage
from app.ports.models import Finished, Piece, Prompt, Restarted, TextPiece
from tests.support.models import WrittenModel

USAGE = Usage(input_tokens=10, output_tokens=5)
DONE = Finished(USAGE)
PROMPT = Prompt(system="", context=[])
DOWN = ModelError("down", retryable=True)


class Named(WrittenModel):
    def __init__(self, name, *turns, context_size=1000):
        super().__init__(turns, context_size=context_size)
        self._name = name

    @property
    def name(self):
        return self._name


async def answer(model) -> list[Piece]:
    return [piece async for piece in model.stream(PROMPT)]


async def test_the_second_is_not_asked_while_the_first_answers():
    second = Named("second")
    model = FallbackModel(Named("first", [TextPiece("hi"), DONE]), second)

    assert await answer(model) == [TextPiece("hi"), DONE]
    assert second.prompts == []


async def test_the_second_answers_and_says_who_it_is():
    model = FallbackModel(Named("first", [DOWN]), Named("second", [TextPiece("hi"), DONE]))

    assert await answer(model) == [TextPiece("hi"), Finished(USAGE, model="second")]


async def test_what_the_first_had_said_is_void():
    model = FallbackModel(
        Named("first", [TextPiece("Hel"), DOWN]), Named("second", [TextPiece("Hello"), DONE])
    )

    assert await answer(model) == [
        TextPiece("Hel"),
        Restarted(),
        TextPiece("Hello"),
        Finished(USAGE, model="second"),
    ]


@pytest.mark.parametrize("code", ["model_invalid_request", "model_context_overflow"])
async def test_a_request_that_is_wrong_is_not_asked_again(code):
    second = Named("second", [DONE])
    model = FallbackModel(
        Named("first", [ModelError("bad", type="invalid_request", code=code)]), second
    )

    with pytest.raises(ModelError) as caught:
        await answer(model)

    assert caught.value.code == code
    assert second.prompts == []


@pytest.mark.parametrize(
    "type_", ["authentication", "permission", "rate_limit", "upstream", "connection", "setup"]
)
async def test_every_other_failure_is_stood_in_for(type_):
    model = FallbackModel(Named("first", [ModelError("no", type=type_)]), Named("second", [DONE]))

    assert await answer(model) == [Finished(USAGE, model="second")]


async def test_a_conflict_passes_and_is_stood_in_for():
    conflict = ModelError("locked", type="invalid_request", retryable=True)
    model = FallbackModel(Named("first", [conflict]), Named("second", [DONE]))

    assert await answer(model) == [Finished(USAGE, model="second")]


async def test_when_both_fail_the_second_says_why():
    last = ModelError("also down")
    model = FallbackModel(Named("first", [DOWN]), Named("second", [last]))

    with pytest.raises(ModelError) as caught:
        await answer(model)

    assert caught.value is last


async def test_a_chain_of_three_names_the_one_that_answered():
    model = FallbackModel(
        Named("first", [DOWN]), FallbackModel(Named("second", [DOWN]), Named("third", [DONE]))
    )

    assert await answer(model) == [Finished(USAGE, model="third")]


async def test_it_has_the_first_name_and_the_smaller_window():
    model = FallbackModel(Named("first", context_size=9), Named("second", context_size=5))

    assert (model.name, model.context_size) == ("first", 5)


async def test_retries_of_the_first_come_before_the_second():
    async def sleep(seconds):
        pass

    first = Named("first", [TextPiece("a"), DOWN], [DOWN])
    model = FallbackModel(
        RetryingModel(first, retries=1, random=lambda: 0, sleep=sleep),
        Named("second", [TextPiece("b"), DONE]),
    )

    assert await answer(model) == [
        TextPiece("a"),
        Restarted(),
        TextPiece("b"),
        Finished(USAGE, model="second"),
    ]
    assert len(first.prompts) == 2
