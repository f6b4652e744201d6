"""What a client would rather have."""

import pytest

from app.http.accept import EVENTS, JSON, preferred


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([], JSON),
        (["*/*"], JSON),
        (["text/event-stream"], EVENTS),
        (["TEXT/Event-Stream; charset=utf-8"], EVENTS),
        (["text/event-stream, */*"], EVENTS),
        (["text/*"], EVENTS),
        (["application/json, text/event-stream"], JSON),
        (["text/event-stream, application/json"], EVENTS),
        (["application/json", "text/event-stream"], JSON),
        (["text/event-stream;q=0.5, application/json"], JSON),
        (["text/event-stream;q=0.5, application/json;q=0.4"], EVENTS),
        (["text/event-stream;q=0, */*"], JSON),
        (["application/json;q=0, */*;q=0.1"], EVENTS),
        (["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], JSON),
        (["image/png"], JSON),
        (["text/event-stream;q=x"], JSON),
        (["text/event-stream;q=nan, ,;;,q=1"], JSON),
    ],
)
def test_the_media_type_follows_the_accept_header(accept: list[str], expected: str) -> None:
    assert preferred(accept, (JSON, EVENTS)) == expected
