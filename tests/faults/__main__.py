"""Runs scenarios in their long form and prints a table: `python -m tests.faults [names] [options]`."""

import argparse
import asyncio
import os
import platform
import random
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.postgres import postgres_server
from tests.faults.scenarios import SCENARIOS, Outcome, p99, run
from tests.faults.streams import MEASURES, take

COLUMNS = (
    "scenario", "seed", "faults", "messages", "events", "resumes", "interrupted calls",
    "fenced writers", "503", "500", "takeover p99 s", "violations", "known", "seconds",
)  # fmt: skip


def row(outcome: Outcome) -> list[str]:
    counts = outcome.found.counts
    times = [each for kind in outcome.found.takeovers.values() for each in kind]
    values = (
        outcome.scenario,
        outcome.seed,
        outcome.faults,
        outcome.messages,
        counts["events"],
        counts["REPLY_RESUMED"],
        counts["interrupted calls"],
        counts["fenced"],
        counts["503"],
        counts["500"],
        f"{p99(times):.1f} ({len(times)})" if times else "",
        len(outcome.violations),
        len(outcome.found.known),
        round(outcome.seconds),
    )
    return [f"{each:,}" if isinstance(each, int) else str(each) for each in values]


def line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """Say on what, when and how."""
    model = next(
        (
            text.partition(":")[2].strip()
            for text in Path("/proc/cpuinfo").read_text().splitlines()
            if text.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    now = datetime.now(UTC).isoformat(timespec="minutes")
    command = shlex.join(["python", "-m", "tests.faults", *sys.argv[1:]])
    return f"`{command}`. {model}, {os.cpu_count()} cores, {now}, {commit}."


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"of {', '.join([*SCENARIOS, *MEASURES])}; all when none is given",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--faults", type=int, help="faults of each, instead of its own number")
    parser.add_argument("--messages", type=int, help="messages of each, at least")
    parser.add_argument("--short", action="store_true", help="the form that the tests run")
    parser.add_argument("--keep", type=Path, help="where logs are kept when something was wrong")
    given = parser.parse_args()
    if unknown := set(given.names) - {*SCENARIOS, *MEASURES}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    bad = 0
    async with postgres_server() as postgres:
        scenarios = [name for name in given.names or SCENARIOS if name in SCENARIOS]
        if scenarios:
            print(line(COLUMNS))
            print(line(["---"] * len(COLUMNS)), flush=True)
        for name in scenarios:
            scenario = SCENARIOS[name]
            faults, messages = scenario.short if given.short else scenario.long
            outcome = await run(
                scenario,
                postgres,
                seed=given.seed,
                faults=faults if given.faults is None else given.faults,
                messages=messages if given.messages is None else given.messages,
                keep=given.keep,
            )
            print(line(row(outcome)), flush=True)
            if not given.short and outcome.found.counts["fenced"] < scenario.fenced:
                outcome.violations.append(
                    f"only {outcome.found.counts['fenced']} writers were fenced"
                )
            for each in outcome.violations[:20]:
                print(f"  {each}", file=sys.stderr, flush=True)
            bad += len(outcome.violations)
        for name in [name for name in given.names or MEASURES if name in MEASURES]:
            measure = MEASURES[name]
            sizes = measure.short if given.short else measure.long
            measured = await take(measure, postgres, seed=given.seed, sizes=sizes, keep=given.keep)
            values = "; ".join(f"{name}: {value}" for name, value in measured.values.items())
            print(f"\n{name}, seed {measured.seed}: {values}", end="")
            wrong = f"violations: {len(measured.violations)}; known: {len(measured.known)}"
            print(f"; {wrong}; {measured.seconds:.0f} s", flush=True)
            for each in [*measured.violations, *measured.known][:20]:
                print(f"  {each}", file=sys.stderr, flush=True)
            bad += len(measured.violations)
    print(f"\n{machine()}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
