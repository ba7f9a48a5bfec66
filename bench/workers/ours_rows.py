"""Streams of rows for millpond: correct flags, an optional share of episode ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from millpond import Field, Flag, Rows, Spec, next_flags

from .workload import ACTION, OBS, Steps


def spec(obs: int = OBS, bounded: bool = False) -> Spec:
    """Observations and an action. Peers check no bounds, so the main rows declare none."""
    bounds = (-1, 1) if bounded else (None, None)
    return Spec(obs=Field("float32", (obs,)), action=Field("float32", (ACTION,), *bounds))


def timeline(time: int, envs: int, ends: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """terminated, truncated, flags [time, env] that may follow themselves again and again.

    The last rows end no episode, so that row 0 is an ordinary row after row `time` - 1.
    """
    rng = np.random.default_rng(3)
    flags = np.zeros((time, envs), np.uint8)
    ended = np.zeros((time, envs), bool)
    for t in range(time):
        if t:
            flags[t] = next_flags(flags[t - 1], ended[t - 1], np.zeros(envs, bool))
        if t < time - 2:
            ended[t] = (rng.random(envs) < ends) & ((flags[t] & Flag.BORDER) == 0)
    terminated = ended & (rng.random((time, envs)) < 0.5)
    return terminated, ended & ~terminated, flags


def stream(one: Steps, ends: float = 0.0, time: int = 244) -> Iterator[Rows]:
    """Rows [env] without end; the first ones are FIRST. They differ in their flags, and border rows
    have no reward."""
    envs = len(one.reward)
    if not ends:
        time = 2
    terminated, truncated, flags = timeline(time, envs, ends)

    def rows(t: int, marks: np.ndarray) -> Rows:
        reward = one.reward * ((marks & Flag.BORDER) == 0)
        return Rows(one.obs, one.action, reward, terminated[t], truncated[t], marks)

    yield rows(time - 1, np.full(envs, Flag.FIRST, np.uint8))
    yield from cycle([rows(t, flags[t]) for t in range(time)])
