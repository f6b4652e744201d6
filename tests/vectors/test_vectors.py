"""AgentScope's recorded cases, replayed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import injection, state

FOLDER = Path(__file__).parent


def cases(name: str) -> list[Any]:
    read = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return [
        pytest.param(case, id=case["id"]) for case in read if case["doc"] and not case.get("better")
    ]


@pytest.mark.parametrize("case", cases("injection_vectors.json"))
def test_an_injection_is_what_the_documentation_says(case: dict[str, Any]) -> None:
    assert injection.differences(case) == []


@pytest.mark.parametrize("case", cases("state_vectors.json"))
def test_a_method_of_the_state_does_what_the_documentation_says(case: dict[str, Any]) -> None:
    assert state.differences(case) == []


# What the recordings have otherwise, by the reason that docs/decisions/0007 gives for each kind.
DIFFERENT = {
    "a changed zone tells the time anew": ["time-16-tz-changed-within-interval-none"],
    "a format that loses the timestamp is refused": [
        "time-23-time-only-format-always-injects",
        "time-29-newline-in-format-always-injects",
        "time-30-tz-name-format",
    ],
    "only the agent's own messages count": [
        "time-40-other-agents-injection-counts",
        "tasks-14-other-agents-call-suppresses",
    ],
    "a zone that is none is refused": [
        "time-45-invalid-timezone-falls-back-to-utc-but-keeps-label",
        "time-46-timezone-directory-name-crashes",
    ],
    "elapsed time is absolute": [
        "time-50-dst-spring-forward-wall-clock-bug",
        "time-51-dst-fall-back-negative-bug",
    ],
    "above the threshold the hint says so": [
        "ctx-05-above-threshold-still-says-will-be-compressed"
    ],
    "a threshold is rounded right": ["ctx-18-threshold-int-truncation"],
    "no arguments are no arguments": ["err-23-empty-vs-empty-object-none"],
    "placeholders are filled in one pass": ["err-29-tool-name-containing-count-placeholder"],
    "a failure is told of once": ["err-30-already-hinted-no-new-result-reinjects"],
    "failures in a row cross replies": ["err-34-streak-before-new-user-message-none"],
    "values are escaped": ["mix-09-extra-xml-unsafe-value-unescaped"],
    "reserved names are refused": [
        "mix-11-extra-overrides-current-time",
        "mix-14-extra-key-tasks-without-uncompleted",
    ],
    "the fields are read off the text by this runner": [
        "mix-20-template-placeholder-twice",
        "mix-23-template-mentioning-current-time-tag-breaks-recognition",
    ],
    "unknown fields are refused": ["mix-27-unknown-config-field-ignored"],
    "nothing is told while a call waits": ["place-08-awaiting-asking-call"],
}


def test_every_other_difference_has_a_reason() -> None:
    read = json.loads((FOLDER / "injection_vectors.json").read_text(encoding="utf-8"))
    different = {case["id"] for case in read if injection.differences(case)}

    assert different == {each for ids in DIFFERENT.values() for each in ids}


@pytest.mark.parametrize("kind", ["injection", "state"])
def test_the_runner_prints_its_count_and_passes(kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors", kind, FOLDER / f"{kind}_vectors.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    last = ran.stdout.strip().splitlines()[-2:]

    assert ran.returncode == 0, ran.stderr
    assert last[0].endswith("passed, 0 failed")
    assert "of the others alike" in last[1]


def test_the_runner_fails_when_a_promised_case_differs(tmp_path: Path) -> None:
    read = json.loads((FOLDER / "injection_vectors.json").read_text(encoding="utf-8"))
    wrong = next(case for case in read if case["doc"] and case["expected"]["injected"])
    wrong["expected"]["hint_text"] = "something else"
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps([wrong]), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.vectors", "injection", file],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert "0 passed, 1 failed" in ran.stdout
