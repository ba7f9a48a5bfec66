"""`millpond doctor`: diagnose a run, an env or a replay, or self-test the checks

    millpond doctor runs/treasure
    millpond doctor --env minatar/breakout
    millpond doctor --replay runs/treasure/lake
    millpond doctor --self-test --only "missing done"

Every check is green, yellow (worth a look), red (wrong) or unknown (with the reason). The exit code
is 1 if any is red. A run is judged by its records and by a probe: its agents play for a few
seconds, one update is recomputed step by step, and transitions are rebuilt from stored rows. The
run itself is not changed. --env plays an env at random, before any training. --self-test plants
each known bug in a short real run and prints which checks fired; the exit code is 1 if those are
not the right ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

# The checks fit many small models, for which NumPy's threads would only spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ..doctor import (
    Evidence,
    Probe,
    Verdict,
    chance,
    examine,
    examine_env,
    examine_logged,
    examine_mixture,
    examine_replay,
    examined_with,
    noise_scale,
)
from ..doctor.examine import folded
from ..doctor.next_command import settles
from ..doctor.probe_checks import SECONDS
from ..envs import make_env
from ..errors import BadConfig
from ..lake import Lake
from ..logged import LoggedRun
from ..mixture import MixRun, is_mixture
from ..run_folder import is_logged
from ..train import Run
from ._options import Parser, whole
from ._print import Coloured, empty_table, print_table

# A probe runs some hundred small programs once each, so compile time matters more than speed.
_COMPILING = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
_MODES = ("fused", "sequential", "lockstep", "processes", "ray")
COLOURS = {"red": "red", "yellow": "yellow", "green": "green", "unknown": "dim"}


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond doctor", __doc__)
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="the run's folder")
    parser.add_argument("--env", metavar="ENV", help="examine an env, before any training")
    parser.add_argument("--replay", type=Path, metavar="LAKE", help="examine the rows of a Lake")
    parser.add_argument("--no-probe", action="store_true", help="judge a run by its records only")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="time after which the probe begins no further check (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--self-test", action="store_true", help="plant every known bug")
    parser.add_argument(
        "--only", metavar="NAME", help="with --self-test: only bugs or checks with this in the name"
    )
    parser.add_argument(
        "--mode", choices=_MODES, help="with --self-test: the mode to run in (default: each bug's)"
    )
    parser.add_argument(
        "--jobs", type=whole, default=2, help="with --self-test: parallel runs (default 2)"
    )
    options = parser.parse_args(args)
    if not entry_points(group="jax_plugins"):  # JAX can use only the CPU
        os.environ.setdefault("XLA_FLAGS", _COMPILING)
    asked = [options.run, options.env, options.replay, options.self_test or None]
    if sum(one is not None for one in asked) != 1:
        raise BadConfig(
            "name one run, or use one of --env, --replay and --self-test; millpond runs lists "
            "the runs"
        )
    if options.self_test:
        from ._self_test_text import self_test_and_show

        only, mode = options.only or "", options.mode or ""
        return self_test_and_show(only, mode, options.jobs, options.json)
    if options.only or options.mode:
        raise BadConfig("--only and --mode are options of --self-test; add it, or omit them")
    path: Any = options.run
    lake: Any = options.replay
    if options.env is not None:
        verdicts = examine_env(make_env(options.env))
    elif lake is not None:
        verdicts = examine_replay(Lake.open(lake))
    else:
        verdicts = of_any(path, 0.0 if options.no_probe else options.seconds)
    if options.json:
        print(json.dumps([verdict._asdict() for verdict in verdicts], indent=2))
    else:
        env = ""
        if path is not None and not is_mixture(path) and not is_logged(path):
            env = Run.open(path).settings.env
        show(verdicts, str(path), env)
    return int(any(verdict.state == "red" for verdict in verdicts))


def of_any(path: Path, seconds: float = SECONDS) -> list[Verdict]:
    """Examine a training run, a mixture, or a run that a user's own loop logged."""
    if is_mixture(path):
        return examine_mixture(MixRun.open(path))
    if is_logged(path):
        return folded(examine_logged(LoggedRun.open(path)))
    return of_run(path, seconds)


def of_run(path: Path, seconds: float = SECONDS) -> list[Verdict]:
    """Examine a training run; returns verdicts, worst first, with shared reasons folded.

    It plays a random policy, measures gradient noise, and probes the run unless `seconds` is 0.
    """
    run = Run.open(path)
    evidence = Evidence.of(run)
    if evidence.status["state"] == "failed":
        return folded(examine(evidence))  # whatever made it fail could fail here, too
    if evidence.eval:
        evidence.chance = chance(run)
    evidence.noise = noise_scale(run)
    found = examine(evidence)
    if seconds:
        found = examined_with(found, Probe.of(run), seconds)
    return folded(found)


def show(verdicts: list[Verdict], run: str = "", env: str = "") -> None:
    """Print a table and, below it, the findings with numbers and remedies."""
    table = empty_table(["check", "state", "what was found"], 3)
    for verdict in verdicts:
        state = Coloured(verdict.state, COLOURS[verdict.state])
        checks = verdict.evidence.get("checks")  # folded checks are too long for the table
        found = f"{len(checks)} checks: listed below" if checks else verdict.message
        table.add_row(verdict.name, state, found)
    print_table(table)
    for verdict in verdicts:
        if checks := verdict.evidence.get("checks"):
            print(f"{verdict.name}: {verdict.message} ({', '.join(checks)})")
        if scales := verdict.evidence.get("noise_scale"):
            found = ", ".join("beyond measure" if one is None else f"{one:,.0f}" for one in scales)
            batch = verdict.evidence["batch"]
            print(f"gradient noise scale per policy, in transitions: {found}; a batch has {batch}")
    fired = [verdict for verdict in verdicts if verdict.fired]
    for place, verdict in enumerate(fired, 1):
        _show_finding(place, verdict, settles(verdict, run, env) if env else "")
    states = [verdict.state for verdict in verdicts]
    told = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    print(f"\n{told}" if fired else f"\nno problems found: {told}")


def _show_finding(place: int, verdict: Verdict, command: str) -> None:
    """Print one finding, the remedy, the numbers, and a command that settles it."""
    print(f"\n{place}. {verdict.name}: {verdict.message}")
    if traceback := verdict.evidence.get("traceback"):
        print(traceback.rstrip())
    print(f"   what to do:   {verdict.remedy}")
    if command:
        print(f"   to settle it: {command}")
    known = {name: n for name, n in verdict.evidence.items() if name != "traceback"}
    if known:
        print("   measured:     " + ", ".join(f"{name} {_plain(n)}" for name, n in known.items()))


def _plain(number: Any) -> str:
    """A measured number, with four digits."""
    return f"{number:.4g}" if isinstance(number, float) else f"{number}"
