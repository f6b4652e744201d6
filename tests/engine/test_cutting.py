"""A reply may die after any event: it goes on from its log and ends as it would have."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.apply import fold
from app.core.events import Event, decode
from app.core.messages import ToolResultBlock, UserMsg
from app.core.specs import InjectionConfig
from app.core.state import AgentState
from app.engine.equipment import Meter
from app.engine.reply import resume_reply, write_reply
from app.ports.models import Piece, Prompt
from tests.support.models import call, say, think
from tests.support.recorder import Died, NumberedIds, Recorder, asked, bench
from tests.support.tools import Fail, Stream, WrittenTool


class StepModel:
    """Gives the answer that belongs to a round, however often it is asked."""

    name = "fake-model"
    context_size = 1000

    def __init__(self, turns: Sequence[Sequence[Piece]], events: list[Event]) -> None:
        self._turns, self._events = turns, events

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        asked_before = sum(event.type == "MODEL_CALL_END" for event in self._events)
        for piece in self._turns[min(asked_before, len(self._turns) - 1)]:
            yield piece


def tools(*, idempotent: bool = True) -> list[WrittenTool]:
    return [
        WrittenTool("Echo", idempotent=idempotent),
        Fail("Fail", idempotent=idempotent),
        Stream("Stream", idempotent=idempotent),
        WrittenTool("Seq", concurrent=False, idempotent=idempotent),
    ]


words = st.text(min_size=1, max_size=8)
calls = st.lists(
    st.tuples(
        st.sampled_from(["c1", "c2", ""]),
        st.sampled_from(["Echo", "Fail", "Stream", "Seq"]),
        st.sampled_from(['{"x": "1"}', "", '{"x": 1}', "not json"]),
    ),
    min_size=1,
    max_size=3,
)
rounds = st.one_of(
    calls.map(lambda each: call(*each)),
    st.tuples(st.lists(words, max_size=2), calls).map(
        lambda each: think(*each[0]) + call(*each[1])
    ),
    st.tuples(words, calls).map(lambda each: [*say(each[0])[:1], *call(*each[1])]),
    st.lists(words, min_size=1, max_size=2).map(lambda each: think(*each) + say()),
)
answers = st.lists(words, max_size=3).map(lambda each: say(*each))
scripts = st.tuples(st.lists(rounds, max_size=4), answers).map(lambda each: [*each[0], each[1]])


def plain(state: AgentState) -> object:
    """A state without the ids that chance gives."""
    text = state.model_dump_json()
    names: dict[str, str] = {}
    made = re.compile(r"(?:new_)?(?:blk|call)_\d+")
    return json.loads(made.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), text))


async def whole(script: list[list[Piece]], **more: object) -> Recorder:
    recorder = asked(UserMsg("user", "hi"))
    model = StepModel(script, recorder.events)
    await write_reply(bench(recorder, model, tools(), **more), Meter(), reply_id="rep_1")
    return recorder


async def cut(script: list[list[Piece]], after: int, *, idempotent: bool = True) -> Recorder:
    """Write a reply that dies after so many events, and go on from what was recorded."""
    recorder = asked(UserMsg("user", "hi"))
    recorder.dies_after = after
    model = StepModel(script, recorder.events)
    used = tools(idempotent=idempotent)
    with pytest.raises(Died):
        await write_reply(bench(recorder, model, used), Meter(), reply_id="rep_1")
    recorded = [decode(event.encode()) for event in recorder.events]
    again = Recorder(fold(recorded, AgentState(session_id="ses_1")), recorded)
    model = StepModel(script, again.events)
    ids = NumberedIds("new_")
    if again.standing.ended:
        await write_reply(bench(again, model, used, ids=ids), Meter(), reply_id="rep_1")
    else:
        await resume_reply(bench(again, model, used, ids=ids), Meter(), attempts=1)
    return again


def run(work):
    return asyncio.run(work)


@given(script=scripts)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_state_is_what_the_log_says(script: list[list[Piece]]) -> None:
    recorder = run(whole(script))
    read = [decode(event.encode()) for event in recorder.events]
    folded = fold(read, AgentState(session_id="ses_1"))

    assert folded.state == recorder.standing.state
    assert folded.ended


@given(script=scripts)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_reply_cut_after_every_event_ends_with_the_same_state(script: list[list[Piece]]) -> None:
    end = run(whole(script))
    for after in range(1, len(end.events)):
        resumed = run(cut(script, after))

        assert plain(resumed.standing.state) == plain(end.standing.state), after
        assert resumed.events[-1].type == "REPLY_END"


@given(script=scripts)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_call_that_is_not_idempotent_runs_at_most_once(script: list[list[Piece]]) -> None:
    end = run(whole(script))
    for after in range(1, len(end.events)):
        resumed = run(cut(script, after, idempotent=False))
        message = resumed.standing.state.context[-1]
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        called = [block.id for block in message.content if block.type == "tool_call"]

        assert sorted(block.id for block in results) == sorted(called)
        assert len(set(called)) == len(called)


async def test_a_call_that_was_started_and_lost_says_so() -> None:
    script = [call(("c1", "Echo", '{"x": "1"}')), say("done")]
    end = await whole(script)
    started = 1 + [event.type for event in end.events].index("TOOL_RESULT_START")
    resumed = await cut(script, started, idempotent=False)
    result = next(b for b in resumed.standing.state.context[-1].content if b.type == "tool_result")

    assert result.state == "interrupted"
    assert "may or may not have taken effect" in result.output


async def test_half_a_model_call_is_withdrawn_by_name() -> None:
    script = [say("one", "two"), say("one", "two")]
    end = await whole(script)
    begun = [event.type for event in end.events].index("TEXT_BLOCK_START")
    resumed = await cut(script, begun + 2)
    told = next(event for event in resumed.events if event.type == "REPLY_RESUMED")

    assert told.discard == [end.events[begun].block_id]
    assert resumed.standing.state.context[-1].text == "onetwo"


async def test_four_attempts_without_progress_end_the_reply() -> None:
    recorder = asked(UserMsg("user", "hi"))
    recorder.dies_after = 4
    with pytest.raises(Died):
        await write_reply(
            bench(recorder, StepModel([say("x")], recorder.events), []), Meter(), reply_id="rep_1"
        )
    recorder.dies_after = None
    used = bench(recorder, StepModel([say("x")], recorder.events), [])
    await resume_reply(used, Meter(), attempts=5)

    assert recorder.events[-1].error.code == "crashed_repeatedly"


async def test_a_reply_is_left_behind_a_finished_step_when_the_process_ends() -> None:
    script = [call(("c1", "Echo", '{"x": "1"}')), say("done")]
    recorder = asked(UserMsg("user", "hi"))
    recorder.draining.set()
    used = bench(recorder, StepModel(script, recorder.events), tools())
    await write_reply(used, Meter(), reply_id="rep_1")

    assert not recorder.standing.ended
    recorder.draining.clear()
    await resume_reply(used, Meter(), attempts=1)
    assert plain(recorder.standing.state) == plain((await whole(script)).standing.state)


async def test_an_injection_that_is_not_shown_is_part_of_the_state_all_the_same() -> None:
    recorder = await whole([say("x")], injection=InjectionConfig(emit_hint_event=False))

    assert "HINT_BLOCK" not in [event.type for event in recorder.events]
    assert recorder.standing.state.context[-1].content[0].type == "hint"
    assert fold(recorder.events, AgentState(session_id="ses_1")).state == recorder.standing.state


async def test_the_notice_of_the_last_round_is_given_once_however_often_it_is_taken_up() -> None:
    script = [call(("c1", "Echo", '{"x": "1"}')), say("enough")]
    end = await whole(script, max_iters=1)
    last = len(end.events) - 1 - [e.type for e in reversed(end.events)].index("MODEL_CALL_START")
    recorder = asked(UserMsg("user", "hi"))
    recorder.dies_after = last + 1
    with pytest.raises(Died):
        await write_reply(
            bench(recorder, StepModel(script, recorder.events), tools(), max_iters=1),
            Meter(),
            reply_id="rep_1",
        )
    recorder.dies_after = None
    await resume_reply(
        bench(recorder, StepModel(script, recorder.events), tools(), max_iters=1),
        Meter(),
        attempts=1,
    )
    hints = [b for b in recorder.standing.state.context[-1].content if b.type == "hint"]

    assert sum("maximum of 1" in str(hint.hint) for hint in hints) == 1
