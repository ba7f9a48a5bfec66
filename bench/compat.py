"""Our replay in other packages' loops against their own: CPU time of the whole training.

    make bench ONLY=compat
    python bench/compat.py --only CartPole     # the rows with this in their name

Stable-Baselines3's algorithms, a DQN in CleanRL's manner, and PyTorch's DataLoader. Both learn from
the same env with the same settings and seeds on one pinned core, in turns; what counts is the
median of the rounds' ratios. CPU time, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import compat_buffer
import compat_dqn
import compat_loader
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from replay import Source, machine
from rich.console import Console
from rich.table import Table
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from millpond.compat.sb3 import ReplayBuffer

OUT = Path(__file__).parent / "out" / "compat.json"


class Pixels(gymnasium.Env):
    """Frames of noise at no cost; episodes of 200 steps."""

    observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 255, (64, 84, 84, 1), np.uint8)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._frames[0], {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._frames[self._t % 64], 1.0, False, self._t >= 200, {}


def dqn(envs: int, **settings: Any) -> DQN:
    """DQN with its own settings but for those that make a run short."""
    env = make_vec_env("CartPole-v1", envs, seed=0)
    return DQN("MlpPolicy", env, buffer_size=50_000, learning_starts=200, **settings)


def sac(envs: int, **settings: Any) -> SAC:
    """SAC, an update per step of the vector."""
    env = make_vec_env("Pendulum-v1", envs, seed=0)
    return SAC("MlpPolicy", env, buffer_size=50_000, learning_starts=100, **settings)


def images(envs: int, frame_stack: int = 4, **settings: Any) -> DQN:
    """DQN on stacks of four frames; our buffer knows that they are stacks."""
    env = VecFrameStack(DummyVecEnv([Pixels] * envs), frame_stack)
    if "replay_buffer_class" in settings:
        settings["replay_buffer_kwargs"] = dict(frame_stack=frame_stack)
    return DQN("CnnPolicy", env, buffer_size=4_000, learning_starts=100, **settings)


# What, how it is made, envs, steps that are measured, the ratio that is wanted.
WORK: list[tuple[str, Callable[..., Any] | None, int, int, float]] = [
    ("DQN, CartPole, 1 env", dqn, 1, 2_400, 1.05),
    ("DQN, CartPole, 8 envs", dqn, 8, 9_600, 1.05),
    ("SAC, Pendulum, 1 env", sac, 1, 120, 1.05),
    ("SAC, Pendulum, 8 envs", sac, 8, 960, 1.05),
    ("DQN, 84x84 frames, stack 4, 1 env", images, 1, 240, 1.0),
    ("DQN, 84x84 frames, stack 4, 8 envs", images, 8, 1_920, 1.0),
    ("DQN in one file, CartPole", None, 1, 4_000, 1.05),
]


def cpu_s(make: Callable[..., Any] | None, envs: int, steps: int, ours: bool) -> float:
    """CPU seconds of `steps` steps of a model that has warmed up."""
    if make is None:
        return compat_dqn.cpu_s(steps, ours)
    settings: dict[str, Any] = {"replay_buffer_class": ReplayBuffer} if ours else {}
    model = make(envs, seed=0, device="cpu", **settings)
    model.learn(model.learning_starts + 10 * envs)
    start = time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    return time.process_time() - start


def measured(rounds: int, only: str) -> list[dict[str, Any]]:
    """Every row in turns, ours and theirs."""
    rows: list[dict[str, Any]] = []
    for name, make, envs, steps, target in WORK:
        if only not in name:
            continue
        pairs: list[tuple[float, float]] = []
        for turn in range(rounds):
            order = (True, False) if turn % 2 else (False, True)
            found = {ours: cpu_s(make, envs, steps, ours) / steps * 1e6 for ours in order}
            pairs.append((found[True], found[False]))
            print(f"{name}: {found[True]:.0f} / {found[False]:.0f}", flush=True)
        ours, theirs = (statistics.median(part) for part in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        rows.append(
            {"work": name, "ours": ours, "theirs": theirs, "ratios": ratios, "target": target}
        )
    if only in "buffer alone":
        rows += [row | {"target": None} for row in compat_buffer.rows(2 * rounds)]
    if only in "DataLoader":
        rows += [row | {"target": 0.5} for row in compat_loader.rows(rounds)]
    return rows


def main() -> None:
    """Every row, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    torch.set_num_threads(1)
    source = Source()
    rows = measured(args.rounds, args.only)
    table = Table(title="CPU µs per env step, all of training; per window of a DataLoader")
    for head in ("work", "ours", "its own", "ours / its own, median (each round)", "target"):
        table.add_column(head)
    for row in rows:
        ratio, target = statistics.median(row["ratios"]), row["target"]
        each = ", ".join(f"{value:.2f}" for value in row["ratios"])
        verdict = f"<= {target} {'met' if ratio <= target else 'MISSED'}" if target else ""
        values = f"{row['ours']:,.0f}", f"{row['theirs']:,.0f}", f"{ratio:.2f} ({each})"
        table.add_row(row["work"], *values, verdict)
    Console(width=120).print(table)
    versions = {name: metadata.version(name) for name in ("stable_baselines3", "torch", "torchrl")}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    report = {**source.about(), "machine": machine(), "versions": versions, "rows": rows}
    OUT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
