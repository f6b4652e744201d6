import pytest

from app.adapters.models.retrying import RetryingModel
from app.core.errors import ModelError
from app.core.messages import Usage
from app.ports.models import Finished, Piece, Prompt, Restarted, TextPiece, ToolCallPiece
from tests.support.models import WrittenModel

DONE = Finished(Usage(input_tokens=10, output_tokens=5))
PROMPT = Prompt(system="", context=[])


def passing(after: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, retry_after_seconds=after)


class Sleeper:
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def retrying(*turns, retries=2, random=1.0) -> tuple[RetryingModel, WrittenModel, Sleeper]:
    written, sleep = WrittenModel(turns), Sleeper()
    model = RetryingModel(written, retries=retries, random=lambda: random, sleep=sleep)
    return model, written, sleep


async def answer(model) -> list[Piece]:
    return [piece async for piece in model.stream(PROMPT)]


async def test_an_answer_at_once_is_passed_on_and_nothing_slept():
    model, written, sleep = retrying([TextPiece("hi"), DONE])

    assert await answer(model) == [TextPiece("hi"), DONE]
    assert len(written.prompts) == 1
    assert sleep.slept == []


async def test_it_has_the_name_and_the_window_of_the_model_it_holds():
    model, written, _ = retrying([])

    assert (model.name, model.context_size) == (written.name, written.context_size)


async def test_a_passing_failure_before_the_first_piece_leaves_no_trace():
    model, _, sleep = retrying([passing()], [TextPiece("hi"), DONE])

    assert await answer(model) == [TextPiece("hi"), DONE]
    assert sleep.slept == [0.5]


async def test_rc_049_a_failure_in_the_middle_restarts_the_answer():
    cut = [
        TextPiece("Hello wor"),
        ToolCallPiece(0, "a", "write_file", '{"content":"pri'),
        passing(),
    ]
    model, _, _ = retrying(cut, [TextPiece("Hello world"), DONE])

    assert await answer(model) == [*cut[:2], Restarted(), TextPiece("Hello world"), DONE]


async def test_a_restart_waits_for_the_try_that_has_something_to_say():
    model, _, _ = retrying([TextPiece("a"), passing()], [passing()], [TextPiece("b"), DONE])

    assert await answer(model) == [TextPiece("a"), Restarted(), TextPiece("b"), DONE]


async def test_a_restart_of_the_model_within_is_not_said_twice():
    model, _, _ = retrying([TextPiece("a"), passing()], [Restarted(), TextPiece("b"), DONE])

    assert await answer(model) == [TextPiece("a"), Restarted(), TextPiece("b"), DONE]


async def test_it_gives_up_after_its_retries_with_the_last_error():
    last = passing()
    model, written, sleep = retrying([passing()], [passing()], [last])

    with pytest.raises(ModelError) as caught:
        await answer(model)

    assert caught.value is last
    assert len(written.prompts) == 3
    assert sleep.slept == [0.5, 1.0]


async def test_no_retries_means_one_try():
    model, written, _ = retrying([passing()], retries=0)

    with pytest.raises(ModelError):
        await answer(model)

    assert len(written.prompts) == 1


async def test_what_trying_again_cannot_mend_is_raised_at_once():
    model, written, sleep = retrying([ModelError("no", retryable=False)])

    with pytest.raises(ModelError):
        await answer(model)

    assert (len(written.prompts), sleep.slept) == (1, [])


@pytest.mark.parametrize(
    ("random", "slept"),
    [(1.0, [0.5, 1, 2, 4, 8, 16, 30, 30]), (0.5, [0.25, 0.5, 1, 2, 4, 8, 15, 15])],
)
async def test_waits_double_up_to_half_a_minute_with_full_jitter(random, slept):
    turns = [[passing()] for _ in range(8)]
    model, _, sleep = retrying(*turns, [DONE], retries=8, random=random)
    await answer(model)

    assert sleep.slept == slept


@pytest.mark.parametrize(
    ("asked", "slept"), [(0.0, 0.0), (10.0, 10.5), (29.9, 30.0), (3600.0, 30.0)]
)
async def test_the_wait_a_provider_asks_for_is_kept_up_to_half_a_minute(asked, slept):
    model, _, sleep = retrying([passing(after=asked)], [DONE], random=0.5)
    await answer(model)

    assert sleep.slept == [pytest.approx(slept)]


async def test_closing_it_closes_the_model_it_holds():
    closed = []

    class Endless(WrittenModel):
        async def stream(self, prompt):
            try:
                while True:
                    yield TextPiece("x")
            finally:
                closed.append(True)

    model = RetryingModel(Endless([]), retries=1, random=lambda: 0, sleep=Sleeper())
    pieces = model.stream(PROMPT)
    await anext(pieces)
    await pieces.aclose()

    assert closed == [True]
