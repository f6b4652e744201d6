"""Cursors of lists: the place of the last item, written so that nobody builds one by hand."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.adapters.postgres.database import Row
from app.core.errors import Invalid
from app.core.sanitise import is_clean
from app.ports.stores import Page

Item = TypeVar("Item")


def read_cursor(cursor: str | None, *, of: str) -> str | None:
    """Return the place that a cursor names.

    Args:
        cursor: As the client sent it.
        of: The list that it must be of, as `page` was told.

    Raises:
        Invalid: It is no cursor of this list.
    """
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise _no_cursor() from error
    kind, _, place = text.partition(":")
    if kind != of or not is_clean(place):
        raise _no_cursor()
    return place


def read_number(cursor: str | None, *, of: str) -> int | None:
    """Return the number that a cursor names.

    Raises:
        Invalid: It is no cursor of this list.
    """
    place = read_cursor(cursor, of=of)
    if place is None:
        return None
    if not (place.isascii() and place.isdecimal()) or len(place) > 18:  # noqa: PLR2004 - what a bigint holds
        raise _no_cursor()
    return int(place)


def page(
    rows: Sequence[Row],
    *,
    limit: int,
    of: str,
    item: Callable[[Row], Item],
    place: Callable[[Row], object],
) -> Page[Item]:
    """Make a page of rows that were asked for with one row more than the limit."""
    shown = rows[:limit]
    more = len(rows) > limit
    if not more:
        return Page([item(row) for row in shown], None)
    following = base64.urlsafe_b64encode(f"{of}:{place(shown[-1])}".encode()).decode()
    return Page([item(row) for row in shown], following)


def _no_cursor() -> Invalid:
    return Invalid(
        "The cursor is none that this list has given.",
        errors=[("/query/cursor", "use the next_cursor of the page before, or leave it out")],
    )
