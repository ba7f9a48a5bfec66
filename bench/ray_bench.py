"""Mode ray against mode processes at equal work, and what shards take: `make bench ONLY=ray`.

1. The same env steps and updates, HostPonds in both modes, one machine: env steps/s of each, the
   learner's share of waiting. Each mode runs in a process of its own, in turn, in several rounds.
   Beside other programs more processes get more of the machine, so CPU time is told as well.
2. Shards fed as fast as two feeders can, nobody learning: rows/s with 1, 2 and 4 of them.
3. What one chunk, one collect, one draw and one set of parameters cost, without Ray and with it.

(The file is not called ray.py: a script's folder comes first where Python looks for `ray`.)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from millpond.cli.train import parse_train
from millpond.cluster.ray import connected, import_ray
from millpond.cluster.team import RayTeam, members
from millpond.engine.chunk_dedup import ChunkId
from millpond.engine.provenance import EXTRAS, traced_spec
from millpond.engine.settings import Settings
from millpond.engine.shard import Shard, actors_of
from millpond.engine.shard_store import Chunk
from millpond.rows import FIRST, Rows
from millpond.train.presets import settings_for

OPTIONS = "--dqn.batch 64 --dqn.updates 1 --dqn.update-every 2 --crew.store-mb 256"
WARM, CYCLES = 100, 1500
TARGET = 1.3
_CALLS = 200


def settings(mode: str, actors: int, shards: int, replay: str = "host") -> Settings:
    of = parse_train(settings_for("treasurehunt-small"), OPTIONS.split())
    steps = of.envs * of.learns.turns * (WARM + CYCLES + 100)
    changes: dict[str, Any] = dict(mode=mode, actors=actors, replay_shards=shards, replay=replay)
    return dataclasses.replace(of, steps=steps, **changes)


def one(mode: str, replay: str, actors: int, shards: int) -> dict[str, Any]:
    """Run one mode in this process."""
    from millpond.train.loop import open_loop

    of = settings(mode, actors, shards, replay)
    rows = of.envs * of.learns.turns
    with tempfile.TemporaryDirectory() as folder, open_loop(of, Path(folder)) as loop:
        state, _ = loop.round(loop.init(), WARM)
        began, first, updates = time.perf_counter(), state.cycle, int(state.agent.updates[0])
        busy = cpu_of_all()
        state, _ = loop.round(state, CYCLES)
        took, cycles = time.perf_counter() - began, state.cycle - first
        return {
            "steps_per_second": cycles * rows / took,
            "cpu_us_per_step": (cpu_of_all() - busy) * 1e6 / (cycles * rows),
            "updates": (int(state.agent.updates[0]) - updates) / cycles,
            "shares": loop.pace()["shares"],
        }


def cpu_of_all() -> float:
    """CPU seconds of this process and of all that it started: other programs do not change it."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
        spent[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf(
            "SC_CLK_TCK"
        )

    def ours(pid: int) -> bool:
        while pid not in (0, 1, os.getpid()):
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(seconds for pid, seconds in spent.items() if ours(pid))


def compare(rounds: int) -> dict[str, Any]:
    cases = {
        "processes, pond": ("processes", "pond", 1, 0),
        "processes, host": ("processes", "host", 1, 0),
        "ray, 1 shard": ("ray", "host", 1, 1),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            command = [sys.executable, __file__, "--one", *map(str, case)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"  {name:16} {found[name][-1]['steps_per_second']:>9,.0f} steps/s", flush=True)
    pace = {
        name: statistics.median(run["steps_per_second"] for run in runs)
        for name, runs in found.items()
    }
    print(f"\ntreasurehunt-small, 5 policies, 1 actor, {OPTIONS}; median of {rounds}")
    for name, runs in found.items():
        working, waiting, moving = np.median([run["shares"]["learner 0"] for run in runs], 0)
        updates = statistics.mean(run["updates"] for run in runs)
        print(
            f"  {name:16} {pace[name]:>9,.0f} env steps/s per policy, {updates:.2f} updates per "
            f"cycle; learner: learning {working:.0%}, waiting {waiting:.0%}, moving {moving:.0%}"
        )
    cpu = {name: statistics.median(r["cpu_us_per_step"] for r in rs) for name, rs in found.items()}
    for name, value in cpu.items():
        ratio = cpu["ray, 1 shard"] / value
        print(f"  {name:16} {value:>9.1f} us of CPU per env step; ray takes {ratio:.2f} x that")
    ratios = {name: pace[name] / pace["ray, 1 shard"] for name in list(cases)[:2]}
    verdict = "met" if max(ratios.values()) <= TARGET else "MISSED"
    told = ", ".join(f"{name}: {ratio:.2f}" for name, ratio in ratios.items())
    print(f"  times as fast as ray: {told}; target: the faster one <= {TARGET}: {verdict}")
    return {"pace": pace, "cpu": cpu, "ratios": ratios, "runs": found}


def chunk(of: Settings, actor: int, number: int) -> Chunk:
    """Rows of the true shape and size."""
    cycles, width = of.chunk, of.envs // of.actors
    lead = (cycles * of.learns.turns, of.policies, width)
    spec = traced_spec(of)
    obs = jax.tree.map(lambda field: np.ones((*lead, *field.shape), field.dtype), spec.obs)
    flags, no = np.zeros(lead, np.uint8), np.zeros(lead, bool)
    if not number:
        flags[0] = FIRST
    extras = {name: np.zeros(lead, field.dtype) for name, field in EXTRAS.items()}
    rows = Rows(obs, np.zeros(lead, np.int32), np.ones(lead, np.float32), no, no, flags, extras)
    steps = np.zeros(of.policies, np.uint32)
    return Chunk(ChunkId(actor, 0, number), number, number * cycles, cycles, steps, rows)


class Feeder:
    """Sends chunks of some actors to their shards, two of each on their way."""

    def __init__(self, plain: dict[str, Any], actors: list[int], shards: list[Any]) -> None:
        self.of, self.actors, self.shards = Settings.from_json(plain), actors, shards
        self.ray = import_ray()

    def ready(self) -> None:
        """It has started."""

    def feed(self, seconds: float) -> int:
        """Rows that were stored."""
        made = {
            actor: [chunk(self.of, actor, 0), chunk(self.of, actor, 1)] for actor in self.actors
        }
        under_way: dict[int, list[Any]] = {actor: [] for actor in self.actors}
        number, rows, until = 0, 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for actor in self.actors:
                like = made[actor][min(number, 1)]
                one = like._replace(
                    id=ChunkId(actor, 0, number), oldest=number, first=number * like.cycles
                )
                shard = self.shards[actor % len(self.shards)]
                under_way[actor].append(shard.deliver.remote(one))
                if len(under_way[actor]) > 2:
                    assert self.ray.get(under_way[actor].pop(0), timeout=60) == "new"
                    rows += like.rows.reward.size
            number += 1
        for some in under_way.values():
            rows += sum(like.rows.reward.size for _ in self.ray.get(some, timeout=60))
        return rows


def feed(shards: int, seconds: float) -> dict[str, float]:
    of = settings("ray", 4, shards)
    local = connected("", members(of), "they", 512)
    with tempfile.TemporaryDirectory() as folder, local as ray:
        remote = ray.remote(Feeder).options(num_cpus=0)
        team = RayTeam(of, Path(folder))
        ray.get([team.call(shard, "took", 0, 1 << 40) for shard in team.shards], timeout=120)
        begin = [(of.to_json(), actors, team.shards) for actors in ([0, 1], [2, 3])]
        feeders = [remote.remote(*one) for one in begin]
        ray.get([feeder.ready.remote() for feeder in feeders], timeout=120)
        began = time.perf_counter()
        for _ in range(_CALLS):
            ray.get(feeders[0].ready.remote(), timeout=60)
        call_ms = (time.perf_counter() - began) * 1e3 / _CALLS
        began = time.perf_counter()
        rows = sum(ray.get([f.feed.remote(seconds) for f in feeders], timeout=120))
        took = time.perf_counter() - began
        team.close()
        return {"shards": shards, "rows_per_second": rows / took, "call_ms": call_ms}


def units(seconds: float) -> dict[str, float]:
    """Milliseconds of each part, without Ray; and of parameters by Ray."""
    of = settings("ray", 1, 1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        shard = Shard(of, 0, range(of.policies), Path(folder), "bench")
        chunks = [chunk(of, 0, 0), chunk(of, 0, 1)]
        found["chunk_rows"] = chunks[0].rows.reward.size
        found["chunk_mb"] = sum(leaf.nbytes for leaf in jax.tree.leaves(chunks[0].rows)) / 1e6
        found["bytes_per_row"] = found["chunk_mb"] * 1e6 / found["chunk_rows"]
        spent = {"append_ms": 0.0, "collect_ms": 0.0, "draw_ms": 0.0}
        number, until = 0, time.perf_counter() + seconds
        counts = np.full((of.chunk * of.learns.updates, of.policies), of.replayed.batch)
        while time.perf_counter() < until:
            like = chunks[min(number, 1)]
            one = like._replace(id=ChunkId(0, 0, number), oldest=number, first=number * like.cycles)
            a = time.perf_counter()
            shard.append(one)
            b = time.perf_counter()
            got = shard.collect(one.first, one.cycles, range(of.policies))
            shard.take(one.stop)
            c = time.perf_counter()
            batch = shard.draw(range(of.policies), counts, number)
            d = time.perf_counter()
            for name, value in zip(spent, (b - a, c - b, d - c), strict=True):
                spent[name] += value * 1e3
            number += 1
        found |= {name: value / number for name, value in spent.items()}
        found["narrow_bytes_per_row"] = (
            sum(leaf.nbytes for leaf in jax.tree.leaves(got.rows)) / got.rows.reward.size
        )
        found["batch_bytes_per_transition"] = sum(
            leaf.nbytes for leaf in jax.tree.leaves(batch)
        ) / len(batch.reward)
        found["draws_per_ms"] = counts.sum() / found["draw_ms"]
        assert list(actors_of(of, 0)) == [0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=4, metavar=("MODE", "REPLAY", "ACTORS", "SHARDS"))
    parser.add_argument("--parts", nargs="+", default=["compare", "shards", "units"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    if options.one:
        mode, replay, actors, shards = options.one
        print(json.dumps(one(mode, replay, int(actors), int(shards))))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    results: dict[str, Any] = {}
    if "compare" in options.parts:
        results["compare"] = compare(options.rounds)
    if "shards" in options.parts:
        print("\nrows/s into shards, two feeders, 4 actors' chunks, nobody learning")
        results["shards"] = []
        for shards in (1, 2, 4):
            found = feed(shards, options.seconds)
            results["shards"].append(found)
            pace = found["rows_per_second"]
            print(
                f"  {shards} shards {pace:>11,.0f} rows/s, {pace / shards:>11,.0f} of each; a call "
                f"there and back {found['call_ms']:.2f} ms"
            )
    if "units" in options.parts:
        results["units"] = units(options.seconds)
        print("\none chunk of one actor, in one process without Ray")
        for name, value in results["units"].items():
            print(f"  {name:28} {value:,.3f}")
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "ray.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
