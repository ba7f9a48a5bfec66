"""Healthy runs, short ones of every preset and agent in several modes: is the doctor quiet?

    python bench/healthy.py --out bench/out/healthy
    python bench/healthy.py --out bench/out/healthy --only tmaze --again

Every run is trained and examined by the commands that anybody would use, in processes of their own.
What was found is kept in `found.jsonl`; a run that is in it is not examined again unless --again.
The runs themselves are kept: --train only trains those that are missing, so that all of them can be
examined later, by checks that have changed since.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

OFTEN = (
    "--eval-episodes 64 --log-every {log} --eval-every {half} --checkpoint-every {half} "
    "--resume-every {half}"
)
CPU_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


class Healthy(NamedTuple):
    """One run: `Healthy("tmaze", "pqn", "fused", 20_000)`."""

    env: str
    agent: str
    mode: str
    steps: int
    more: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.env, self.agent, self.mode, self.more]))

    @property
    def folder(self) -> str:
        """A name for its folder."""
        return re.sub(r"[^\w.-]+", "-", self.name)

    @property
    def plain(self) -> str:
        """What was asked for, without how often it evaluates and saves."""
        asked = f"train {self.env} --agent {self.agent} --mode {self.mode} --steps {self.steps}"
        return f"{asked} {self.more}".strip()

    def command(self, folder: Path) -> list[str]:
        often = OFTEN.format(log=max(1, self.steps // 10), half=self.steps // 2)
        return [*self.plain.split(), *often.split(), "--run", str(folder)]


# The preset is made for 10M steps; so short a run learns more from each rollout, and faster.
MINATAR_PQN = "--pqn.epochs 4 --pqn.optimizer.rate.start 1e-3"
RUNS = (
    Healthy("treasurehunt-small", "dqn", "fused", 40_000),
    Healthy("treasurehunt-small", "iqn", "fused", 20_000),
    Healthy("treasurehunt-small", "pqn", "fused", 60_000),
    Healthy("treasurehunt-small", "qlambda", "fused", 120_000),
    Healthy("treasurehunt-small", "dqn", "sequential", 40_000),
    Healthy("treasurehunt-small", "dqn", "lockstep", 20_000),
    Healthy("treasurehunt-small", "dqn", "processes", 40_000),
    Healthy("treasurehunt-small", "pqn", "sequential", 40_000),
    Healthy("treasurehunt-small", "dqn", "fused", 40_000, "--sampler prioritized"),
    Healthy("treasurehunt-small", "dqn", "sequential", 40_000, "--replay host"),
    Healthy("treasurehunt", "dqn", "fused", 40_000),
    Healthy("treasurehunt", "pqn", "fused", 60_000),
    Healthy("staghunt", "pqn", "fused", 200_000),
    Healthy("staghunt", "dqn", "fused", 150_000, "--dqn.updates 4 --dqn.gamma 0.8"),
    Healthy("pendulum", "td3", "sequential", 6_000),
    Healthy("tmaze", "pqn", "fused", 60_000),
    Healthy("tmaze", "qlambda", "fused", 40_000),
    Healthy("tmaze", "dqn", "fused", 40_000),
    Healthy("pendulum", "sac", "fused", 6_000),
    Healthy("pendulum", "td3", "fused", 6_000),
    Healthy("pendulum", "sac", "sequential", 6_000),
    Healthy("pendulum", "td3", "processes", 6_000),
    Healthy("gym:CartPole-v1", "dqn", "sequential", 16_000),
    Healthy("gym:CartPole-v1", "iqn", "sequential", 12_000),
    Healthy("gym:CartPole-v1", "pqn", "sequential", 40_000, "--envs 32"),
    Healthy("gym:CartPole-v1", "dqn", "processes", 16_000),
    Healthy("gym:Pendulum-v1", "sac", "sequential", 6_000),
    Healthy("gym:Pendulum-v1", "td3", "sequential", 6_000),
    Healthy("gym:MountainCarContinuous-v0", "sac", "sequential", 12_000),
    Healthy("gym:Acrobot-v1", "dqn", "sequential", 20_000),
    Healthy("minatar/breakout", "pqn", "fused", 150_000, MINATAR_PQN),
    Healthy("minatar/space_invaders", "dqn", "fused", 100_000),
    Healthy("minatar/asterix", "pqn", "fused", 500_000, MINATAR_PQN),
    Healthy("gym:CartPole-v1", "dqn", "sequential", 16_000, "--sampler prioritized"),
    Healthy("minatar/freeway", "pqn", "fused", 500_000, MINATAR_PQN),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench/out/healthy"))
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--again", action="store_true", help="also runs that were examined")
    parser.add_argument("--train", action="store_true", help="only train what is missing")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one command")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "found.jsonl"
    found = {line["name"]: line for line in _lines(kept)}
    for run in RUNS:
        if options.only not in run.name:
            continue
        if options.train:
            why = trained(run, options.out / run.folder, options.limit)
            print(f"{run.name}: {why or 'trained'}", file=sys.stderr, flush=True)
            continue
        if run.name in found and not options.again:
            continue
        found[run.name] = examine(run, options.out / run.folder, options.limit)
        with kept.open("a") as file:
            file.write(json.dumps(found[run.name]) + "\n")
        print(_row(found[run.name]), file=sys.stderr, flush=True)
    if not options.train:
        show([found[run.name] for run in RUNS if run.name in found])


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def examine(run: Healthy, folder: Path, limit: float) -> dict:
    """Train it, unless it is there, and ask the doctor."""
    about = dict(name=run.name, command=run.plain)
    if why := trained(run, folder, limit):
        return dict(**about, ended=why)
    said = _command(["doctor", str(folder), "--json", "--seconds", str(limit)], limit)
    try:
        verdicts = json.loads(said.stdout)
    except ValueError:
        return dict(**about, ended=said.stderr.strip()[-200:])
    fired = [
        f"{one['name']}: {one['message']}" for one in verdicts if one["state"] in ("red", "yellow")
    ]
    (learned,) = [one["evidence"] for one in verdicts if one["name"] == "learning"]
    green = sum(one["state"] == "green" for one in verdicts)
    return dict(
        **about, ended="", fired=fired, green=green,
        greedy=learned.get("greedy"), random=learned.get("random"),
    )  # fmt: skip


def trained(run: Healthy, folder: Path, limit: float) -> str:
    """Train it, unless it is there; returns why it failed, or nothing."""
    if _finished(folder):
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    done = _command(run.command(folder), limit)
    why = (done.stderr or done.stdout).strip().splitlines()[-1:] if done.returncode else []
    return " ".join(why)[:200]


def _finished(folder: Path) -> bool:
    """Whether it was trained to its end; one that was stopped is trained again."""
    status = folder / "status.json"
    return status.exists() and json.loads(status.read_text())["state"] == "finished"


def _command(args: list[str], limit: float) -> subprocess.CompletedProcess:
    """What a command printed; one that takes too long has failed."""
    environment = {"XLA_FLAGS": CPU_FLAGS, "OPENBLAS_NUM_THREADS": "1", **os.environ}
    whole = [sys.executable, "-m", "millpond", *args]
    try:
        return subprocess.run(
            whole, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(whole, 1, "", f"not done within {limit:g} s")


def _row(line: dict) -> str:
    if line["ended"]:
        return f"| `{line['command']}` | did not finish: {line['ended']} | | |"
    said = "; ".join(line["fired"]) or "quiet"
    scores = "" if line["random"] is None else f"{line['greedy']:.4g} / {line['random']:.4g}"
    return f"| `{line['command']}` | {said} | {line['green']} | {scores} |"


def show(lines: list[dict]) -> None:
    """A table for docs/doctor.md."""
    print("| millpond ... | found | green | greedy / random return |\n|---|---|---|---|")
    for line in lines:
        print(_row(line))
    quiet = sum(not line["ended"] and not line["fired"] for line in lines)
    print(f"\n{quiet} of {len(lines)} quiet")


if __name__ == "__main__":
    main()
