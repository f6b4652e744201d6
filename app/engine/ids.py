"""Makes ids and reads the clock: the only two things of the engine that are not repeatable."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

Clock: TypeAlias = Callable[[], datetime]
NewId: TypeAlias = Callable[[str], str]


def utc_now() -> datetime:
    """Return the time, aware."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id(prefix: str) -> str:
    """Make an id such as `ses_0193…`: a prefix and a UUIDv7, so that ids sort by their time.

    Source: RFC 9562, section 5.7.
    """
    millis = time.time_ns() // 1_000_000
    rand = int.from_bytes(os.urandom(10), "big")
    high = (millis << 16) | 0x7000 | (rand >> 68)
    low = (0b10 << 62) | (rand & ((1 << 62) - 1))
    return f"{prefix}_{(high << 64) | low:032x}"
