"""Many, rude and slow readers, in short forms: they get everything, and harm nobody."""

import json

import pytest

from tests.faults.postgres import Postgres
from tests.faults.streams import MEASURES, take


@pytest.mark.parametrize("name", MEASURES)
async def test_readers_get_everything_and_harm_nobody(postgres: Postgres, name: str) -> None:
    measure = MEASURES[name]
    measured = await take(measure, postgres, seed=11, sizes=measure.short)

    assert measured.violations == [], json.dumps(measured.violations, indent=1)
