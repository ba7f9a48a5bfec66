"""Replay against its peers: one command, the same work, one pinned core, one table and JSON.

    python bench/replay.py                        # everything: about ten minutes
    python bench/replay.py --workers ours floor   # while working on ours

Every library runs in a process and an environment of its own; see `workers`. The workers take
turns in several rounds, and the median of the rounds' medians counts: a slow minute of the machine
must not hit one library alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from peers import PEERS, Unavailable
from table import judge, show

BENCH = Path(__file__).parent
WORKER_LIMIT_S = 900
# Batches that a library allocates anew stay in its heap, in one arena. Otherwise each sample pays
# for fresh pages or not depending on what the heap looked like before: up to 3x on 14 MB batches.
WARM_HEAP = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_ARENA_MAX": "1",
}


def main() -> None:
    names = ("ours", "floor", *(peer.name for peer in PEERS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=BENCH / "out" / "replay.json")
    args = parser.parse_args()

    pythons, failed = environments(args.workers)
    source = Source()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.workers}
    for round_ in range(1, args.rounds + 1):
        for name, python in pythons.items():
            print(f"round {round_} of {args.rounds}: {name}", flush=True)
            try:
                runs[name].append(run_worker(name, python, args.core))
            except RuntimeError as error:
                failed[name] = str(error)
                print(f"  {error}", flush=True)
    report = {
        **source.about(),
        "machine": machine(),
        "rounds": args.rounds,
        "versions": {name: cards[0]["versions"] for name, cards in runs.items() if cards},
        "not_available": failed,
    }
    merged = {name: merge(cards) for name, cards in runs.items()}
    lines = judge(merged)
    show(lines, merged)
    for name, reason in failed.items():
        print(f"{name}: not available: {reason}")
    report |= {"summary": [line.to_json() for line in lines], "rows": merged}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    if report["changed_while_running"]:
        print("the source changed while this ran: ours is a mixture, run it again")
    print(f"written to {os.path.relpath(args.out)}")


def environments(names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """The interpreter of every worker, and why the others have none."""
    pythons = {name: Path(sys.executable) for name in names if name in ("ours", "floor")}
    failed: dict[str, str] = {}
    for peer in PEERS:
        if peer.name not in names:
            continue
        try:
            pythons[peer.name] = peer.python()
        except Unavailable as error:
            failed[peer.name] = str(error)
    return pythons, failed


def run_worker(name: str, python: Path, core: int) -> dict[str, Any]:
    """The card that worker `name` prints on its last line, or RuntimeError with the reason."""
    env = {**os.environ, **WARM_HEAP, "BENCH_CORE": str(core)}
    # As a module: a script's own folder comes first on the path, and there `flashbax` is a worker.
    command = [str(python), "-W", "ignore", "-m", f"workers.{name}"]
    try:
        done = subprocess.run(
            command, cwd=BENCH, env=env, capture_output=True, text=True, timeout=WORKER_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {WORKER_LIMIT_S} s") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {last[0]}")
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError as error:
        raise RuntimeError(f"printed no card: {lines[-1][:100]}") from error


def merge(cards: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per row the median over the rounds that have a value, and what each round said."""
    merged: dict[str, dict[str, Any]] = {}
    for card in cards:
        for key, row in card["rows"].items():
            merged.setdefault(key, {"rounds": []}).update(row)
            merged[key]["rounds"].append(row["value"])
    for row in merged.values():
        values = [value for value in row["rounds"] if value is not None]
        row["value"] = statistics.median(values) if values else None
        row.setdefault("note", "")
    return merged


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "jax": metadata.version("jax"),
    }


class Source:
    """The code that is measured, as it was when this was made."""

    def __init__(self) -> None:
        self._state = self._look()

    def about(self) -> dict[str, Any]:
        """Where a result comes from, and whether the code changed while it was measured."""
        commit, changes = self._state
        return {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "uncommitted_changes": bool(changes),
            "changed_while_running": self._state != self._look(),
        }

    @staticmethod
    def _look() -> tuple[str, str]:
        return git("rev-parse", "HEAD"), git("diff", "HEAD", "--", "src", "bench")


def git(*words: str) -> str:
    """What git says about this tree, or nothing outside a repository."""
    done = subprocess.run(["git", *words], cwd=BENCH, capture_output=True, text=True)
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
