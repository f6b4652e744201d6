"""States that come from elsewhere are mended before a model sees them."""

from app.core.messages import AssistantMsg, Msg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from app.core.repair import LOST_RESULT, paired, repair
from app.core.state import AgentState


def a_call(call_id: str) -> ToolCallBlock:
    return ToolCallBlock(id=call_id, name="Echo", input="{}")


def a_result(call_id: str) -> ToolResultBlock:
    return ToolResultBlock(id=call_id, name="Echo", output="ok", state="success")


def kinds(blocks: list) -> list[str]:
    return [f"{block.type}:{getattr(block, 'id', '')}" for block in blocks]


def test_a_call_without_a_result_gets_one_behind_its_round() -> None:
    mended = paired([a_call("1"), a_call("2"), a_result("2"), TextBlock(text="x")])

    assert kinds(mended) == [
        "tool_call:1",
        "tool_call:2",
        "tool_result:2",
        "tool_result:1",
        "text:",
    ]
    assert mended[3].output == LOST_RESULT


def test_a_result_without_a_call_is_dropped() -> None:
    assert kinds(paired([a_result("1"), TextBlock(text="x")])) == ["text:"]


def test_a_second_result_of_a_call_is_dropped() -> None:
    assert kinds(paired([a_call("1"), a_result("1"), a_result("1")])) == [
        "tool_call:1",
        "tool_result:1",
    ]


def test_a_result_that_comes_late_stays_with_its_call() -> None:
    blocks = [a_call("1"), TextBlock(text="x"), a_result("1")]

    assert paired(blocks) == blocks


def test_rc_039_every_message_is_looked_at_and_not_only_the_last() -> None:
    state = AgentState(
        context=[
            UserMsg("user", "go"),
            AssistantMsg("Friday", [a_call("1")]),
            AssistantMsg("Friday", "sorry, I was interrupted"),
        ]
    )
    repair(state)

    assert kinds(state.context[1].content) == ["tool_call:1", "tool_result:1"]


def test_a_reply_that_is_under_way_is_left_alone() -> None:
    state = AgentState(
        context=[Msg(name="Friday", role="assistant", id="r", content=[a_call("1")])]
    )
    state.reply_id = "r"
    repair(state)

    assert kinds(state.context[0].content) == ["tool_call:1"]


def test_repairing_twice_changes_nothing_more() -> None:
    once = paired([a_result("0"), a_call("1"), a_call("2"), a_result("2")])

    assert paired(once) == once
