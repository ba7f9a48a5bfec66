"""`millpond runs`: list the runs in a folder, with their status

millpond runs
millpond runs other/runs --json
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..logged import LoggedRun, find_logged
from ..metrics import read_metrics
from ..mixture import MixRun, find_mixtures
from ..run_folder import shell_word
from ..train import Run, find_runs
from ._options import Parser
from ._print import elapsed, empty_table, fitted, print_table, short


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond runs", __doc__)
    parser.add_argument(
        "root", metavar="FOLDER", nargs="?", type=Path, default=Path("runs"), help="default: runs"
    )
    parser.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    options = parser.parse_args(args)
    found = [about(run) for run in find_runs(options.root)]
    found += [about_mixture(run) for run in find_mixtures(options.root)]
    found += [about_logged(run) for run in find_logged(options.root)]
    found.sort(key=lambda one: one["run"])
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print(f"no runs in {options.root}; start one with millpond train ENV")
        return 0
    heads = ["run", "env", "agent", "state", "steps", "of", "time", "steps/s", "greedy", "best"]
    table = empty_table(heads, 4)
    for one in found:
        of = f"{one['of']:,}" if one["of"] else "-"  # a user's own loop need not say
        numbers = [f"{one['steps']:,}", of]
        numbers += [elapsed(one["seconds"]) if one["seconds"] else "-"]
        numbers += [short(one["speed"]) if one["speed"] else "-"]
        numbers += [_real(one["greedy"]), _real(one["best"])]
        env, agent = one["env"] or "-", one["agent"] or "-"
        table.add_row(one["run"], env, agent, one["state"], *numbers)
    print_table(shown := fitted(table, ("of", "time", "steps/s", "best", "agent", "env")))
    if len(shown.heads) < len(heads):
        print("a wider terminal shows more columns; --json shows all")
    print("greedy, best: mean return of greedy episodes, latest and highest, not normalised")
    if "steps/s" in shown.heads:
        print(
            "steps/s: env steps of all policies per second of acting and learning (last measured)"
        )
    for one in found:
        if one["why"]:
            first = one["why"].partition("\n")[0]
            where = f"millpond doctor {shell_word(one['run'])} says where"
            print(f"{one['run']} {one['state']}: {first}; {where}")
    return 0


def about(run: Run) -> dict[str, Any]:
    """A summary of a training run."""
    returns, status, settings = greedy(run.metrics), run.status(), run.settings
    pace = list(read_metrics(run.speed))
    return {
        "run": str(run.path),
        "env": settings.env,
        "agent": settings.agent,
        "seed": settings.seed,
        "state": status["state"],
        "why": status.get("why", ""),
        "steps": status["steps"],
        "of": settings.steps,
        "seconds": _seconds(pace),
        "speed": pace[-1].get("steps_per_second") if pace else None,
        "greedy": returns[-1] if returns else None,
        "best": max(returns) if returns else None,
        "checkpoints": [checkpoint.steps for checkpoint in run.checkpoints()],
    }


def about_mixture(run: MixRun) -> dict[str, Any]:
    """A summary of a mixture; its steps are frames."""
    one = about(run.everyone)
    return one | {"agent": "mixture", "seed": run.settings.seed, "of": run.settings.frames}


def _seconds(pace: list[dict[str, Any]]) -> float:
    """The time that a run has taken; its clock restarts at 0 whenever it is resumed."""
    clock = [float(line.get("seconds") or 0.0) for line in pace]
    pairs = itertools.zip_longest(clock, clock[1:], fillvalue=0.0)
    return sum(now for now, after in pairs if after < now)


def about_logged(run: LoggedRun) -> dict[str, Any]:
    """A summary of a run of a user's own loop, which has no checkpoints."""
    returns, status, settings = greedy(run.metrics), run.status(), run.settings
    return {
        "run": str(run.path),
        "env": str(settings.get("env", "")),
        "agent": str(settings.get("agent", "")),
        "seed": settings.get("seed"),
        "state": status["state"],
        "why": status.get("why", ""),
        "steps": status["steps"],
        "of": int(settings.get("steps") or 0),
        "seconds": None,
        "speed": None,
        "greedy": returns[-1] if returns else None,
        "best": max(returns) if returns else None,
        "checkpoints": [],
    }


def greedy(metrics: Path) -> list[float]:
    """The mean returns of all evaluations."""
    lines = read_metrics(metrics, "eval")
    return [line["return"] for line in lines if line["return"] is not None]


def _real(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
