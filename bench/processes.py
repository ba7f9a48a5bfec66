"""Actors and learners in processes against the same in turn: `make bench ONLY=processes`.

Equal env steps and equal updates. Each mode runs in a process of its own, one after the other, in
several rounds, and medians are compared; `sequential` may use every core, or keep to one
(`one-core`) where it is faster so: the better of the two counts. The processes have one thread
each and keep to a core (`--crew.pin`). The fused loop (one jitted program) stands beside them where
the env runs in JAX. Measured is the time from one cycle to a later one, after everything is
compiled. What other programs used meanwhile is told: beside them no number means much.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from millpond.cli.train import parse_train
from millpond.engine.limiter import Limiter
from millpond.engine.settings import Settings
from millpond.train.presets import settings_for

ATARI = "--replay host --network.width 128 --dqn.capacity 16000 --dqn.min-fill 640 --dqn.updates 1 "
# Acting and learning take about as long as each other. Options, cycles before and while measuring.
CASES = {
    "treasurehunt-small": ("--dqn.batch 64 --dqn.updates 1 --dqn.update-every 2", 60, 1500),
    "atari/gravitar": (ATARI + "--envs 16 --dqn.batch 32 --dqn.update-every 8", 8, 60),
    "atari/gravitar, 8 envs": (ATARI + "--envs 8 --dqn.batch 16 --dqn.update-every 8", 12, 120),
}
MODES = ("sequential", "one-core", "processes", "fused")
TARGET = 1.5


def case_settings(case: str, mode: str, actors: int) -> tuple[Settings, int, int]:
    options, warm, cycles = CASES[case]
    settings = parse_train(settings_for(case.partition(",")[0], agent="dqn"), options.split())
    per_cycle = settings.envs * settings.learns.turns
    changes: dict[str, Any] = dict(mode=mode, steps=per_cycle * (warm + cycles + 50))
    if mode != "fused":
        changes["actors"] = actors
        changes["crew"] = dataclasses.replace(settings.crew, pin=True)
    return dataclasses.replace(settings, **changes), warm, cycles


def one(case: str, mode: str, actors: int) -> dict[str, Any]:
    """Run one mode in this process."""
    if mode == "one-core":  # before JAX counts the cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        mode = "sequential"
    from millpond.train.loop import open_loop

    settings, warm, cycles = case_settings(case, mode, actors)
    rows = settings.envs * settings.learns.turns
    with tempfile.TemporaryDirectory() as folder, open_loop(settings, Path(folder)) as loop:
        state = loop.init()
        state, _ = loop.round(state, warm)
        began, updates, before = time.perf_counter(), int(state.agent.updates[0]), spent(loop)
        first = state.cycle if mode != "fused" else warm
        state, _ = loop.round(state, cycles)
        took = time.perf_counter() - began
        shares = {name: (now - before[name]) / took / 1e9 for name, now in spent(loop).items()}
        last = state.cycle if mode != "fused" else warm + cycles
        return {
            "steps_per_second": (last - first) * rows / took,
            "updates": (int(state.agent.updates[0]) - updates) / (last - first),
            "shares": {name: share.round(3).tolist() for name, share in shares.items()},
        }


def spent(loop: Any) -> dict[str, np.ndarray]:
    """Nanoseconds of each process so far: working, waiting, moving data."""
    team = getattr(getattr(loop, "crew", None), "team", None)
    children = team.children if team else {}
    return {
        f"{role} {index}": np.array(team.board.line(child.line).spent_ns)
        for (role, index), child in children.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("CASE", "MODE"), help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one, options.actors)))
        return
    results: dict[str, Any] = {}
    for case in options.cases:
        modes = [m for m in options.modes if m != "fused" or not case.startswith("atari")]
        found: dict[str, list[dict]] = {mode: [] for mode in modes}
        for _ in range(options.rounds):
            for mode in modes:
                found[mode].append(measure(case, mode, options.actors))
                pace = found[mode][-1]["steps_per_second"]
                others = found[mode][-1]["cores_busy_elsewhere"]
                line = f"  {case:22} {mode:11} {pace:>11,.0f} steps/s"
                print(f"{line}  (other programs: {others:.2f} cores)", flush=True)
        results[case] = {mode: summary(runs) for mode, runs in found.items()}
        show(case, results[case])
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "processes.json").write_text(json.dumps(results, indent=2))


def measure(case: str, mode: str, actors: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", case, mode, "--actors", str(actors)]
    began, before = time.perf_counter(), busy_elsewhere()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{case} {mode} failed:\n{done.stderr}")
    elsewhere = (busy_elsewhere() - before) / (time.perf_counter() - began)
    return {**json.loads(done.stdout.splitlines()[-1]), "cores_busy_elsewhere": elsewhere}


def busy_elsewhere() -> float:
    """CPU seconds that other programs have used, but for those that are nice and stand back."""
    user, _, system = (int(n) for n in Path("/proc/stat").read_text().split()[1:4])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + system) / os.sysconf("SC_CLK_TCK") - used.ru_utime - used.ru_stime


def summary(runs: list[dict]) -> dict[str, Any]:
    pace = statistics.median(run["steps_per_second"] for run in runs)
    return {"steps_per_second": pace, "runs": runs}


def show(case: str, modes: dict[str, Any]) -> None:
    bases = [modes[name]["steps_per_second"] for name in MODES[:2] if name in modes]
    base = max(bases, default=None)
    rounds = len(next(iter(modes.values()))["runs"])
    print(f"\n{case}: env steps/s per policy, median of {rounds}; {CASES[case][0]}")
    per_row = Limiter.of(case_settings(case, "sequential", 1)[0]).samples_per_insert
    print(f"  {per_row:g} samples per inserted transition")
    for mode, found in modes.items():
        ratio = f"{found['steps_per_second'] / base:5.2f} x sequential" if base else ""
        updates = statistics.mean(run["updates"] for run in found["runs"])
        verdict = ""
        if mode == "processes" and base:
            met = found["steps_per_second"] >= TARGET * base
            verdict = f"target {TARGET}: {'met' if met else 'MISSED'}"
        line = f"  {mode:11} {found['steps_per_second']:>11,.0f} {ratio}  {verdict}"
        print(f"{line}  ({updates:.2f} updates per cycle)")
    runs = [run["shares"] for run in modes.get("processes", {}).get("runs", [])]
    for name in runs[0] if runs else ():
        working, waiting, moving = np.median([run[name] for run in runs], 0)
        what = "acting" if name.startswith("actor") else "learning"
        print(f"    {name:11} {what} {working:.0%}, waiting {waiting:.0%}, moving {moving:.0%}")


if __name__ == "__main__":
    main()
