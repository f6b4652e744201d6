"""The watch over costs: it must see growth, and nothing else."""

from pathlib import Path

import pytest

from bench import report
from bench.report import Row, grown, keep, newest

BEFORE = {"service CPU a reply": {"bearings": 5.0, "proxy2": 2.0}}


def measured(ours: float, theirs: float, *, watched: str | None = "proxy2") -> Row:
    rounds = {"bearings": [ours] * 3, "proxy2": [theirs] * 3}
    return Row("service CPU a reply", "ms", rounds, watched=watched)


@pytest.mark.parametrize(("ours", "theirs"), [(6.2, 2.0), (12.0, 4.0), (1.0, 2.0)])
def test_a_slower_machine_and_a_little_more_are_not_growth(ours: float, theirs: float) -> None:
    assert grown([measured(ours, theirs)], BEFORE) == {}


def test_more_than_a_quarter_is_told() -> None:
    told = grown([measured(6.4, 2.0)], BEFORE)
    assert told == {
        "service CPU a reply": "service CPU a reply: 3.20x proxy2, and it was 2.50x",
    }


def test_what_is_not_watched_or_was_not_measured_is_not_compared() -> None:
    assert grown([measured(64, 2, watched=None)], BEFORE) == {}
    assert grown([measured(64, 2)], {}) == {}
    assert grown([measured(64, 2)], {"service CPU a reply": {"bearings": 5.0}}) == {}


def test_the_newest_kept_results_are_the_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    with pytest.raises(FileNotFoundError, match="no results are kept"):
        newest()
    for date, cost in (("2026-12-02", 8.0), ("2026-12-03", 5.0), ("2026-11-30", 9.0)):
        keep([measured(cost, 2.0)], {"date": date, "bearings": "0.1.0"}, form="short")
    file, values = newest()
    assert file.name == "2026-12-03-0.1.0-short.json"
    assert values == BEFORE
