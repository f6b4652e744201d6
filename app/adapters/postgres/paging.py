"""Cursors of lists: the place of the last item, written so that nobody builds one by hand."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.adapters.postgres.database import AnyRow
from app.core.errors import Invalid
from app.core.sanitise import is_clean
from app.ports.stores import Page

Item = TypeVar("Item")


def read_cursor(cursor: str | None) -> str | None:
    """Return the place that a cursor names.

    Raises:
        Invalid: It is no cursor of ours.
    """
    if cursor is None:
        return None
    try:
        place = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("utf-8")
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise _no_cursor() from error
    if not is_clean(place):
        raise _no_cursor()
    return place


def read_number(cursor: str | None) -> int | None:
    """Return the number that a cursor names.

    Raises:
        Invalid: It is no cursor of ours.
    """
    place = read_cursor(cursor)
    if place is None:
        return None
    if not place.isdecimal() or len(place) > 18:  # noqa: PLR2004 - what a bigint holds
        raise _no_cursor()
    return int(place)


def page(
    rows: Sequence[AnyRow],
    *,
    limit: int,
    item: Callable[[AnyRow], Item],
    place: Callable[[AnyRow], object],
) -> Page[Item]:
    """Make a page of rows that were asked for with one row more than the limit."""
    shown = rows[:limit]
    more = len(rows) > limit
    following = base64.urlsafe_b64encode(str(place(shown[-1])).encode()).decode() if more else None
    return Page([item(row) for row in shown], following)


def _no_cursor() -> Invalid:
    return Invalid(
        "The cursor is none that this list has given.",
        errors=[("/cursor", "use the next_cursor of the page before, or leave it out")],
    )
