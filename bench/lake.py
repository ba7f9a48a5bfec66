"""Replay on disk against its peers and against what memory and disk allow: one command, one table.

    python bench/lake.py                     # everything: about a quarter of an hour
    python bench/lake.py --only ours limits --small

Real Atari play is recorded once into `out/recordings`. Every library runs in a process and an
environment of its own on one pinned core, stores the same play, is read warm and cold, and deletes
what it stored. The workers take turns in several rounds; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lake_table import GAMES, judge, show
from peers import PEERS, Peer, Unavailable
from replay import WARM_HEAP, Source, machine, merge

BENCH = Path(__file__).parent
RECORDINGS = BENCH / "out" / "recordings"
WORKER_LIMIT_S = 900
RECORDED = 512  # steps per stream; see workers.lake.frames
SMALL = {"BENCH_STEPS": "128", "BENCH_MANY_ROWS": str(8 * 2**20)}
RECORDER = Peer("ale", (("ale-py==0.12.1", "gymnasium==1.4.0", "numpy"),))
DISK_PEERS = (
    *(peer for peer in PEERS if peer.name == "torchrl"),
    Peer("lmdb", (("lmdb==3.0.0", "numpy"),)),
    Peer("tensorstore", (("tensorstore==0.1.86",),)),
)
VAULT = "vault"  # in the environment of tensorstore
OWN = ("ours", "limits", "growth")
# What frames show makes no difference to them, or they are too slow to be run twice.
ONE_GAME = ("limits", "growth", "torchrl", "lmdb", VAULT)
ONCE = ("growth", VAULT)  # not in every round: one takes its own turns, one is far behind


def main() -> None:
    names = (*OWN, *(peer.name for peer in DISK_PEERS), VAULT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a quarter of the frames, once")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=BENCH / "out" / "lake.json")
    args = parser.parse_args()
    begin = time.perf_counter()

    failed: dict[str, str] = {}
    games = record(failed)
    pythons = environments(args.only, failed)
    source = Source()
    runs: dict[str, list[dict[str, Any]]] = {}
    rounds = 1 if args.small else args.rounds
    for round_ in range(1, rounds + 1):
        for name, python in pythons.items():
            for game in games[:1] if name in ONE_GAME else games:
                if name in ONCE and round_ > 1:
                    continue
                what = f"{name} {game}"
                print(f"round {round_} of {rounds}: {what}", flush=True)
                try:
                    card = run_worker(name, game, python, args.core, args.small)
                    runs.setdefault(what, []).append(card)
                except RuntimeError as error:
                    failed[what] = str(error)
                    print(f"  {error}", flush=True)
    merged = {what: merge(cards) for what, cards in runs.items()}
    lines = judge(merged)
    show(lines, merged)
    for what, reason in failed.items():
        print(f"{what}: not available: {reason}")
    report = {
        **source.about(),
        "machine": machine(),
        "rounds": rounds,
        "small": args.small,
        "minutes": (time.perf_counter() - begin) / 60,
        "versions": {what: cards[0]["versions"] for what, cards in runs.items()},
        "not_available": failed,
        "summary": lines,
        "rows": merged,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    if report["changed_while_running"]:
        print("the source changed while this ran: ours is a mixture, run it again")
    print(f"written to {os.path.relpath(args.out)} after {report['minutes']:.1f} minutes")


def record(failed: dict[str, str], wanted: tuple[str, ...] = GAMES) -> list[str]:
    """The games whose recordings are there, made now if they are missing."""
    games: list[str] = []
    for game in wanted:
        folder = RECORDINGS / game
        if not (folder / "frames.npy").exists():
            print(f"recording {game}", flush=True)
            try:
                python = RECORDER.python()
                _run(python, "record", [game, str(folder), str(RECORDED)], {})
            except (Unavailable, RuntimeError) as error:
                failed[f"recording {game}"] = str(error)
                shutil.rmtree(folder, ignore_errors=True)
                continue
        games.append(game)
    return games


def environments(names: list[str], failed: dict[str, str]) -> dict[str, Path]:
    """The interpreter of every worker; `failed` says why the others have none."""
    pythons = {name: Path(sys.executable) for name in OWN if name in names}
    for peer in DISK_PEERS:
        wanted = [peer.name, VAULT] if peer.name == "tensorstore" else [peer.name]
        wanted = [name for name in wanted if name in names]
        if wanted:
            try:
                pythons |= dict.fromkeys(wanted, peer.python())
            except Unavailable as error:
                failed |= dict.fromkeys(wanted, str(error))
    return pythons


def run_worker(name: str, game: str, python: Path, core: int, small: bool) -> dict[str, Any]:
    """The card that worker `name` prints on its last line, or RuntimeError with the reason."""
    store = BENCH / "out" / f"store-{name}"
    env = {**WARM_HEAP, "BENCH_CORE": str(core), **(SMALL if small else {})}
    try:
        lines = _run(python, name, [game, str(RECORDINGS / game), str(store)], env)
        return json.loads(lines[-1])
    except (json.JSONDecodeError, IndexError) as error:
        raise RuntimeError("printed no card") from error
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _run(python: Path, name: str, words: list[str], env: dict[str, str]) -> list[str]:
    """What a worker prints; as a module, because `lmdb` beside it is a worker too."""
    command = [str(python), "-W", "ignore", "-m", f"workers.lake.{name}", *words]
    try:
        done = subprocess.run(
            command,
            cwd=BENCH,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=WORKER_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {WORKER_LIMIT_S} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {last[0]}")
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
