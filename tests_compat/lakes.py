"""Lakes with known rows, and what DataLoader's children run."""

from __future__ import annotations

import numpy as np

from millpond import Field, Lake, Rows, Spec, next_flags

SPEC = Spec(Field("float32", (3,)), Field("int32", (), 0, 4), {"mood": Field("uint8")})


def fill(lake: Lake, time: int, envs: int = 2, group: str = "g", seed: int = 0) -> None:
    """`time` steps of `envs`, with ends and truncations; obs says stream and time."""
    rng = np.random.default_rng(seed)
    flags = np.ones(envs, np.uint8)
    with lake.writer(group, streams=envs) as writer:
        for t in range(time):
            border = (flags & 2) != 0
            ends = rng.random((2, envs)) < 0.07
            terminated = ends[0] & ~border
            truncated = ends[1] & ~border & ~terminated
            obs = np.stack([np.arange(envs), np.full(envs, t), rng.random(envs)], 1)
            reward = np.where(border, 0, rng.random(envs)).astype(np.float32)
            action = rng.integers(0, 5, envs).astype(np.int32)
            mood = rng.integers(0, 255, envs).astype(np.uint8)
            rows = (obs.astype(np.float32), action, reward, terminated, truncated, flags)
            writer.append(Rows(*rows, {"mood": mood}))
            flags = next_flags(flags, terminated, truncated)
        writer.commit()
    lake.refresh()


def lake(folder, time: int = 120, envs: int = 2) -> Lake:
    made = Lake.create(folder, SPEC, capacity=100_000)
    fill(made, time, envs)
    return made
