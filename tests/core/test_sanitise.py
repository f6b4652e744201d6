"""What comes in is storable, or refused with the place that is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import Invalid
from app.core.sanitise import TextJoiner, clean_text, read_json, storable

anything = st.text(alphabet=st.characters(codec=None, categories=None))


@given(text=anything)
def test_clean_text_can_be_stored(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode("utf-8")

    assert "\x00" not in cleaned
    assert clean_text(cleaned) == cleaned


@given(text=st.text(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_a_text_in_pieces_is_the_text(text: str, cuts: list[int]) -> None:
    halves = text.encode("utf-16-be", "surrogatepass")
    units = [
        halves[at : at + 2].decode("utf-16-be", "surrogatepass") for at in range(0, len(halves), 2)
    ]
    joiner, pieces, last = TextJoiner(), [], 0
    for cut in [*sorted(cuts), len(units)]:
        pieces.append(joiner.add("".join(units[last : max(cut, last)])))
        last = max(cut, last)
    pieces.append(joiner.end())

    assert "".join(pieces) == clean_text(text)


@pytest.mark.parametrize(
    "raw",
    [
        b"NaN",
        b'{"x": Infinity}',
        b'{"x": 1e400}',
        b'{"x": 1e100000}',
        b'{"x": -1e999}',
        b'{"x": ' + b"9" * 5000 + b"}",
        b"[" * 65 + b"]" * 65,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"\\u0000": 1}',
        b'{"\\ud800": 1}',
        b"\xff\xfe",
        b"{",
        b"",
        b"{'a': 1}",
    ],
)
def test_what_could_not_be_read_again_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        read_json(raw)

    assert "9999" not in refused.value.detail


def test_broken_text_is_replaced_and_the_rest_stays() -> None:
    raw = b'{"a": ["x\\u0000y", "\\ud83d", "\\ud83d\\ude00", 12345678901234567890]}'

    assert read_json(raw) == {"a": ["x\ufffdy", "\ufffd", "😀", 12345678901234567890]}


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | anything,
        lambda inner: st.lists(inner) | st.dictionaries(anything, inner),
        max_leaves=20,
    )
)
def test_a_tools_value_is_made_storable_whatever_it_is(value: object) -> None:
    json.dumps(storable(value), allow_nan=False).encode("utf-8")


def test_a_number_that_python_itself_cannot_write_is_told_by_its_size() -> None:
    assert storable(10**5000) == "a whole number of 16610 bits"
