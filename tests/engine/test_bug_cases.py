"""What public reports say breaks such systems, played against the engine; each test names its case."""

import asyncio
import json

from app.adapters.tools.function import FunctionTool
from app.core.errors import ModelError
from app.core.messages import ToolResultBlock, UserMsg
from app.core.specs import InjectionConfig
from app.engine.agent import Agent
from app.ports.models import Finished, Restarted, TextPiece, ThinkingPiece, ToolCallPiece
from tests.support.models import USAGE, WrittenModel, call, say
from tests.support.tools import Fail, Hang, WrittenTool

QUIET = InjectionConfig(inject_runtime_state=False)


def agent(turns: list, *tools, **more) -> Agent:
    return Agent("Friday", "SYS", WrittenModel(turns), tools=tools, injection_config=QUIET, **more)


def results(friday: Agent) -> list[ToolResultBlock]:
    return [
        block
        for message in friday.state.context
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


async def test_rc_012_nan_in_arguments_loses_nothing_else() -> None:
    tool = WrittenTool("Echo")
    friday = agent(
        [call(("c1", "Echo", '{"y": NaN}'), ("c2", "Echo", '{"x": "1"}')), say("ok")], tool
    )
    await friday.reply(UserMsg("user", "go"))

    assert {call.id: call.arguments for call in tool.calls} == {"c1": {"y": None}, "c2": {"x": "1"}}


async def test_rc_013_a_number_of_5000_digits_is_a_bad_argument() -> None:
    tool = WrittenTool("Echo")
    friday = agent([call(("c1", "Echo", '{"y": ' + "9" * 5000 + "}")), say("ok")], tool)
    message = await friday.reply(UserMsg("user", "go"))

    assert [result.state for result in results(friday)] == ["error"]
    assert (tool.calls, message.finished_reason) == ([], "completed")


async def test_rc_015_a_number_of_19_digits_stays_exact() -> None:
    seen: list[int] = []

    def take(number: int) -> str:
        """Take a number."""
        seen.append(number)
        return str(number)

    friday = agent(
        [call(("c1", "take", '{"number": 9007199254740993123}')), say("ok")], FunctionTool(take)
    )
    await friday.reply(UserMsg("user", "go"))

    assert seen == [9007199254740993123]
    assert results(friday)[0].output == "9007199254740993123"
    assert "9007199254740993123" in friday.state.context[-1].content[0].input


async def test_rc_020_a_megabyte_of_arguments_in_20000_pieces_is_read_once() -> None:
    piece = "x" * 50
    pieces = [ToolCallPiece(0, id="c1", name="Echo", arguments='{"x": "')]
    pieces += [ToolCallPiece(0, arguments=piece) for _ in range(20_000)]
    pieces += [ToolCallPiece(0, arguments='"}'), Finished(USAGE, "tool_calls")]
    tool = WrittenTool("Echo")
    await agent([pieces, say("ok")], tool).reply(UserMsg("user", "go"))

    assert len(tool.calls[0].arguments["x"]) == 1_000_000


async def test_rc_022_a_call_that_was_cut_by_an_interruption_is_closed() -> None:
    model = WrittenModel(
        [
            [ToolCallPiece(0, id="c1", name="Echo", arguments='{"x": "ha'), WrittenModel.HANG],
            say("ok"),
        ]
    )
    friday = Agent("Friday", "SYS", model, tools=[WrittenTool("Echo")], injection_config=QUIET)
    reading = asyncio.create_task(friday.reply(UserMsg("user", "go")))
    await model.hanging.wait()
    reading.cancel()
    message = await reading
    await friday.reply(UserMsg("user", "again"))

    assert message.finished_reason == "interrupted"
    assert [block.type for block in model.prompts[1].context[1].content] == [
        "tool_call",
        "tool_result",
    ]
    assert results(friday)[0].state == "interrupted"


async def test_rc_026_one_id_twice_in_an_answer_is_two_calls() -> None:
    tool = WrittenTool("Echo")
    friday = agent(
        [call(("c", "Echo", '{"x": "1"}'), ("c", "Echo", '{"x": "2"}')), say("ok")], tool
    )
    await friday.reply(UserMsg("user", "go"))

    assert sorted(call.arguments["x"] for call in tool.calls) == ["1", "2"]
    assert sorted(result.id for result in results(friday)) == ["c", "c-2"]


async def test_rc_027_ids_that_repeat_in_every_turn_are_called_every_turn() -> None:
    tool = WrittenTool("Echo")
    turns = [call(("call_0", "Echo", f'{{"x": "{at}"}}')) for at in range(3)] + [say("ok")]
    friday = agent(turns, tool)
    await friday.reply(UserMsg("user", "go"))

    assert [call.arguments["x"] for call in tool.calls] == ["0", "1", "2"]
    assert len({result.id for result in results(friday)}) == 3


async def test_rc_037_text_and_calls_keep_their_order_and_every_start_has_its_end() -> None:
    pieces = [
        TextPiece("before "),
        ToolCallPiece(0, id="c1", name="Echo", arguments="{}"),
        TextPiece("after"),
        Finished(USAGE, "tool_calls"),
    ]
    friday = agent([pieces, say("ok")], WrittenTool("Echo"))
    events = [event async for event in friday.reply_stream(UserMsg("user", "go"))]
    starts = [event.type for event in events if event.type.endswith("BLOCK_START")]
    ends = [event.type for event in events if event.type.endswith("BLOCK_END")]

    assert [block.type for block in friday.state.context[-1].content] == [
        "text",
        "tool_call",
        "text",
        "tool_result",
        "text",
    ]
    assert len(starts) == len(ends)


async def test_rc_041_042_the_first_tool_that_is_cancelled_has_a_result() -> None:
    slow = Hang("Slow")
    friday = agent([call(("c1", "Slow", "{}"), ("c2", "Slow", "{}")), say("ok")], slow)
    reading = asyncio.create_task(friday.reply(UserMsg("user", "go")))
    await slow.begun.wait()
    reading.cancel()
    await reading

    assert sorted((result.id, result.state) for result in results(friday)) == [
        ("c1", "interrupted"),
        ("c2", "interrupted"),
    ]


async def test_rc_044_a_finished_result_outlives_the_interruption() -> None:
    slow, quick = Hang("Slow"), WrittenTool("Echo")
    friday = agent(
        [call(("c1", "Echo", '{"x": "1"}'), ("c2", "Slow", "{}")), say("ok")], slow, quick
    )
    reading = asyncio.create_task(friday.reply(UserMsg("user", "go")))
    await slow.begun.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    reading.cancel()
    await reading
    await friday.reply(UserMsg("user", "again"))

    assert [(result.id, result.state) for result in results(friday)] == [
        ("c1", "success"),
        ("c2", "interrupted"),
    ]
    assert len(quick.calls) == 1


async def test_rc_045_a_failed_model_call_runs_no_finished_tool_again() -> None:
    tool = WrittenTool("Charge")
    turns = [call(("c1", "Charge", "{}")), [ModelError("gone")], say("ok")]
    friday = agent(turns, tool)
    first = await friday.reply(UserMsg("user", "go"))
    second = await friday.reply(UserMsg("user", "go on"))

    assert (first.finished_reason, second.finished_reason) == ("error", "completed")
    assert len(tool.calls) == 1


async def test_rc_049_an_answer_that_is_begun_anew_is_stored_once() -> None:
    pieces = [
        TextPiece("half"),
        ToolCallPiece(0, id="c1", name="Echo", arguments='{"x": "pri'),
        Restarted(),
        TextPiece("whole"),
        Finished(USAGE),
    ]
    friday = agent([pieces], WrittenTool("Echo"))
    events = [event async for event in friday.reply_stream(UserMsg("user", "go"))]
    withdrawn = next(event for event in events if event.type == "REPLY_RESUMED")

    assert [block.text for block in friday.state.context[-1].content] == ["whole"]
    assert len(withdrawn.discard) == 2


async def test_rc_050_an_answer_without_an_end_is_no_answer() -> None:
    message = await agent([[TextPiece("half")]]).reply(UserMsg("user", "go"))

    assert (message.finished_reason, message.error.code) == ("error", "model_stream_cut")
    assert message.text == "half"


async def test_rc_051_an_answer_cut_by_a_filter_says_so() -> None:
    friday = agent([[TextPiece("I can"), Finished(USAGE, "content_filter")]])
    events = [event async for event in friday.reply_stream(UserMsg("user", "go"))]
    end = next(event for event in events if event.type == "MODEL_CALL_END")

    assert end.metadata == {"stop_reason": "content_filter"}
    assert events[-1].finished_reason == "completed"


async def test_rc_054_a_thought_keeps_what_its_provider_wants_to_see_again() -> None:
    pieces = [ThinkingPiece("hm", {"signature": "abc"}), TextPiece("x"), Finished(USAGE)]
    friday = agent([pieces])
    await friday.reply(UserMsg("user", "go"))
    written = json.loads(friday.state.model_dump_json())["context"][-1]["content"][0]

    assert (written["thinking"], written["signature"]) == ("hm", "abc")


async def test_rc_069_a_result_larger_than_the_limit_is_cut_where_a_character_ends() -> None:
    def shout() -> str:
        """Shout."""
        return "é" * 200_000

    friday = agent([call(("c1", "shout", "{}")), say("ok")], FunctionTool(shout))
    await friday.reply(UserMsg("user", "go"))
    said = results(friday)[0].output

    assert said.startswith("ééé")
    assert "<<<TRUNCATED>>>" in said
    assert len(said) < 50_000


async def test_rc_090_what_one_session_does_stays_out_of_another() -> None:
    tool = Fail("Fail")
    one = Agent("Friday", "SYS", WrittenModel([call(("c", "Fail", "{}")), say("ok")]), tools=[tool])
    two = Agent("Friday", "SYS", WrittenModel([say("ok")]), tools=[tool])
    await one.reply(UserMsg("user", "go"))
    await two.reply(UserMsg("user", "go"))

    assert results(two) == []


async def test_rc_108_nothing_follows_the_end_of_a_failed_reply() -> None:
    events = [
        event async for event in agent([[ModelError("no")]]).reply_stream(UserMsg("user", "go"))
    ]

    assert [event.type for event in events].count("REPLY_END") == 1
    assert events[-1].type == "REPLY_END"


async def test_rc_136_parallel_calls_with_other_arguments_are_no_streak() -> None:
    calls = [(f"c{at}", "Fail", f'{{"x": "{at}"}}') for at in range(3)]
    model = WrittenModel([call(*calls), say("ok")])
    friday = Agent("Friday", "SYS", model, tools=[Fail("Fail")])
    await friday.reply(UserMsg("user", "go"))
    hints = [block for block in friday.state.context[-1].content if block.type == "hint"]

    assert all("tool-error" not in block.hint for block in hints)
