"""The comparison of docs/mixture.md, every arm in a process of its own: several share one GPU.

    python bench/mixture_study.py tune --frames 1e7 --seeds 3 --games breakout space_invaders
    python bench/mixture_study.py tune --only A2 B8 --jobs 2     # some of the arms
    python bench/mixture_study.py tune --pairs asterix-D8 freeway-A2    # in this order

Arms are those of `millpond compare`. What is finished is in OUT/GAME-ARM.json and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

CONSTANT = "pqn.optimizer.rate.shape=constant"
# Six trials of each arm; A6 has about as many row updates as B8.
TUNE = {
    "A2": "single",
    "A4": "single pqn.epochs=4",
    "A6": "single pqn.epochs=6",
    "A2c": f"single {CONSTANT}",
    "A4c": f"single pqn.epochs=4 {CONSTANT}",
    "A6c": f"single pqn.epochs=6 {CONSTANT}",
    "C2": "apart envs=128",
    "C4": "apart envs=128 pqn.epochs=4",
    "C6": "apart envs=128 pqn.epochs=6",
    "C2c": f"apart envs=128 {CONSTANT}",
    "C4c": f"apart envs=128 pqn.epochs=4 {CONSTANT}",
    "C6c": f"apart envs=128 pqn.epochs=6 {CONSTANT}",
}
_FIRST = "big.init=best_agent"  # before agents were averaged and shared the envs of one
_B, _D = f"mixture envs=128 updates=152 {_FIRST}", f"alone updates=608 {_FIRST}"
_W = "qlambda.trace=watkins"
for _name, _kind in (("B", _B), ("D", _D)):
    TUNE |= {
        f"{_name}8": _kind,
        f"{_name}8w": f"{_kind} {_W}",
        f"{_name}8c": f"{_kind} {CONSTANT}",
        f"{_name}8wc": f"{_kind} {_W} {CONSTANT}",
        f"{_name}8a": f"{_kind} big.choice=uniform",
        f"{_name}16": f"{_kind} big.minibatches_per_1k=16",
    }
# Sixteen cycles; e32: 32 envs for each of the agents, which together have as many as one agent.
_WIDE = "mixture envs=128 updates=38"
_AVERAGE = "big.init=best_or_average"
_SMALL = "mixture envs=32 updates=152"
MORE = {
    "B8-c16": f"{_WIDE} {_FIRST}",
    "B8w-c16": f"{_WIDE} {_FIRST} {_W}",
    "B8wc-c16": f"{_WIDE} {_FIRST} {_W} {CONSTANT}",
    "D8-c16": f"alone updates=152 {_FIRST}",
    "B8-avg": f"{_WIDE} {_AVERAGE}",
    "B8-ann": f"{_WIDE} {_FIRST} big.anneal=true",
    "B8-avg-ann": f"{_WIDE} {_AVERAGE} big.anneal=true",
    "D8-ann": f"alone updates=152 {_FIRST} big.anneal=true",
    "B8-e32": f"{_SMALL} {_FIRST}",
    "B8-e32-avg": f"{_SMALL} {_AVERAGE}",
    "B8-e32-avg-r2": f"{_SMALL} {_AVERAGE} pqn.optimizer.rate.start=2e-4",
    "B8-e32-avg-r1": f"{_SMALL} {_AVERAGE} pqn.optimizer.rate.start=1e-4",
    "A2-e32": "single envs=32",
    "B8-e32-dis": f"{_SMALL} {_AVERAGE} big.distill=0.25",
    "B8-e8-avg": f"mixture envs=8 updates=608 {_AVERAGE}",  # as many gradient steps as A2-e32
    "D8-e32": f"alone envs=32 updates=608 {_FIRST}",
    "A2-e16": "single envs=16",
    "A2-r2": "single pqn.optimizer.rate.start=2e-4",
    "A2h": "single pqn.optimizer.rate.start=1e-3",
}
SETS = {"tune": TUNE, "more": TUNE | MORE}
# Of no influence on what is learned: how often is evaluated, logged and saved.
COMMON = {
    "pond": "32768",
    "checkpoint_updates": "100000",
    "resume_updates": "100000",
    "checkpoint_every": "1000000000",
    "resume_every": "1000000000",
    "log_every": "200000",
}


def one(game: str, name: str, text: str, options: argparse.Namespace) -> None:
    """Run one arm and write what came of it."""
    from millpond.compare.arms import make_arm
    from millpond.compare.study import Study

    frames = int(float(options.frames))
    common = COMMON | {"eval_every": str(frames // 2), "eval_updates": "100000"}
    common |= dict(pair.split("=", 1) for pair in options.set)
    arm = make_arm(f"{name}={text}", f"minatar/{game}", frames, common)
    folder = options.out / "runs" / f"{game}-{name}"
    study = Study.open(folder, [arm], arm.settings.env, frames, options.seeds, 0, 0)
    began = time.perf_counter()
    found = study.go()["arms"][0]
    found["seconds"] = time.perf_counter() - began
    speed = next(folder.glob("arms/*/*/speed.jsonl"))
    phases = [json.loads(line) for line in speed.read_text().splitlines()]
    found["phases"] = {k: v for k, v in phases[-1].items() if k in ("seconds", "share")}
    found["game"], found["seeds"] = game, options.seeds
    (options.out / f"{game}-{name}.json").write_text(json.dumps(found))
    shutil.rmtree(folder)


def show(out: Path) -> None:
    """All that is finished, one line each."""
    for file in sorted(out.glob("*-*.json")):
        arm = json.loads(file.read_text())
        agents, big = arm.get("agents_mean"), arm.get("big_mean")
        more = f"agents {agents:7.1f}  BigAgent {big:7.1f}" if big is not None else ""
        scores = " ".join(f"{score:.1f}" for score in arm["scores"])
        print(
            f"{file.stem:24} mean {arm['mean']:7.1f}  {more:36} {arm['seconds']:5.0f} s  "
            f"{arm['row_updates'] / 1e6:6.0f}M rows  [{scores}]"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", choices=SETS)
    parser.add_argument("--games", nargs="+", default=["breakout"])
    parser.add_argument("--frames", default="1e7")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--pairs", nargs="+", help="GAME-ARM, instead of --games and --only")
    parser.add_argument("--set", nargs="+", default=[], help="KEY=VALUE of every arm that has it")
    parser.add_argument("--jobs", type=int, default=1, help="arms at the same time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; begun arms are stopped")
    parser.add_argument("--out", type=Path, default=Path("bench/out/mixture"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    arms = SETS[options.arms]
    if options.one:
        game, name = options.one
        one(game, name, arms[name], options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    pairs = [(game, name) for name in (options.only or arms) for game in options.games]
    if options.pairs:
        pairs = [(game, name) for game, _, name in (pair.partition("-") for pair in options.pairs)]
    wanted = deque(
        (game, name) for game, name in pairs if not (options.out / f"{game}-{name}.json").exists()
    )
    share = f"{0.9 / options.jobs:.3f}"
    env = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": share}
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    end = time.monotonic() + options.limit
    while (wanted or running) and time.monotonic() < end:
        while wanted and len(running) < options.jobs:
            game, name = wanted.popleft()
            command = [sys.executable, *sys.argv, "--one", game, name]
            log = (options.out / f"{game}-{name}.log").open("wb")
            child = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
            running.append((f"{game}-{name}", child))
        for pair in list(running):
            if pair[1].poll() is not None:
                running.remove(pair)
                print(f"{pair[0]}: {'done' if pair[1].returncode == 0 else 'FAILED'}", flush=True)
        time.sleep(0.2)
    for _, child in running:
        child.kill()
    show(options.out)
    found = [json.loads(file.read_text()) for file in sorted(options.out.glob("*-*.json"))]
    (options.out / "study.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
