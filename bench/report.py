"""The results: as a table for people, and as a file to compare with later."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import ROOT

RESULTS = Path(__file__).parent / "results"
MAY_GROW = 0.25
TARGETS = ("bearings", "proxy", "proxy2")


@dataclass(frozen=True)
class Goal:
    """What a value is to reach, alone or against another target's."""

    bound: float
    against: str | None = None
    least: bool = False

    def __str__(self) -> str:
        sign = "≥" if self.least else "≤"
        return f"{sign} {self.bound:g}" + (f"x {self.against}" if self.against else "")


@dataclass(frozen=True)
class Row:
    """One quantity, of each target that has it, once a round."""

    what: str
    unit: str
    rounds: Mapping[str, Sequence[float]]
    goal: Goal | None = None
    watched: str | None = None
    """The target against which this must not grow from one release to the next."""

    def value(self, target: str) -> float | None:
        """Return the median of a target's rounds."""
        return median(self.rounds[target]) if self.rounds.get(target) else None

    def ratio(self, against: str) -> float | None:
        ours, theirs = self.value("bearings"), self.value(against)
        return ours / theirs if ours is not None and theirs else None

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        measured = self.ratio(self.goal.against) if self.goal.against else self.value("bearings")
        if measured is None:
            return None
        return measured >= self.goal.bound if self.goal.least else measured <= self.goal.bound


def machine() -> dict[str, Any]:
    """Say where and on what this is measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": named[0] if named else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "load_before": _load(),
        "bearings": version("bearings"),
        "commit": _commit(),
    }


def _load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def _commit() -> str | None:
    """Return the commit of the service, marked when files of it differ; None outside a checkout."""
    try:
        head, changed = (
            subprocess.run(
                ["git", *asked], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for asked in (
                ["rev-parse", "--short", "HEAD"],
                ["--no-optional-locks", "status", "--porcelain", "--", "app"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}, with changes" if changed else head


def headline(on: Mapping[str, Any]) -> str:
    before, after = on["load_before"][0], on["load_after"][0]
    return (
        f"{on['cpu']}, {on['cores']} cores, Python {on['python']}, {on['date']}, "
        f"load {before} before and {after} after, "
        f"Bearings {on['bearings']} ({on['commit'] or 'no checkout'})"
    )


def table(rows: Sequence[Row]) -> str:
    head = ("what", "unit", *TARGETS, "÷ proxy", "÷ proxy2", "goal", "")
    lines = [head, ("---", "---", *["---:"] * 5, "---", "---")]
    lines += [
        (
            row.what,
            row.unit,
            *[_number(row.value(target)) for target in TARGETS],
            _number(row.ratio("proxy")),
            _number(row.ratio("proxy2")),
            str(row.goal or ""),
            {None: "", True: "reached", False: "missed"}[row.reached],
        )
        for row in rows
    ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if 2 <= at <= 6 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def keep(rows: Sequence[Row], on: Mapping[str, Any], *, form: str) -> Path:
    """Write the results, every round of them, to a file named by date, version and form."""
    RESULTS.mkdir(exist_ok=True)
    mark = "" if form == "full" else f"-{form}"
    file = RESULTS / f"{on['date'][:10]}-{on['bearings']}{mark}.json"
    document = {
        "machine": on,
        "form": form,
        "rows": [
            {
                "what": row.what,
                "unit": row.unit,
                **{target: row.value(target) for target in TARGETS},
                "goal": str(row.goal) if row.goal else None,
                "reached": row.reached,
                "rounds": {target: [*values] for target, values in row.rounds.items()},
            }
            for row in rows
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def newest() -> tuple[Path, dict[str, dict[str, float]]]:
    """Return the results that were kept last, and in them each quantity's value by target.

    Raises FileNotFoundError when none are kept.
    """
    files = sorted(RESULTS.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no results are kept in {RESULTS}")
    document = json.loads(files[-1].read_text(encoding="utf-8"))
    return files[-1], {
        row["what"]: {target: row[target] for target in TARGETS if row[target] is not None}
        for row in document["rows"]
    }


def grown(rows: Sequence[Row], before: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Say of each watched quantity that grew by more than `MAY_GROW` against its yardstick how it did.

    `before` has the values of the kept results. A quantity that they do not have is not compared.
    """
    told: dict[str, str] = {}
    for row in rows:
        was = before.get(row.what, {})
        if row.watched is None or "bearings" not in was or row.watched not in was:
            continue
        now, then = row.ratio(row.watched), was["bearings"] / was[row.watched]
        if now is not None and now > then * (1 + MAY_GROW):
            told[row.what] = f"{row.what}: {now:.2f}x {row.watched}, and it was {then:.2f}x"
    return told


def finished(on: dict[str, Any]) -> dict[str, Any]:
    """Add to the machine's description how busy it is now."""
    return {**on, "load_after": _load()}
