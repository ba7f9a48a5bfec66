"""Stable-Baselines3 learning from our replay and from its own: the same settings and seeds.

    python bench/compat_learning.py --seeds 5

A score is the mean return of the last 50 episodes of training. The buffers draw other batches, so
that two runs of one seed differ as those of two seeds do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env

from millpond.compat.sb3 import ReplayBuffer

OUT = Path(__file__).parent / "out" / "compat_learning.json"
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 10: 2.262}  # 97.5% of Student's t, by samples


def dqn(seed: int, **buffer: Any) -> Any:
    """RL Zoo's settings for CartPole, a smaller network."""
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 1, seed=seed),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs=dict(net_arch=[64, 64]),
        seed=seed,
        device="cpu",
        **buffer,
    )


def sac(seed: int, **buffer: Any) -> Any:
    """RL Zoo's learning rate for Pendulum, smaller networks and batches."""
    return SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", 1, seed=seed),
        learning_rate=1e-3,
        batch_size=128,
        policy_kwargs=dict(net_arch=[64, 64]),
        seed=seed,
        device="cpu",
        **buffer,
    )


WORK: dict[str, tuple[Callable[..., Any], int]] = {
    "DQN, CartPole, 8k steps": (dqn, 8_000),
    "SAC, Pendulum, 3k steps": (sac, 3_000),
}


def score(make: Callable[..., Any], steps: int, seed: int, ours: bool) -> float:
    """The mean return of the last episodes, or of all if they are fewer."""
    model = make(seed, **({"replay_buffer_class": ReplayBuffer} if ours else {}))
    model.learn(steps)
    return statistics.mean(episode["r"] for episode in list(model.ep_info_buffer)[-50:])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% interval."""
    return statistics.mean(values), _T[len(values)] * statistics.stdev(values) / math.sqrt(
        len(values)
    )


def main() -> None:
    """Every seed in turns, ours and theirs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, choices=sorted(_T), default=5)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    for name, (make, steps) in WORK.items():
        if args.only not in name:
            continue
        ours: list[float] = []
        theirs: list[float] = []
        for seed in range(args.seeds):
            for mine in (True, False) if seed % 2 else (False, True):
                (ours if mine else theirs).append(score(make, steps, seed, mine))
            print(f"{name}, seed {seed}: {ours[-1]:.1f} / {theirs[-1]:.1f}", flush=True)
        gaps = [one - other for one, other in zip(ours, theirs, strict=True)]
        for what, values in (("ours", ours), ("its own", theirs), ("ours - its own", gaps)):
            mean, half = interval(values)
            print(f"  {what}: {mean:.1f} ± {half:.1f}")
        report[name] = {"ours": ours, "theirs": theirs}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
