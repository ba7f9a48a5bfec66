"""Sequences of 64 rows against the peers: one command, one pinned core, one table and JSON.

    python bench/sequences.py                          # everything: about a quarter of an hour
    python bench/sequences.py --only ours floor        # while working on ours

Every library runs in a process and an environment of its own, and the workers take turns in several
rounds; the median of the rounds counts. The Lake stores a part of the play that `lake.py` records.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake import RECORDINGS, record
from lake_table import GAMES
from peers import PEERS, Unavailable
from replay import WARM_HEAP, Source, machine, merge
from rich.console import Console
from rich.table import Table

BENCH = Path(__file__).parent
WORKER_LIMIT_S = 900
STEPS = "256"  # of each of the Lake's 512 streams
# Worker, and the peer in whose environment it runs; none: ours.
WORKERS = {
    "ours": "",
    "floor": "",
    "flashbax": "flashbax",
    "torchrl": "torchrl",
    "qlambda": "",
    "lake": "",
    "memmap": "torchrl",
}
ON_DISK = ("lake", "memmap")


@dataclass(frozen=True)
class Row:
    """`ours` beside `others`; a target is a bound of the ratio to the best of them.

    The ratio says how many times as fast ours is, or with `floors` how many times as long it takes.
    """

    title: str
    ours: tuple[str, str]  # worker, key
    others: tuple[tuple[str, str], ...]
    target: float
    floors: bool = False
    rate: bool = False  # more is better


def _rows() -> list[Row]:
    rows: list[Row] = []
    for kind in ("vector", "pixels"):
        for where, who in (("host", ("flashbax", "torchrl")), ("jit", ("flashbax",))):
            key = f"{kind}_{where}"
            ours, store = ("ours", key), "HostPond" if where == "host" else "Pond in jit"
            peers = tuple((name, key) for name in who)
            rows.append(Row(f"{kind}, {store}: against the peers", ours, peers, 1.0))
            floor = (("floor", key),)
            rows.append(Row(f"{kind}, {store}: against the floor", ours, floor, 1.3, floors=True))
    bare = (("qlambda", "qlambda_bare"),)
    rows.append(
        Row("an update of qlambda: against a bare one", ("qlambda", "qlambda_ours"), bare, 0.8)
    )
    for part in ("warm", "cold"):
        slices = (("memmap", f"slices_{part}"), ("memmap", f"index_{part}"))
        title = f"Lake, compressed, {part}: against memmap slices"
        rows.append(Row(title, ("lake", f"lake_{part}"), slices, 1.0, rate=True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(WORKERS), default=tuple(WORKERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=BENCH / "out" / "sequences.json")
    args = parser.parse_args()

    failed: dict[str, str] = {}
    if any(name in ON_DISK for name in args.only):
        record(failed, GAMES[:1])
    pythons = environments(args.only, failed)
    source = Source()
    runs: dict[str, list[dict[str, Any]]] = {}
    for round_ in range(1, args.rounds + 1):
        for name, python in pythons.items():
            print(f"round {round_} of {args.rounds}: {name}", flush=True)
            try:
                runs.setdefault(name, []).append(run_worker(name, python, args.core))
            except RuntimeError as error:
                failed[name] = str(error)
                print(f"  {error}", flush=True)
    merged = {name: merge(cards) for name, cards in runs.items()}
    lines = [line for row in _rows() if (line := judge(row, merged))]
    show(lines, merged)
    for name, reason in failed.items():
        print(f"{name}: not available: {reason}")
    report = {
        **source.about(),
        "machine": machine(),
        "rounds": args.rounds,
        "versions": {name: cards[0]["versions"] for name, cards in runs.items() if cards},
        "not_available": failed,
        "summary": lines,
        "rows": merged,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    if report["changed_while_running"]:
        print("the source changed while this ran: ours is a mixture, run it again")
    print(f"written to {os.path.relpath(args.out)}")


def environments(names: list[str], failed: dict[str, str]) -> dict[str, Path]:
    """The interpreter of every worker; `failed` says why the others have none."""
    peers, pythons = {peer.name: peer for peer in PEERS}, dict[str, Path]()
    for name in names:
        try:
            home = WORKERS[name]
            pythons[name] = peers[home].python() if home else Path(sys.executable)
        except Unavailable as error:
            failed[name] = str(error)
    return pythons


def run_worker(name: str, python: Path, core: int) -> dict[str, Any]:
    """The card that a worker prints on its last line, or RuntimeError with the reason."""
    store = BENCH / "out" / f"store-sequences-{name}"
    env = {**os.environ, **WARM_HEAP, "BENCH_CORE": str(core), "BENCH_STEPS": STEPS}
    words = [GAMES[0], str(RECORDINGS / GAMES[0]), str(store)] if name in ON_DISK else []
    command = [str(python), "-W", "ignore", "-m", f"workers.sequences.{name}", *words]
    limits = dict(capture_output=True, text=True, timeout=WORKER_LIMIT_S)
    try:
        done = subprocess.run(command, cwd=BENCH, env=env, **limits)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {WORKER_LIMIT_S} s") from error
    finally:
        shutil.rmtree(store, ignore_errors=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {last[0]}")
    return json.loads(lines[-1])


def judge(row: Row, cards: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The row with what was measured; None if ours or all others are missing."""

    def value(where: tuple[str, str]) -> float | None:
        return cards.get(where[0], {}).get(where[1], {}).get("value")

    ours = value(row.ours)
    found = {"/".join(where): value(where) for where in row.others}
    others = {name: one for name, one in found.items() if one is not None}
    if ours is None or not others:
        return None
    best = (max if row.rate else min)(others.values())
    ratio = ours / best if row.floors or row.rate else best / ours
    met = ratio <= row.target if row.floors else ratio >= row.target
    bound = f"{'≤' if row.floors else '≥'} {row.target:g}"
    verdict = "met" if met else "MISSED"
    about = dict(title=row.title, ours=ours, others=others, ratio=ratio)
    return {**about, "target": bound, "verdict": verdict}


def show(lines: list[dict[str, Any]], cards: dict[str, dict[str, Any]]) -> None:
    """Print the table, then notes and reasons."""
    title = "32 sequences of 64 rows: CPU µs a call or update on one core; from disk rows/s"
    table = Table(title=title)
    for head in ("what", "ours", "others", "ratio", "target", "verdict"):
        table.add_column(head, justify="left" if head in ("what", "others") else "right")
    for line in lines:
        others = ", ".join(f"{name} {_number(one)}" for name, one in line["others"].items())
        known = (line["title"], _number(line["ours"]), others, f"{line['ratio']:.2f}")
        table.add_row(*known, line["target"], line["verdict"])
    console = Console(width=150)
    console.print(table)
    for name, rows in cards.items():
        for key, row in rows.items():
            if row["value"] is None:
                said = f"none; {row['reason']}"
            else:
                rounds = ", ".join(_number(one) for one in row["rounds"] if one is not None)
                said = f"{_number(row['value'])} ({rounds}) {row['note']}"
            console.print(f"{name}: {key}: {said}", markup=False, highlight=False)


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
