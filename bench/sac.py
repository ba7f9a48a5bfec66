"""Speed of SAC on Pendulum: `make bench ONLY=sac`.

Ours is the loop that `millpond train pendulum` runs. `bare` is a single-file SAC in JAX with a
hand-written ring (workers/sac/bare.py); `torch_sac` one in PyTorch in the manner of CleanRL; `sbx`
is SBX's own. Each makes one update for every turn of its envs. With one env, twice: two layers of
256 units and batches of 256, the papers' size, which is nearly all matrix products; and 64 and 64,
as the preset of Pendulum has it. Everything takes turns, a stretch at a time; what counts is CPU
time of all threads, because the machine is shared, and the median of the ratios of stretches that
followed each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
from peers import TORCH, Peer, Unavailable
from workers.sac.bare import Bare
from workers.sac.task import CAPACITY, FILL, GAMMA, RATE, TAU

from millpond.agents import Network, Optimizer, find_agent
from millpond.engine.device_loop import DeviceLoop
from millpond.engine.settings import Settings
from millpond.envs import make_env
from millpond.schedule import constant

BENCH = Path(__file__).parent
MANY, MANY_CAPACITY = 2_048, 1_024_000
# Part: envs, batch, capacity, units of each layer.
PARTS = {
    "one": (1, 256, CAPACITY, 256),
    "small": (1, 64, CAPACITY, 64),
    "many": (MANY, 4_096, MANY_CAPACITY, 256),
}
PEERS = (
    Peer("torch_sac", ((TORCH, "gymnasium==1.4.0", "numpy"),)),
    Peer("sbx", ((TORCH,), (TORCH, "sbx-rl", f"jax=={jax.__version__}"))),
)


class Ours:
    """The program of mode `fused`."""

    def __init__(self, envs: int, batch: int, capacity: int, width: int) -> None:
        sac, rule = find_agent("sac"), Optimizer(rate=constant(RATE), clip=0.0)
        sizes = dict(batch=batch, capacity=capacity, min_fill=max(FILL, envs))
        rules = dict.fromkeys(("optimizer", "actor_optimizer", "temperature_optimizer"), rule)
        learning = sac.Settings(tau=TAU, gamma=GAMMA, **sizes, **rules)
        network = Network(width=width, depth=2, norm=False)
        settings = Settings(
            "pendulum", make_env("pendulum"), "sac", learning, network=network, envs=envs
        )
        self.loop = DeviceLoop(dataclasses.replace(settings, steps=10**9))
        self.state = self.loop.init()

    def go(self, turns: int) -> None:
        self.state, _ = self.loop.round(self.state, turns)


class Here:
    """A player of this process."""

    def __init__(self, player) -> None:
        self.player = player

    def play(self, turns: int) -> float:
        began = time.process_time()
        self.player.go(turns)
        return time.process_time() - began

    def close(self) -> None:
        """Nothing of it is left when it is forgotten."""


class There:
    """A worker in a process and an environment of its own, with one thread, as JAX here."""

    def __init__(self, peer: Peer, batch: int, width: int) -> None:
        command = [str(peer.python()), "-W", "ignore", "-m", f"workers.sac.{peer.name}"]
        sizes = {"BENCH_SAC_BATCH": str(batch), "BENCH_SAC_WIDTH": str(width)}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process = subprocess.Popen(command, cwd=BENCH, env={**os.environ, **sizes}, **pipes)
        if self._line() != "ready":
            raise Unavailable(f"{peer.name} did not start")

    def play(self, turns: int) -> float:
        print(turns, file=self.process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        line = self.process.stdout.readline().strip()
        if not line:
            raise Unavailable(f"the worker ended with status {self.process.wait(60)}")
        return line

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=250, help="of one env, per stretch")
    parser.add_argument("--many-turns", type=int, default=6, help="of 2048 envs, per stretch")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--peers", nargs="*", choices=[p.name for p in PEERS], default=None)
    options = parser.parse_args()
    report: dict = {"not_available": {}}
    for part in options.parts:
        envs, batch, _, width = sizes = PARTS[part]
        players = {"ours": Here(Ours(*sizes)), "bare": Here(Bare(*sizes))}
        for peer in PEERS if envs == 1 else ():
            if options.peers is not None and peer.name not in options.peers:
                continue
            try:
                players[peer.name] = There(peer, batch, width)
            except Unavailable as error:
                report["not_available"][peer.name] = str(error)
        title = f"{envs} envs, batch {batch}, width {width}"
        turns = options.turns if envs == 1 else options.many_turns
        report[part] = measure(title, players, turns, options.rounds, envs)
        for player in players.values():
            player.close()
    for name, why in report["not_available"].items():
        print(f"{name}: not available: {why}")
    out = BENCH / "out" / "sac.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {os.path.relpath(out)}")


def measure(title: str, players: dict, turns: int, rounds: int, envs: int) -> dict:
    for player in players.values():
        player.play(FILL // envs + 2)  # until it learns; compiles
        player.play(turns)
    taken: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(rounds):
        for name, player in players.items():
            taken[name].append(player.play(turns))
    print(f"{title}, {rounds} rounds of {turns} turns: per CPU second, one thread each")
    found = {}
    for name, times in taken.items():
        ratios = sorted(b / a for a, b in zip(taken["ours"], times, strict=True))
        ratio, pace = statistics.median(ratios), turns / statistics.median(times)
        found[name] = {"env_steps": pace * envs, "updates": pace, "ours_is_faster_by": ratios}
        print(
            f"  {name:10} {pace * envs:>12,.0f} env steps  {pace:>9,.1f} gradient steps   "
            f"ours is {ratio:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    return found


if __name__ == "__main__":
    if os.environ.get("BENCH_SAC") != "one thread":  # set before JAX begins
        few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"), "1")
        flags = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
        few |= {"XLA_FLAGS": flags.strip(), "BENCH_SAC": "one thread"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **few})
    main()
