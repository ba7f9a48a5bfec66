"""Our buffer for Stable-Baselines3 against its own, alone: a step added, a batch of 32 drawn."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer as Theirs

from millpond.compat.sb3 import ReplayBuffer as Ours

_STEPS, _BATCHES, _END = 2_000, 500, 0.05  # the chance that an episode ends


def play(envs: int) -> list[tuple[Any, ...]]:
    """What an algorithm adds: four numbers a step, episodes that end one by one."""
    rng, found = np.random.default_rng(0), list[tuple[Any, ...]]()
    obs = rng.standard_normal((envs, 4)).astype(np.float32)
    for _ in range(_STEPS):
        final, after = (rng.standard_normal((envs, 4)).astype(np.float32) for _ in range(2))
        done = rng.random(envs) < _END
        after[~done] = final[~done]
        infos: list[dict[str, Any]] = [{} for _ in range(envs)]
        action, reward = rng.integers(0, 2, envs), np.ones(envs, np.float32)
        found.append((obs, final, action, reward, done, infos))
        obs = after
    return found


def cpu_us(kind: Any, envs: int, steps: list[tuple[Any, ...]]) -> tuple[float, float]:
    """CPU µs of an add and of a sample."""
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    buffer = kind(50_000, box, spaces.Discrete(2), "cpu", envs)
    begin = time.process_time()
    for step in steps:
        buffer.add(*step)
    added = time.process_time()
    for _ in range(_BATCHES):
        buffer.sample(32)
    ended = time.process_time()
    return (added - begin) / _STEPS * 1e6, (ended - added) / _BATCHES * 1e6


def rows(rounds: int) -> list[dict[str, Any]]:
    """Ours and theirs in turns, for one env and for eight."""
    found: list[dict[str, Any]] = []
    for envs in (1, 8):
        steps = play(envs)
        turns = [(cpu_us(Ours, envs, steps), cpu_us(Theirs, envs, steps)) for _ in range(rounds)]
        for part, what in enumerate(("a step", "a batch of 32")):
            pairs = [(ours[part], theirs[part]) for ours, theirs in turns]
            mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
            name = f"buffer alone, {what}, {envs} env{'s' * (envs > 1)}"
            ratios = [one / two for one, two in pairs]
            found.append({"work": name, "ours": mine, "theirs": other, "ratios": ratios})
    return found
