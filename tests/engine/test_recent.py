"""What is in memory of a log is its gapless end, or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.records import LogEntry
from app.engine import recent
from app.engine.recent import MOST_BYTES_AT_ONCE, Recent


def entry(seq: int, size: int = 10) -> LogEntry:
    return LogEntry(seq, "X", "", b"x" * size)


def test_events_directly_behind_a_number_are_found() -> None:
    held = Recent()
    held.add("s", [entry(5), entry(6)])
    held.add("s", [entry(7)])

    assert [each.seq for each in held.after("s", 5, limit=10)] == [6, 7]
    assert [each.seq for each in held.after("s", 4, limit=2)] == [5, 6]
    assert list(held.after("s", 3, limit=10)) == []
    assert list(held.after("s", 7, limit=10)) == []
    assert list(held.after("other", 0, limit=10)) == []


@given(
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30),
    at=st.integers(0, 99),
)
def test_what_is_found_never_has_a_gap(batches: list[tuple[int, int]], at: int) -> None:
    """Other replicas append in between: the log goes on, and nobody here saw it."""
    held, seq = Recent(), 0
    for unseen, count in batches:
        seq += unseen
        held.add("s", [entry(seq + step) for step in range(1, count + 1)])
        seq += count
    found = [each.seq for each in held.after("s", at, limit=1000)]

    assert found == list(range(at + 1, at + 1 + len(found)))
    assert held.newest("s") == seq


def test_one_session_takes_no_more_than_its_share() -> None:
    held = Recent()
    for seq in range(1, 2001):
        held.add("s", [entry(seq, size=10_000)])

    assert len(held.after("s", 1990, limit=1000)) == 10
    assert len(held.after("s", 1900, limit=1000)) == MOST_BYTES_AT_ONCE // 10_000 + 1
    assert list(held.after("s", 0, limit=1000)) == []


def test_all_sessions_together_take_no_more_than_the_whole(monkeypatch) -> None:
    monkeypatch.setattr(recent, "MOST_BYTES", 50_000)
    held = Recent()
    for number in range(100):
        held.add(f"s{number}", [entry(1, size=1000)])

    assert held.newest("s0") == 0
    assert held.newest("s99") == 1
