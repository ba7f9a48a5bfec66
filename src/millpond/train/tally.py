"""`Tally`: steps, episodes and returns counted as rows go by, and what a round adds up to."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..agents import Learned
from ..rows import BORDER, Array, Rows


class Tally(NamedTuple):
    """Per stream: the running episode. Per policy: steps since the run began."""

    reward: Array  # float32[policies, envs]
    length: Array  # int32[policies, envs]
    steps: Array  # uint32[policies]


class Sums(NamedTuple):
    """What happened in a round, per policy, added up."""

    steps: Array  # int32
    episodes: Array  # int32
    reward: Array  # float32: returns of the episodes that ended
    length: Array  # int32: their lengths
    nonzero: Array  # int32: steps with a reward
    updates: Array  # int32
    loss: Array  # float32, as the next three: sums over updates
    q: Array
    gradient: Array
    change: Array


def new_tally(policies: int, envs: int) -> Tally:
    """Nothing has happened yet."""
    return Tally(
        np.zeros((policies, envs), np.float32),
        np.zeros((policies, envs), np.int32),
        np.zeros(policies, np.uint32),
    )


def no_sums(policies: int) -> Sums:
    """Nothing to add up yet."""
    whole, real = np.zeros(policies, np.int32), np.zeros(policies, np.float32)
    return Sums(whole, whole, real, whole, whole, whole, real, real, real, real)


def count(tally: Tally, sums: Sums, rows: Rows, xp: Any = jnp) -> tuple[Tally, Sums]:
    """Take one turn's rows[policies, envs]. Border rows count as nothing."""
    step = (rows.flags & BORDER) == 0
    ended: Array = rows.terminated | rows.truncated
    reward = tally.reward + rows.reward
    length = tally.length + step
    taken = step.sum(1, dtype=np.int32)
    sums = sums._replace(
        steps=sums.steps + taken,
        episodes=sums.episodes + ended.sum(1, dtype=np.int32),
        reward=sums.reward + (reward * ended).sum(1, dtype=np.float32),
        length=sums.length + (length * ended).sum(1, dtype=np.int32),
        nonzero=sums.nonzero + (rows.reward != 0).sum(1, dtype=np.int32),
    )
    tally = Tally(
        xp.where(ended, np.float32(0), reward),
        xp.where(ended, np.int32(0), length).astype(np.int32),
        tally.steps + taken.astype(np.uint32),
    )
    return tally, sums


def learned(sums: Sums, found: Learned, updates: int) -> Sums:
    """Take the means [policies] over so many updates."""
    return sums._replace(
        updates=sums.updates + np.int32(updates),
        loss=sums.loss + found.loss * updates,
        q=sums.q + found.q * updates,
        gradient=sums.gradient + found.gradient * updates,
        change=sums.change + found.change * updates,
    )
