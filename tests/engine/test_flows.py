"""Whole replies, held against AgentScope's recordings of the same name."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.core.errors import ModelError
from app.core.events import Event, HintBlockEvent, ReplyEndEvent, ToolResultTextDeltaEvent
from app.core.messages import Msg, ToolCallBlock, ToolResultBlock, UserMsg
from app.core.specs import InjectionConfig, ReActConfig
from app.core.state import AgentState
from app.engine.agent import Agent
from tests.support.models import WrittenModel, call, say, think
from tests.support.tools import After, Fail, Hang, Stream, WrittenTool

RECORDED = {
    case["id"]: case
    for case in json.loads(
        (Path(__file__).parents[1] / "vectors" / "flow_vectors.json").read_text(encoding="utf-8")
    )
}
QUIET = InjectionConfig(inject_runtime_state=False)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def recorded(name: str) -> list[str]:
    return RECORDED[name]["steps"][0]["event_types"]


def agent(turns: list[list[object]], *tools: WrittenTool, **more: object) -> Agent:
    more.setdefault("injection_config", QUIET)
    return Agent("Friday", "SYS", WrittenModel(turns), tools=tools, clock=lambda: NOON, **more)


async def collect(friday: Agent, said: Msg | None = None) -> list[Event]:
    said = said or UserMsg("user", "hi")
    return [event async for event in friday.reply_stream(said)]


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


X1 = '{"x": "1"}'
ONE_ROUND: dict[str, tuple[list[list[object]], list[WrittenTool]]] = {
    "text-only-nonstream": ([say("hello")], []),
    "text-stream-with-thinking": ([think("a", "b") + say("he", "llo")], []),
    "thinking-only-continues": ([think("a") + say(), say("ok")], []),
    "empty-response-content": ([say()], []),
    "single-tool-call": ([call(("c1", "Echo", X1)), say("done")], [WrittenTool("Echo")]),
    "parallel-concurrent-tool-calls": (
        [call(("c1", "Echo2", X1), ("c2", "Echo", X1)), say("done")],
        [After("Echo2"), WrittenTool("Echo")],
    ),
    "parallel-sequential-tool-calls": (
        [call(("c1", "Seq", X1), ("c2", "Seq", X1)), say("done")],
        [WrittenTool("Seq", concurrent=False)],
    ),
    "streaming-tool": ([call(("c1", "Stream", X1)), say("done")], [Stream("Stream")]),
    "failing-tool": ([call(("c1", "Fail", X1)), say("done")], [Fail("Fail")]),
    "unknown-tool": ([call(("c1", "Nope", X1)), say("done")], []),
    "invalid-args-schema": (
        [call(("c1", "Echo", '{"x": {"y": 1}}')), say("done")],
        [WrittenTool("Echo")],
    ),
    "unparseable-args": ([call(("c1", "Echo", "not json")), say("done")], [WrittenTool("Echo")]),
    "json-array-args": ([call(("c1", "Echo", "[1,2]")), say("done")], [WrittenTool("Echo")]),
    "truncated-args-repaired": (
        [call(("c1", "Echo", '{"x": "ab')), say("done")],
        [WrittenTool("Echo")],
    ),
}


@pytest.mark.parametrize("name", ONE_ROUND)
async def test_a_reply_tells_the_recorded_events_in_the_recorded_order(name: str) -> None:
    turns, tools = ONE_ROUND[name]
    events = await collect(agent(turns, *tools))

    assert types(events) == recorded(name)


@pytest.mark.parametrize("name", ONE_ROUND)
async def test_a_reply_counts_its_rounds_as_recorded(name: str) -> None:
    turns, tools = ONE_ROUND[name]
    friday = agent(turns, *tools)
    await collect(friday)

    assert friday.state.cur_iter == RECORDED[name]["steps"][0]["cur_iter_after"]


async def test_empty_args() -> None:
    """A call without arguments sends no empty delta: there is nothing to tell (decision 0008)."""
    tool = WrittenTool("Echo")
    events = await collect(agent([call(("c1", "Echo", "")), say("done")], tool))

    assert types(events) == [t for t in recorded("empty-args") if t != "TOOL_CALL_DELTA"]
    assert tool.calls[0].arguments == {}


async def test_truncated_args_are_refused_and_not_guessed() -> None:
    """AgentScope closes the text and runs it; half a command is another command (decision 0008)."""
    tool = WrittenTool("Echo")
    friday = agent([call(("c1", "Echo", '{"x": "ab')), say("done")], tool)
    await collect(friday)

    assert tool.calls == []
    assert [
        b.state for b in friday.state.context[-1].content if isinstance(b, ToolResultBlock)
    ] == ["error"]


async def test_repeated_failures_inject() -> None:
    turns = [call((f"c{i}", "Fail", X1)) for i in range(4)] + [say("stop")]
    events = await collect(agent(turns, Fail("Fail"), injection_config=InjectionConfig()))

    assert types(events) == recorded("repeated-failures-inject")


async def test_max_iters_model_still_calls_tools() -> None:
    """The notice is an event too, and the deprecated EXCEED_MAX_ITERS is gone (decision 0008)."""
    turns = [call(("c1", "Echo", X1)), call(("c2", "Echo", X1))]
    friday = agent(turns, WrittenTool("Echo"), react_config=ReActConfig(max_iters=1))
    events = await collect(friday)

    wanted = [t for t in recorded("max-iters-model-still-calls-tools") if t != "EXCEED_MAX_ITERS"]
    last_call = len(wanted) - 1 - wanted[::-1].index("MODEL_CALL_START")
    wanted.insert(last_call, "HINT_BLOCK")
    assert types(events) == wanted
    assert events[-1].finished_reason == "exceed_max_iters"


async def test_model_error() -> None:
    """The reply ends with an error event, its model call closed (decision 0008)."""
    failing = ModelError("bad key", type="authentication", code="model_authentication")
    events = await collect(agent([[failing]]))

    assert types(events) == [*recorded("model-error"), "MODEL_CALL_END", "REPLY_END"]
    assert events[-1].error.code == "model_authentication"


async def test_model_error_after_tool_round() -> None:
    turns = [call(("c1", "Echo", X1)), [ModelError("bad key")]]
    events = await collect(agent(turns, WrittenTool("Echo")))

    wanted = recorded("model-error-after-tool-round")
    assert types(events) == [*wanted, "MODEL_CALL_END", "REPLY_END"]


async def test_fallback_not_used_for_mid_stream_error() -> None:
    """What was said stays, closed, and the reply ends with an error (decision 0008)."""
    broken = [*say("par")[:1], ModelError("net")]
    friday = agent([broken])
    events = await collect(friday)

    wanted = recorded("fallback-not-used-for-mid-stream-error")
    assert types(events) == [*wanted, "TEXT_BLOCK_END", "MODEL_CALL_END", "REPLY_END"]
    assert friday.state.context[-1].text == "par"


async def _cancelled_when(friday: Agent, begun: asyncio.Event) -> list[Event]:
    events: list[Event] = []

    async def read() -> None:
        async for event in friday.reply_stream(UserMsg("user", "hi")):
            events.append(event)

    reading = asyncio.create_task(read())
    await begun.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    reading.cancel()
    await reading
    return events


async def test_cancel_during_tool() -> None:
    slow = Hang("Slow")
    turns = [call(("c1", "Slow", X1), ("c2", "Echo", X1))]
    events = await _cancelled_when(agent(turns, slow, WrittenTool("Echo")), slow.begun)

    assert types(events) == recorded("cancel-during-tool")
    assert events[-1].finished_reason == "interrupted"


async def test_cancel_during_tool_raise() -> None:
    """A tool that ignores its cancellation is left behind; the events are the same."""
    slow = Hang("Slow", stubborn=True)
    friday = agent([call(("c1", "Slow", X1))], slow)
    events = await _cancelled_when(friday, slow.begun)
    slow.let_go.set()

    assert types(events) == recorded("cancel-during-tool-raise")
    said = [e.delta for e in events if isinstance(e, ToolResultTextDeltaEvent)]
    assert said == [
        "<system-reminder>The tool call has been interrupted by the user.</system-reminder>"
    ]


async def test_cancel_during_model_stream() -> None:
    model = WrittenModel([[*say("par")[:1], WrittenModel.HANG]])
    friday = Agent("Friday", "SYS", model, injection_config=QUIET)
    events = await _cancelled_when(friday, model.hanging)

    assert types(events) == recorded("cancel-during-model-stream")
    assert friday.state.context[-1].text == "par"
    assert friday.state.context[-1].finished_reason == "interrupted"


async def test_crash_mid_tool_then_new_user_message() -> None:
    """A call without a result gets one before the model is asked again (decision 0008)."""
    dangling = Msg(
        name="Friday",
        role="assistant",
        id="r0",
        content=[ToolCallBlock(id="c1", name="Echo", input=X1, state="allowed")],
        finished_reason="error",
    )
    state = AgentState(session_id="s", context=[UserMsg("user", "go"), dangling])
    model = WrittenModel([say("done")])
    friday = Agent("Friday", "SYS", model, state=state, injection_config=QUIET)
    events = await collect(friday, UserMsg("user", "again"))

    assert types(events) == recorded("crash-mid-tool-then-new-user-message")
    kinds = [block.type for block in model.prompts[0].context[1].content]
    assert kinds == ["tool_call", "tool_result"]


async def test_crash_mid_tool_then_none_input() -> None:
    """The lost call is not run again under another reply: it may have taken effect (decision 0008)."""
    dangling = Msg(
        name="Friday",
        role="assistant",
        id="r0",
        content=[ToolCallBlock(id="c1", name="Echo", input=X1, state="allowed")],
    )
    tool = WrittenTool("Echo")
    state = AgentState(session_id="s", context=[UserMsg("user", "go"), dangling])
    friday = Agent(
        "Friday",
        "SYS",
        WrittenModel([say("done")]),
        tools=[tool],
        state=state,
        injection_config=QUIET,
    )
    events = [event async for event in friday.reply_stream(None)]

    wanted = [t for t in recorded("crash-mid-tool-then-none-input") if not t.startswith("TOOL_")]
    assert types(events) == wanted
    assert tool.calls == []


async def test_timezone_directory_crashes_reply() -> None:
    """Refused when the config is made, long before a reply (decision 0008)."""
    with pytest.raises(ValueError, match="no IANA time zone"):
        InjectionConfig(timezone="America")


async def test_agent_level_retry() -> None:
    """Retries are a wrapper of the model port; what a reply tells is the same."""
    events = await collect(agent([say("ok")]))

    assert types(events) == recorded("agent-level-retry")


async def test_a_hint_is_told_as_an_event_and_stays_in_the_context() -> None:
    friday = agent([say("hello")], injection_config=InjectionConfig(timezone="Asia/Shanghai"))
    events = await collect(friday)

    told = next(event for event in events if isinstance(event, HintBlockEvent))
    assert "<current-time>2026-07-01T20:00:00</current-time>" in told.hint
    assert friday.state.context[-1].content[0].id == told.block_id


async def test_the_reply_ends_with_its_one_terminal_event() -> None:
    friday = agent([say("hello")])
    events = await collect(friday)

    assert [type(event) for event in events].count(ReplyEndEvent) == 1
    assert friday.state.context[-1].finished_reason == "completed"
