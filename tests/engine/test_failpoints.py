"""Fail points: nothing unless armed, and then at one pass exactly."""

import os
import subprocess
import sys

import pytest

from app.engine.failpoints import FAILPOINTS, FailpointError, Failpoints, failpoint
from tests.support.service import ROOT


def test_without_the_variable_every_point_is_passed() -> None:
    for name in FAILPOINTS:
        failpoint(name)


def test_a_point_acts_at_its_pass_and_at_no_other() -> None:
    points = Failpoints("accept.before=raise@2, claim.after=raise@1")
    points.reached("accept.before")
    points.reached("accept.after")
    with pytest.raises(FailpointError, match=r"accept\.before"):
        points.reached("accept.before")
    points.reached("accept.before")
    with pytest.raises(FailpointError):
        points.reached("claim.after")


@pytest.mark.parametrize(
    "text",
    [
        "nowhere=exit@1",
        "accept.before",
        "accept.before=exit",
        "claim.after=burn@1",
        "claim.after=exit@x",
    ],
)
def test_a_point_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="BEARINGS_FAILPOINTS"):
        Failpoints(text)


def test_names_are_unique() -> None:
    assert len(set(FAILPOINTS)) == len(FAILPOINTS)


def test_an_armed_process_ends_without_a_word_at_its_pass() -> None:
    program = (
        "import atexit\n"
        "from app.engine.failpoints import failpoint\n"
        "atexit.register(print, 'goodbye')\n"
        "for number in range(3):\n"
        "    print(number, flush=True)\n"
        "    failpoint('append.end.after')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"BEARINGS_FAILPOINTS": "append.end.after=exit@2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 137
    assert done.stdout.split() == ["0", "1"]
