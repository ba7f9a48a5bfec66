"""Rows between two processes against the peers: one command, one table and JSON.

    python bench/channel.py                    # everything: about five minutes
    python bench/channel.py --only ours --seconds 2

One process writes 64 transitions of 264 B at a time, another samples batches of 256. What is
sampled is audited first: see `workers/channel/task.py`. The libraries take turns in rounds, and the
best half second of each counts, the median beside it: both processes need a core for themselves,
and what else runs on the machine only ever slows them down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import PEERS, Unavailable
from replay import WARM_HEAP, Source, machine, merge
from rich.console import Console
from rich.table import Table

BENCH = Path(__file__).parent
WORKER_LIMIT_S = 300
NAMES = ("ours", "cpprb", "torchrl")
TITLES = {
    "ours": "millpond, rows of 264 B",
    "ours_once": "millpond, the same transitions",
    "cpprb": "cpprb MPReplayBuffer",
    "torchrl": "TorchRL, shared storage",
}
TARGETS = {"written": 1e6, "sampled": 0.9e6}  # rows/s of ours; and no row torn or blank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="timed seconds per round")
    parser.add_argument("--out", type=Path, default=BENCH / "out" / "channel.json")
    args = parser.parse_args()

    pythons, failed = environments(args.only)
    source = Source()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}
    for round_ in range(1, args.rounds + 1):
        for name, python in pythons.items():
            print(f"round {round_} of {args.rounds}: {name}", flush=True)
            try:
                runs[name].append(run_worker(name, python, args.seconds))
            except RuntimeError as error:
                failed[name] = str(error)
                print(f"  {error}", flush=True)
    merged = {name: total(cards) for name, cards in runs.items() if cards}
    rows = {key: row for card in merged.values() for key, row in card.items()}
    verdicts = judge(rows)
    show(rows, verdicts)
    for name, reason in failed.items():
        print(f"{name}: not available: {reason}")
    report = {
        **source.about(),
        "machine": machine() | {"load": os.getloadavg()},
        "rounds": args.rounds,
        "seconds": args.seconds,
        "versions": {name: cards[0]["versions"] for name, cards in runs.items() if cards},
        "not_available": failed,
        "summary": verdicts,
        "rows": merged,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {os.path.relpath(args.out)}")


def environments(names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """The interpreter of every worker, and why the others have none."""
    pythons = {name: Path(sys.executable) for name in names if name == "ours"}
    failed: dict[str, str] = {}
    for peer in PEERS:
        if peer.name in names:
            try:
                pythons[peer.name] = peer.python()
            except Unavailable as error:
                failed[peer.name] = str(error)
    return pythons, failed


def run_worker(name: str, python: Path, seconds: float) -> dict[str, Any]:
    """The card that worker `name` prints on its last line, or RuntimeError with the reason."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    env = {**os.environ, **WARM_HEAP, "BENCH_CORES": cores, "BENCH_SECONDS": str(seconds)}
    command = [str(python), "-W", "ignore", "-m", f"workers.channel.{name}"]
    try:
        done = subprocess.run(
            command, cwd=BENCH, env=env, capture_output=True, text=True, timeout=WORKER_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {WORKER_LIMIT_S} s") from error
    last = done.stderr.strip().splitlines()[-1:] or ["no output"]
    if done.returncode or not done.stdout:
        raise RuntimeError(f"exit status {done.returncode}: {last[0]}")
    card = json.loads(done.stdout.splitlines()[-1])
    if all(row["value"] is None for row in card["rows"].values()):
        raise RuntimeError(last[0])
    return card


def total(cards: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each figure's best round, the median of medians; of what the audits counted, the sum."""
    merged = merge(cards)
    for key, row in merged.items():
        values = [value for value in row["rounds"] if value is not None]
        if key.endswith(("_checked", "_torn", "_blank")):
            row["value"] = sum(values)
        elif values and "_median_" not in key:
            row["value"] = (min if key.endswith("_us") else max)(values)
    return merged


def judge(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours against the targets."""
    lines: list[dict[str, Any]] = []
    for key in ("ours", "ours_once"):
        if f"{key}_written" not in rows:
            continue
        # The medians are judged too: the best half second alone would hide a miss.
        medians = {f"median_{part}": target for part, target in TARGETS.items()}
        for part, target in (*TARGETS.items(), *medians.items(), ("torn", 0), ("blank", 0)):
            value = rows[f"{key}_{part}"]["value"]
            met = value is not None and (value >= target if target else value == 0)
            verdict = "met" if met else "MISSED"
            lines.append({"key": f"{key}_{part}", "value": value, "target": target})
            lines[-1]["verdict"] = verdict
    return lines


def show(rows: dict[str, dict[str, Any]], verdicts: list[dict[str, Any]]) -> None:
    """Print the table and the verdicts."""
    table = Table(title="two processes: 64 x 264 B per write, batches of 256")
    heads = ("library", "written krows/s", "sampled krows/s", "medians", "CPU µs per write")
    heads += ("CPU µs per 64 sampled", "samples checked", "torn", "never written")
    for head in heads:
        table.add_column(head, justify="left" if head == "library" else "right")
    for key, title in TITLES.items():
        if rows.get(f"{key}_written", {}).get("value") is None:
            continue

        def value(part: str, scale: float = 1, key: str = key) -> str:
            return f"{rows[f'{key}_{part}']['value'] * scale:,.0f}"

        rates = value("written", 1e-3), value("sampled", 1e-3)
        medians = f"{value('median_written', 1e-3)} / {value('median_sampled', 1e-3)}"
        cpu = value("writer_us"), value("reader_us")
        table.add_row(title, *rates, medians, *cpu, value("checked"), value("torn"), value("blank"))
    console = Console(width=140)
    console.print(table)
    console.print(
        "CPU of millpond's reader includes adding; the peers' writers do that themselves."
    )
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    console.print(f"load average at the end: {load} on {os.cpu_count()} cores", highlight=False)
    for line in verdicts:
        number = "none" if line["value"] is None else f"{line['value']:,.0f}"
        bound = f"≥ {line['target']:,.0f}" if line["target"] else "0"
        text = f"{line['key']}: {number}, target {bound}: {line['verdict']}"
        console.print(text, markup=False, highlight=False)


if __name__ == "__main__":
    main()
