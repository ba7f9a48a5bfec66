"""The work that every library is given: sizes, and blocks of steps as NumPy arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

OBS, ACTION = 28, 8  # float32 values; with next_obs, reward and done a transition takes 264 B

VECTOR_ENVS, VECTOR_CAPACITY, VECTOR_BATCH = 2048, 2048 * 244, 4096
SINGLE_CAPACITY, SINGLE_BATCH = 100_000, 256
SMALL_ENVS, SMALL_CAPACITY = (1, 8, 64), 64 * 1563  # vectors as on one machine

FRAME = (84, 84)
PIXEL_ENVS, PIXEL_CAPACITY, PIXEL_BATCH = 8, 40_000, 512
STACK, N_STEP, GAMMA = 4, 3, 0.99
EPISODE = 800  # mean length of a pixel episode, near that of common Atari games

CYCLE_OBS, CYCLE_CAPACITY, CYCLE_ADD, CYCLE_BATCH = 4, 2**20, 256, 512


class Steps(NamedTuple):
    """Transitions of many envs: obs, next_obs [n, OBS]; action [n, ...]; reward, done [n]."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    next_obs: np.ndarray


def steps(number: int, obs: int = OBS, ends: float = 0.01) -> Steps:
    """Random transitions of vector envs, `ends` of which close an episode."""
    rng = np.random.default_rng(0)
    return Steps(
        obs=rng.standard_normal((number, obs), np.float32),
        action=rng.uniform(-1, 1, (number, ACTION)).astype(np.float32),
        reward=rng.standard_normal(number, np.float32),
        done=rng.random(number) < ends,
        next_obs=rng.standard_normal((number, obs), np.float32),
    )


def frames(number: int) -> np.ndarray:
    """uint8[number, 84, 84] of noise: no library may profit from equal frames."""
    return np.random.default_rng(1).integers(0, 256, (number, *FRAME), np.uint8)


def priorities() -> list[np.ndarray]:
    """Absolute TD errors for a few updates, float32[CYCLE_BATCH] each."""
    rng = np.random.default_rng(2)
    return [rng.exponential(size=CYCLE_BATCH).astype(np.float32) + 0.01 for _ in range(16)]
