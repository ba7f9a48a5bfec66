"""`millpond doctor`: diagnose a run, or self-test the checks

    millpond doctor runs/treasure
    millpond doctor runs/treasure --json
    millpond doctor --self-test

Every check is green, yellow (worth a look), red (wrong) or unknown (and why). The exit code is 1
if anything is red. --self-test plants each known bug in a real short run and prints which checks
fired; the exit code is 1 unless exactly the right ones did.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..doctor import (
    Evidence,
    Verdict,
    chance,
    examine,
    examine_logged,
    examine_mixture,
    noise_scale,
)
from ..doctor.examine import folded
from ..errors import BadConfig
from ..logged import LoggedRun
from ..mixture import MixRun, is_mixture
from ..run_folder import is_logged
from ..train import Run
from ._options import Parser
from ._print import Coloured, empty_table, print_table

COLOURS = {"red": "red", "yellow": "yellow", "green": "green", "unknown": "dim"}


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond doctor", __doc__)
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="the run's folder")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--self-test", action="store_true", help="plant every known bug")
    parser.add_argument("--only", metavar="NAME", help="of --self-test, plants whose name has this")
    options = parser.parse_args(args)
    if options.self_test == (options.run is not None):
        raise BadConfig("name one run, or use --self-test; millpond runs lists the runs there are")
    if options.self_test:
        from ._self_test_text import self_test_and_show

        return self_test_and_show(options.only or "", options.json)
    if options.only:
        raise BadConfig("--only belongs to --self-test; add it, or omit --only")
    verdicts = of_any(options.run)
    if options.json:
        print(json.dumps([verdict._asdict() for verdict in verdicts], indent=2))
    else:
        show(verdicts)
    return int(any(verdict.state == "red" for verdict in verdicts))


def of_any(path: Path) -> list[Verdict]:
    """What the checks say of a run, a mixture, or a run that somebody's own loop logged."""
    if is_mixture(path):
        return examine_mixture(MixRun.open(path))
    if is_logged(path):
        return folded(examine_logged(LoggedRun.open(path)))
    return of_run(path)


def of_run(path: Path) -> list[Verdict]:
    """What the checks say of a run, worst first, with shared reasons folded.

    A random policy is played, and gradient noise is measured.
    """
    run = Run.open(path)
    evidence = Evidence.of(run)
    if evidence.status["state"] == "failed":
        return folded(examine(evidence))  # what it failed of may be what would be played here
    if evidence.eval:
        evidence.chance = chance(run)
    evidence.noise = noise_scale(run)
    return folded(examine(evidence))


def show(verdicts: list[Verdict]) -> None:
    """A table, and below it the numbers and what to do about what fired."""
    table = empty_table(["check", "state", "what was found"], 3)
    for verdict in verdicts:
        state = Coloured(verdict.state, COLOURS[verdict.state])
        checks = verdict.evidence.get("checks")  # several in one: too long for a table
        found = f"{len(checks)} checks: listed below" if checks else verdict.message
        table.add_row(verdict.name, state, found)
    print_table(table)
    for verdict in verdicts:
        if checks := verdict.evidence.get("checks"):
            print(f"{verdict.name}: {verdict.message} ({', '.join(checks)})")
        if verdict.fired:
            found = {name: n for name, n in verdict.evidence.items() if name != "traceback"}
            numbers = ", ".join(f"{name} {value}" for name, value in found.items())
            print(f"{verdict.name}: {verdict.remedy}" + (f" ({numbers})" if numbers else ""))
        if traceback := verdict.evidence.get("traceback"):
            print(traceback.rstrip())
        if scales := verdict.evidence.get("noise_scale"):
            found = ", ".join("beyond measure" if one is None else f"{one:,.0f}" for one in scales)
            batch = verdict.evidence["batch"]
            print(
                f"gradient noise scale of each policy: {found}, in transitions; a batch has {batch}"
            )
