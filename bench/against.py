"""Two checkouts in turn: what an env step costs in every kind of crew, and a row in a channel.

    git worktree add ../before 956fa30
    python bench/against.py ../before --rounds 5

Each run is a process of its own with one checkout's package and its own `bench/processes.py`. CPU
time is that of the run and of all processes that it started, after everything is compiled. Other
programs only ever add to it, so the least of all rounds counts. A ratio above 1 means that this
checkout is the faster one; how far apart two runs in turn were says how much it means.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
TREASURE, ATARI = "treasurehunt-small", "atari/gravitar, 8 envs"
# A case of bench/processes.py and a mode; cycles before and while measuring.
RUNS = {
    "sequential": (TREASURE, "sequential", 60, 200),
    "processes": (TREASURE, "processes", 60, 200),
    "ray": (TREASURE, "ray", 60, 200),
    "host Atari": (ATARI, "sequential", 12, 40),
    "host Atari, processes": (ATARI, "processes", 12, 40),
    "channel": ("", "", 0, 0),
}
LEAST = 0.97


def one(name: str) -> dict[str, float]:
    """One run of the checkout whose package and benchmarks are on the path."""
    case, mode, warm, cycles = RUNS[name]
    if name == "channel":
        return channel()
    settings = settings_of(case, mode)
    open_loop = importlib.import_module("millpond.train.loop").open_loop
    with tempfile.TemporaryDirectory() as folder, open_loop(settings, Path(folder)) as loop:
        state, _ = loop.round(loop.init(), warm)
        busy, first = cpu_of_all(), state.cycle
        state, _ = loop.round(state, cycles)
        busy = cpu_of_all() - busy
        learns = getattr(settings, "learns", None)
        turns = learns.turns if learns else settings.dqn.update_every
        steps = (state.cycle - first) * settings.envs * turns
    return {"cpu_us": busy / steps * 1e6}


def settings_of(case: str, mode: str) -> Any:
    if mode == "ray":
        return importlib.import_module("ray_bench").settings("ray", 1, 1)
    return importlib.import_module("processes").case_settings(case, mode, 1)[0]


def channel() -> dict[str, float]:
    """CPU of both ends per row."""
    environment = {**os.environ, "BENCH_SECONDS": "3", "BENCH_CORES": "0,1"}
    command = [sys.executable, "-W", "ignore", "-m", "workers.channel.ours"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode:
        sys.exit(done.stderr)
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    value = {key: row["value"] for key, row in rows.items()}
    cpu = value["ours_writer_us"] + value["ours_reader_us"]
    return {"cpu_us": cpu / 64}


def cpu_of_all() -> float:
    """CPU seconds of this process and of all that it started."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ours(pid: int) -> bool:
        while pid not in (0, 1, os.getpid()):
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(seconds for pid, seconds in spent.items() if ours(pid))


def measure(checkout: Path, name: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout / 'bench'}"}
    # -P: the benchmarks of this file's own folder are not the other checkout's.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--one", name]
    done = subprocess.run(
        command,
        cwd=checkout / "bench",
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        sys.exit(f"{checkout}: {name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--one", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    checkouts = options.before.resolve(), HERE
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    for name in options.only:
        found: tuple[list[dict[str, float]], ...] = ([], [])
        for _ in range(options.rounds):
            for checkout, runs in zip(checkouts, found, strict=True):
                runs.append(measure(checkout, name))
        old, new = ([run["cpu_us"] for run in runs] for runs in found)
        ratio, pairs = min(old) / min(new), [a / b for a, b in zip(old, new, strict=True)]
        verdict = "met" if ratio >= LEAST else "MISSED"
        between = f"pairs {min(pairs):.2f} to {max(pairs):.2f}"
        line = f"{name:22} {min(old):8.2f} -> {min(new):8.2f} us of CPU, {ratio:.3f} ({between})"
        print(f"{line} {verdict}", flush=True)


if __name__ == "__main__":
    main()
