"""What every worker is given: sizes, and play as NumPy arrays in blocks [time, env]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .. import workload

BATCH, LENGTH = 32, 64
ROWS = LENGTH + 1  # with the observation after the last
EPISODE = workload.EPISODE  # mean length, in steps
BLOCK = 100  # steps of every env that are stored at once


class Kind(NamedTuple):
    """Rows of one kind, and how many of them."""

    name: str
    obs: tuple[int, ...]
    dtype: str
    action: tuple[int, ...]
    envs: int
    capacity: int

    @property
    def time(self) -> int:
        """Steps of every env that are kept."""
        return self.capacity // self.envs


KINDS = (
    Kind("vector", (workload.OBS,), "float32", (workload.ACTION,), 64, 64 * 4000),
    Kind("pixels", workload.FRAME, "uint8", (), 8, workload.PIXEL_CAPACITY),
)


class Block(NamedTuple):
    """Steps [time, env] of all envs."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    done: np.ndarray


def play(kind: Kind) -> Iterator[Block]:
    """As many blocks as fill the store; no two episodes end together by rule."""
    rng = np.random.default_rng(0)
    lead = (BLOCK, kind.envs)
    if kind.dtype == "uint8":
        obs = rng.integers(0, 256, (*lead, *kind.obs), np.uint8)
        action = rng.integers(0, 18, lead, np.int32)
    else:
        obs = rng.standard_normal((*lead, *kind.obs), np.float32)
        action = rng.uniform(-1, 1, (*lead, *kind.action)).astype(np.float32)
    reward = rng.standard_normal(lead, np.float32)
    for _ in range(kind.time // BLOCK):
        yield Block(obs, action, reward, rng.random(lead) < 1 / EPISODE)
