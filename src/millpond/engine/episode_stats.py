"""`EpisodeStats` and `Sums`: steps, episodes and returns, counted from rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..agents import Learned, Rollout
from ..rows import BORDER, Array, Rows


class EpisodeStats(NamedTuple):
    """The running episode of every stream, and each policy's steps since the run began."""

    reward: Array  # float32[policies, envs]
    length: Array  # int32[policies, envs]
    steps: Array  # uint32[policies]


class Sums(NamedTuple):
    """What happened in a round, summed for each policy."""

    steps: Array  # int32
    episodes: Array  # int32
    reward: Array  # float32: returns of episodes that ended
    length: Array  # int32: their lengths
    nonzero: Array  # int32: steps with a reward
    updates: Array  # int32
    found: Array  # float32[policies, reports]: what the agent reports, summed over updates


def new_stats(policies: int, envs: int) -> EpisodeStats:
    """The stats before the first row."""
    return EpisodeStats(
        np.zeros((policies, envs), np.float32),
        np.zeros((policies, envs), np.int32),
        np.zeros(policies, np.uint32),
    )


def no_sums(policies: int, reports: int = 0) -> Sums:
    """Zero sums, for an agent that reports that many numbers per update."""
    whole, real = np.zeros(policies, np.int32), np.zeros(policies, np.float32)
    found = np.zeros((policies, reports), np.float32)
    return Sums(whole, whole, real, whole, whole, whole, found)


def count(
    tally: EpisodeStats, sums: Sums, rows: Rows | Rollout, xp: Any = jnp
) -> tuple[EpisodeStats, Sums]:
    """Add rows [time, policies, envs]; border rows do not count.

    In each stream, rewards up to the last end among these rows belong to episodes that ended, those
    after it to one that continues. So all turns are counted at once, without a loop over time.
    """
    step, ended = steps_of(rows.flags), rows.terminated | rows.truncated
    over = xp.cumsum(ended[::-1], 0)[::-1] > 0
    some = over[0]  # whether the running episode has ended

    def total(values: Array, dtype: Any) -> Array:
        return values.sum((0, -1), dtype=dtype)

    def closed(running: Array, values: Array) -> tuple[Array, Array]:
        """The sum over episodes that ended, per policy, and over those that continue, per env."""
        done = xp.where(over, values, 0).sum(0, dtype=running.dtype) + running * some
        rest = xp.where(over, 0, values).sum(0, dtype=running.dtype) + running * ~some
        return done.sum(-1, dtype=running.dtype), rest

    reward, rest = closed(tally.reward, rows.reward)
    length, turns = closed(tally.length, step)
    taken = total(step, np.int32)
    sums = sums._replace(
        steps=sums.steps + taken,
        episodes=sums.episodes + total(ended, np.int32),
        reward=sums.reward + reward,
        length=sums.length + length,
        nonzero=sums.nonzero + total(rows.reward != 0, np.int32),
    )
    return EpisodeStats(rest, turns, tally.steps + taken.astype(np.uint32)), sums


def steps_of(flags: Array) -> Array:
    """Which rows are env steps, which is all but border rows."""
    return (flags & BORDER) == 0


def learned(sums: Sums, found: Array, updates: int) -> Sums:
    """Add `updates` updates, with the means [policies, reports] of what they found."""
    return sums._replace(
        updates=sums.updates + np.int32(updates), found=sums.found + found * np.float32(updates)
    )


def numbers_of(found: Learned, reports: tuple[str, ...]) -> Array:
    """What an update found, as float32[..., reports] in the order of `reports`. Inside jit."""
    return jnp.stack([found.numbers[name] for name in reports], -1).astype(np.float32)
