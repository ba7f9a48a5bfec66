"""The output of `millpond doctor --self-test`: a matrix of planted bugs and checks."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..doctor import CHECKS
from ..doctor.self_test import Result, chosen, self_test
from ..errors import BadConfig
from ._print import Coloured, empty_table, many, print_table

MARKS = {"red": ("R", "red"), "yellow": ("y", "yellow"), "green": (".", ""), "unknown": (" ", "")}


def self_test_and_show(only: str, mode: str, jobs: int, as_json: bool) -> int:
    """Run the self-test, or part of it, and print the matrix; returns the exit code."""
    plants = chosen(only, mode)
    if not plants:
        raise BadConfig(
            f"no planted bug or check has '{only}' in its name; see docs/doctor.md, or omit --only "
            "to run all"
        )
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="millpond-doctor-") as folder:
        for result in self_test(Path(folder), only, mode, min(jobs, len(plants))):
            results.append(result)
            verdict = "; ".join(result.wrong) or "as expected"
            line = f"{result.seconds:5.1f} s  {result.plant.name}: {verdict}"
            print(line, file=sys.stderr, flush=True)
    order = {plant.name: place for place, plant in enumerate(plants)}
    results.sort(key=lambda result: order.get(result.plant.name, 0))
    if as_json:
        print(json.dumps([plain(result) for result in results], indent=2))
    else:
        show(results)
    return int(any(result.wrong for result in results))


def plain(result: Result) -> dict[str, Any]:
    """One row of the matrix as plain values."""
    return {
        "plant": result.plant.name,
        "must_fire": result.plant.fires,
        "may_fire": result.plant.may,
        "states": {name: verdict.state for name, verdict in result.verdicts.items()},
        "ended": result.ended,
        "seconds": round(result.seconds, 1),
        "wrong": result.wrong,
    }


def show(results: list[Result]) -> None:
    """Print the matrix; columns are checks, whose names are below the table."""
    heads = [chr(ord("a") + number) for number in range(len(CHECKS))]
    table = empty_table(["planted", "must fire", *heads, "by the probe", "as declared"], 2)
    for result in results:
        # Checks that only the probe can answer have no verdict from the record.
        states = [result.verdicts[n].state if n in result.verdicts else "unknown" for n in CHECKS]
        cells = [Coloured(*MARKS[state]) for state in states]
        probed = ", ".join(name for name in result.fired if name not in CHECKS)
        right = Coloured("yes", "green") if not result.wrong else Coloured("NO", "red")
        table.add_row(result.plant.name, result.plant.fires or "nothing", *cells, probed, right)
    print_table(table)
    print("R red, y yellow, . green; blank: unknown, for example without channels")
    print("  ".join(f"{head} {name}" for head, name in zip(heads, CHECKS, strict=True)))
    for result in results:
        for what in result.wrong:
            print(f"{result.plant.name}: {what} ({result.ended or 'the run finished'})")
    wrong = sum(bool(result.wrong) for result in results)
    print(f"{many(len(results), 'run')}, {wrong} not as declared")
