"""What is remembered of a conversation is what would be written anew."""

import gc
import json

import pytest

from app.adapters.models.openai_transcripts import Transcripts
from app.core.messages import (
    AssistantMsg,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMsg,
)
from app.ports.models import Prompt, ToolSchema

ODD = ToolSchema("odd name", "", {"type": "object"})


def transcripts() -> Transcripts:
    return Transcripts(shows_images=False, thought_field=None)


def anew(prompt: Prompt) -> list:
    return json.loads(transcripts().write(prompt))


def a_round(number: int) -> list:
    thought = ThinkingBlock(thinking=f"t{number}")
    if number == 2:
        thought = thought.model_copy(update={"reasoning_field": "reasoning"})
    return [
        thought,
        ToolCallBlock(id=f"c{number}", name="odd name", input="{}"),
        ToolResultBlock(id=f"c{number}", name="odd name", output="out", state="success"),
        TextBlock(text=f"said {number}"),
    ]


def test_a_conversation_that_grows_is_written_as_if_anew() -> None:
    remembering = transcripts()
    context: list[Msg] = []
    for number in range(5):
        context.append(UserMsg("user", f"q{number}"))
        context.append(AssistantMsg("Friday", []))
        for block in a_round(number):
            context[-1].content.append(block)
            prompt = Prompt("SYS", context, summary="before" if number > 2 else "")

            assert json.loads(remembering.write(prompt)) == anew(prompt)


def test_conversations_with_the_same_beginning_stay_apart() -> None:
    remembering = transcripts()
    first, fork = UserMsg("user", "q"), UserMsg("user", "fork")
    for context in (
        [first, UserMsg("user", "one"), UserMsg("user", "two")],
        [first, fork, UserMsg("user", "three")],
        [first, fork],
        [first],
        [first, UserMsg("user", "four"), UserMsg("user", "five"), UserMsg("user", "six")],
        [fork, first],
        [],
    ):
        prompt = Prompt("SYS", context)

        assert json.loads(remembering.write(prompt)) == anew(prompt)


def test_a_tool_that_is_offered_from_now_on_has_its_name_everywhere() -> None:
    remembering = transcripts()
    context = [AssistantMsg("Friday", a_round(1)), UserMsg("user", "q"), UserMsg("user", "q")]
    without, with_it = Prompt("", context), Prompt("", context, [ODD])

    assert json.loads(remembering.write(without)) == anew(without)
    assert json.loads(remembering.write(with_it)) == anew(with_it)
    assert anew(with_it) != anew(without)


def test_a_conversation_that_is_gone_is_forgotten() -> None:
    remembering = transcripts()
    context = [UserMsg("user", "q"), UserMsg("user", "q"), UserMsg("user", "q")]
    remembering.write(Prompt("SYS", context))

    assert len(remembering._begun) == 1
    context.clear()
    gc.collect()
    assert remembering._begun == {}


def test_a_conversation_that_is_too_long_to_keep_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.adapters.models.openai_transcripts.MOST_KEPT_BYTES", 60)
    remembering = transcripts()
    context: list[Msg] = []
    for number in range(6):
        context.append(UserMsg("user", f"q{number}"))
        prompt = Prompt("SYS", context)

        assert json.loads(remembering.write(prompt)) == anew(prompt)
    assert len(remembering._begun[id(context[0])].written) <= 60
