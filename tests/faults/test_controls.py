"""The checker sees what it is there for: mistakes made on purpose, in runs and by hand."""

from collections import Counter
from typing import Any

import pytest

from tests.faults import nemesis
from tests.faults.checker import answered, effects, summary
from tests.faults.generator import Load
from tests.faults.history import Submission
from tests.faults.model import unpaired
from tests.faults.postgres import Postgres
from tests.faults.scenarios import SCENARIOS, Scenario, run

CALM = Scenario(
    "calm", nemesis.nothing, (0, 40), (0, 40), load=Load(slots=4, interrupted=0, modes=("json",))
)


@pytest.mark.parametrize(
    ("control", "scenario", "faults", "signs"),
    [
        ("fence-off", SCENARIOS["hold-clock"], 6, {": 2: an old epoch", ": 13: "}),
        ("serial-cursor", CALM, 0, {"4: "}),
        ("blind-retry", SCENARIOS["lose"], 30, {": 5: ", "7: "}),
        ("read-then-subscribe", CALM, 0, {"a reader stands at"}),
    ],
)
async def test_a_mistake_made_on_purpose_is_seen(
    postgres: Postgres, control: str, scenario: Scenario, faults: int, signs: set[str]
) -> None:
    outcome = await run(scenario, postgres, seed=7, faults=faults, messages=40, control=control)

    seen = {sign for sign in signs for each in outcome.violations if sign in each}
    assert seen, summary(outcome.found)


async def test_without_a_mistake_the_same_traffic_is_in_order(postgres: Postgres) -> None:
    outcome = await run(CALM, postgres, seed=7, faults=0, messages=40)

    assert outcome.violations == [], summary(outcome.found)


def asked(reply: str, text: str) -> dict[str, Any]:
    return {
        "type": "MESSAGE_RECEIVED",
        "reply_id": reply,
        "message": {"content": [{"type": "text", "text": text}]},
    }


def ended(reply: str) -> dict[str, Any]:
    return {"type": "REPLY_END", "reply_id": reply}


@pytest.mark.parametrize(
    ("events", "told", "sign"),
    [
        ([asked("a", "hi"), ended("a")], {"a"}, None),
        ([asked("a", "hi"), asked("b", "hi"), ended("a"), ended("b")], {"a"}, "7: "),
        ([], {"a"}, "3: "),
        ([asked("a", "hi")], {"a"}, "ended 0 times"),
        ([asked("a", "hi"), ended("a"), ended("a")], {"a"}, "ended 2 times"),
        ([asked("a", "hi"), ended("a")], {"a", "b"}, "was told"),
        ([asked("a", "ho"), ended("a")], set(), "nobody sent"),
        ([], set(), None),
    ],
)
def test_what_was_acknowledged_is_compared_with_the_log(
    events: list[dict[str, Any]], told: set[str], sign: str | None
) -> None:
    found = answered("ses", events, [Submission("ses", "hi", "key", set(told))])

    assert (found == []) if sign is None else any(sign in each for each in found)


@pytest.mark.parametrize(
    ("lines", "begun", "success", "sign"),
    [
        (["k"], {"k"}, {"k": 1}, None),
        (["k"], {"k"}, {"k": 0}, None),
        ([], {"k"}, {"k": 0}, None),
        (["k", "k"], {"k"}, {"k": 1}, "took effect 2 times"),
        (["k"], set(), {}, "is not in the log"),
        ([], {"k"}, {"k": 1}, "took no effect"),
        (["k"], {"k"}, {"k": 2}, "has 2 results"),
    ],
)
def test_effects_are_compared_with_what_was_recorded(
    lines: list[str], begun: set[str], success: dict[str, int], sign: str | None
) -> None:
    found = effects(lines, begun, Counter(success))

    assert (found == []) if sign is None else any(sign in each for each in found)


def calling(*calls: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call} for call in calls]}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call}


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "right"),
    [
        ([USER, calling("a", "b"), result("b"), result("a"), USER], True),
        ([USER, calling("a"), USER, result("a")], False),
        ([USER, calling("a")], False),
        ([USER, result("a")], False),
        ([calling("a"), result("a"), result("a")], False),
        ([calling("a"), result("a"), calling("a"), result("a")], False),
    ],
)
def test_a_conversation_with_a_call_that_has_not_one_result_is_seen(
    messages: list[dict[str, Any]],
    right: bool,  # noqa: FBT001
) -> None:
    assert (unpaired(messages) == []) is right
