"""One agent in one process: what the documentation shows, with only the imports changed."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from app.adapters.models.scripted import ScriptedModel
from app.adapters.tools.function import FunctionTool
from app.adapters.tools.tasks import task_tools
from app.core.events import HintBlockEvent
from app.core.messages import UserMsg
from app.core.specs import ContextConfig, InjectionConfig, ReActConfig
from app.core.state import AgentState, load_state
from app.engine.agent import Agent
from tests.support.models import WrittenModel, call, say

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


async def test_an_agent_with_an_injection_config_shows_its_hints() -> None:
    agent = Agent(
        name="Friday",
        system_prompt="You're a helpful assistant named Friday.",
        model=ScriptedModel(),
        injection_config=InjectionConfig(
            timezone="Asia/Shanghai",
            time_interval=1,
            extra_fields={"location": "Hangzhou"},
        ),
        context_config=ContextConfig(context_buffer_ratio=0.1),
        clock=lambda: NOON,
    )
    hints = [
        event.hint
        async for event in agent.reply_stream(UserMsg("user", "hello"))
        if isinstance(event, HintBlockEvent)
    ]

    assert len(hints) == 1
    assert "<current-time>2026-07-01T20:00:00</current-time>" in hints[0]
    assert "<location>Hangzhou</location>" in hints[0]


async def test_a_reply_is_the_agents_message() -> None:
    agent = Agent("Friday", "SYS", WrittenModel([say("Hello!")]))
    message = await agent.reply(UserMsg(name="user", content="Hi"))

    assert (message.name, message.role, message.text) == ("Friday", "assistant", "Hello!")
    assert message.finished_reason == "completed"
    assert message.usage is not None


async def test_what_is_observed_is_known_in_the_next_reply() -> None:
    model = WrittenModel([say("I heard."), say("Yes.")])
    agent = Agent("Friday", "SYS", model)
    await agent.observe(UserMsg("Monday", "The door is open."))
    await agent.reply(UserMsg("user", "And?"))

    assert [message.text for message in model.prompts[0].context][:2] == [
        "The door is open.",
        "And?",
    ]


async def test_a_state_that_was_dumped_goes_on() -> None:
    first = Agent("Friday", "SYS", WrittenModel([say("one")]), clock=lambda: NOON)
    await first.reply(UserMsg("user", "first"))
    kept = first.state.model_dump_json()
    model = WrittenModel([say("two")])
    later = NOON + timedelta(minutes=5)
    second = Agent("Friday", "SYS", model, state=load_state(kept), clock=lambda: later)
    await second.reply(UserMsg("user", "second"))

    assert [message.text for message in model.prompts[0].context] == ["first", "one", "second"]
    assert second.state.session_id == first.state.session_id


async def test_a_function_is_a_tool_and_its_failure_a_result() -> None:
    def divide(a: float, b: float) -> float:
        """Divide two numbers.

        Args:
            a: What is divided.
            b: By what.
        """
        return a / b

    model = WrittenModel(
        [
            call(("c1", "divide", '{"a": 1, "b": 0}'), ("c2", "divide", '{"a": 1, "b": 2}')),
            say("ok"),
        ]
    )
    agent = Agent("Friday", "SYS", model, tools=[FunctionTool(divide)])
    message = await agent.reply(UserMsg("user", "divide"))
    results = {block.id: block for block in message.content if block.type == "tool_result"}

    assert results["c1"].state == "error"
    assert "division by zero" in results["c1"].output
    assert (results["c2"].state, results["c2"].output) == ("success", "0.5")
    assert model.prompts[0].tools[0].parameters["required"] == ["a", "b"]


async def test_tasks_planned_at_once_are_all_there() -> None:
    calls = [
        (f"c{at}", "TaskCreate", json.dumps({"subject": f"s{at}", "description": "d"}))
        for at in range(5)
    ]
    agent = Agent("Friday", "SYS", WrittenModel([call(*calls), say("ok")]), tools=task_tools())
    await agent.reply(UserMsg("user", "plan"))

    assert [task.subject for task in agent.state.tasks_context.tasks] == [
        f"s{at}" for at in range(5)
    ]
    assert [task.id for task in agent.state.tasks_context.tasks] == ["1", "2", "3", "4", "5"]


async def test_a_live_environment_is_read_before_every_step() -> None:
    surroundings: dict[str, str | float | bool] = {"battery": "78%"}

    def drain() -> str:
        """Use the battery."""
        surroundings["battery"] = "12%"
        return "done"

    agent = Agent(
        "Friday",
        "SYS",
        WrittenModel([call(("c1", "drain", "{}")), say("ok")]),
        tools=[FunctionTool(drain)],
        injection_config=InjectionConfig(trigger_fields=["battery"]),
        environment=surroundings,
    )
    hints = [
        event.hint
        async for event in agent.reply_stream(UserMsg("user", "go"))
        if isinstance(event, HintBlockEvent)
    ]

    assert ["78%" in hints[0], "<battery>12%</battery>" in hints[1]] == [True, True]
    assert "current-time" not in hints[1]


async def test_the_deprecated_ratio_of_the_injection_config_warns() -> None:
    with pytest.warns(DeprecationWarning, match="context_buffer_ratio"):
        Agent(
            "Friday",
            "SYS",
            WrittenModel([]),
            injection_config=InjectionConfig(context_buffer_ratio=0.3),
        )


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        Agent("Friday", "SYS", WrittenModel([]), tools=[*task_tools(), *task_tools()])


async def test_one_reply_at_a_time() -> None:
    agent = Agent("Friday", "SYS", WrittenModel([say("one"), say("two")]))
    first = agent.reply_stream(UserMsg("user", "a"))
    await anext(first)
    with pytest.raises(RuntimeError, match="writing a reply"):
        await anext(agent.reply_stream(UserMsg("user", "b")))

    await first.aclose()
    assert (await agent.reply(UserMsg("user", "c"))).finished_reason == "completed"


async def test_rounds_are_limited() -> None:
    turns = [call((f"c{at}", "TaskList", "{}")) for at in range(2)] + [say("enough")]
    agent = Agent(
        "Friday",
        "SYS",
        WrittenModel(turns),
        tools=task_tools(),
        react_config=ReActConfig(max_iters=2),
    )
    message = await agent.reply(UserMsg("user", "go on"))

    assert message.text == "enough"
    assert any(
        "reached the maximum of 2" in str(getattr(block, "hint", "")) for block in message.content
    )


async def test_a_new_agent_has_a_session_of_its_own() -> None:
    one, two = (Agent("Friday", "SYS", WrittenModel([])) for _ in range(2))

    assert one.state.session_id != two.state.session_id
    assert isinstance(one.state, AgentState)
