"""Each scenario in its short form: whatever breaks, what was accepted is answered exactly once."""

import pytest

from tests.faults.checker import summary
from tests.faults.postgres import Postgres
from tests.faults.scenarios import SCENARIOS, run

SEED = 20261201


@pytest.mark.parametrize("name", SCENARIOS)
async def test_whatever_breaks_everything_accepted_is_answered_once(
    postgres: Postgres, name: str
) -> None:
    scenario = SCENARIOS[name]
    faults, messages = scenario.short
    outcome = await run(scenario, postgres, seed=SEED, faults=faults, messages=messages)

    assert outcome.violations == [], summary(outcome.found)
    assert outcome.faults >= faults
    assert outcome.messages >= messages
