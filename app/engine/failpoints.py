"""Places where this process can be made to die, so that the gap behind each write is tried on purpose.

`BEARINGS_FAILPOINTS=append.end.after=exit@2,accept.before=raise@1` lets the process end without a word
when it passes the first point for the second time, and raises at the second point's first pass. Without
the variable a point costs one truth test. Fault tests set it; no operator should.
"""

import os
from collections.abc import Callable

KINDS = ("start", "delta", "call", "result", "park", "join", "end", "renew")
"""What a write records: a reply's start, deltas, calls as started, results, a wait, a message that
joins, its end, nothing."""
FAILPOINTS = (
    "accept.before",
    "accept.after",
    "answer.before",
    "answer.after",
    "claim.after",
    "decide.after",
    *(f"append.{kind}.{when}" for kind in KINDS for when in ("before", "after")),
    "release.before",
)
EXIT_CODE = 137
"""That of a process that was killed."""


class FailpointError(Exception):
    """What a point raises that is told to."""


def _exit(_name: str) -> None:
    os._exit(EXIT_CODE)


def _raise(name: str) -> None:
    raise FailpointError(name)


_ACTIONS: dict[str, Callable[[str], None]] = {"exit": _exit, "raise": _raise}


class Failpoints:
    """The points that are armed, each for one of its passes."""

    def __init__(self, text: str) -> None:
        """Arm points.

        Args:
            text: `NAME=ACTION@PASS` with commas between; the action is `exit` or `raise`, passes count
                from 1.

        Raises:
            ValueError: The text has another form, or names a point that is not there.
        """
        self._armed: dict[str, tuple[int, Callable[[str], None]]] = {}
        for each in filter(None, text.replace(" ", "").split(",")):
            name, _, rest = each.partition("=")
            action, _, number = rest.partition("@")
            if name not in FAILPOINTS or action not in _ACTIONS or not number.isdecimal():
                raise ValueError(f"BEARINGS_FAILPOINTS: {each} is none; write NAME=exit@1")
            self._armed[name] = (int(number), _ACTIONS[action])

    def __bool__(self) -> bool:
        return bool(self._armed)

    def reached(self, name: str) -> None:
        """Count a pass of a point, and act if it is the one that was chosen.

        Raises:
            FailpointError: The point is told to raise.
        """
        left, action = self._armed.get(name, (0, _raise))
        if left:
            self._armed[name] = (left - 1, action)
            if left == 1:
                action(name)


_points = Failpoints(os.environ.get("BEARINGS_FAILPOINTS", ""))


def armed() -> bool:
    """Tell whether any point is: what names a point may cost something."""
    return bool(_points)


def failpoint(name: str) -> None:
    """Pass a point: nothing happens unless it is armed.

    Args:
        name: One of `FAILPOINTS`.

    Raises:
        FailpointError: The point is told to raise.
    """
    if _points:
        _points.reached(name)
