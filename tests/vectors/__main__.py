"""Replays a file of recorded cases: `python -m tests.vectors injection|state FILE`."""

import argparse
import json
import sys
from pathlib import Path

from tests.vectors import injection, state

KINDS = {"injection": injection.differences, "state": state.differences}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    cases = json.loads(given.file.read_text(encoding="utf-8"))
    promised = {True: 0, False: 0}
    others = {True: 0, False: 0}
    for case in cases:
        binding = bool(case.get("doc")) and not case.get("better")
        try:
            found = KINDS[given.kind](case)
        except Exception as error:  # noqa: BLE001 - a case that cannot be played is a difference
            found = [f"raised {type(error).__name__}: {error}"]
        for difference in found:
            print(f"{case['id']}{'' if binding else ' (free)'}: {difference}")
        (promised if binding else others)[not found] += 1
    print(f"{promised[True]} passed, {promised[False]} failed")
    print(f"{others[True]} of the others alike, {others[False]} different")
    return 1 if promised[False] else 0


if __name__ == "__main__":
    sys.exit(main())
