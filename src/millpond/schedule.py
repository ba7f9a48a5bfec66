"""`Schedule`: a number that changes over a run, such as epsilon, a learning rate or beta.

Written once for NumPy and `jax.numpy`. It is a function of env steps, so it means the same for any
number of envs, processes or machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .errors import BadConfig
from .rows import Array

Shape = Literal["constant", "linear", "exponential", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Goes from `start` to `end` over the fraction `over` of the horizon, then stays; can restart.

    It restarts every `cycle` steps, or at `origin` when the run orders it. Restart k (1, 2, ...)
    begins at `restart[k - 1]` (the last one repeats; empty: at `start`), for agent i multiplied by
    `agents[i]` (the last one repeats; empty: 1), but never below `end`.
    `Schedule("linear", 1.0, 0.05, over=0.25).at(steps, horizon=200_000)`.
    """

    shape: Shape = "constant"  # how it goes from `start` to `end`
    start: float = 0.0  # the value at the beginning
    end: float | None = None  # the value at the end; none: `start`
    over: float = 1.0  # fraction of the horizon, or of a cycle, until it reaches `end`
    cycle: int = 0  # steps between two restarts; 0: no restarts
    restart: tuple[float, ...] = ()  # value after the first restart, the second, ...; none: `start`
    agents: tuple[float, ...] = ()  # factors for those values, one per agent; none: 1

    def __post_init__(self) -> None:
        if self.shape not in ("constant", "linear", "exponential", "cosine"):
            raise BadConfig(
                f"Schedule: shape must be constant, linear, exponential or cosine, "
                f"got {self.shape!r}"
            )
        if self.shape != "constant" and self.end is None:
            raise BadConfig(f"Schedule: a {self.shape} schedule needs an end")
        if not 0 < self.over <= 1:
            raise BadConfig(f"Schedule: over must be a share in (0, 1], got {self.over}")
        if self.cycle < 0:
            raise BadConfig(f"Schedule: cycle must be 0 (no restarts) or more, got {self.cycle}")
        levels = (self.start, self.last, *self.restart)
        if self.shape == "exponential" and min(levels) <= 0:
            raise BadConfig(f"Schedule: an exponential schedule needs levels above 0, got {levels}")

    def check_levels(self, name: str, least: float, most: float = math.inf) -> None:
        """Raise BadConfig for levels out of bounds: `beta.check_levels("PER: beta", 0.0, 1.0)`."""
        levels = (self.start, self.last, *self.restart)
        if not all(least <= level <= most for level in levels):
            bounds = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            said = ", ".join(f"{level:g}" for level in levels)
            raise BadConfig(f"{name}: start, end and restart must be {bounds}, got {said}")

    @property
    def last(self) -> float:
        """The final value."""
        return self.start if self.end is None else self.end

    def at(
        self,
        steps: Array,
        horizon: float | Array,
        agent: Array = 0,
        origin: Array = 0,
        restarts: Array = 0,
        xp: Any = np,
    ) -> Array:
        """The value after `steps` env steps: float32, with the shape of `steps` and `agent`.

        `origin` is the step of the latest restart ordered by the run, `restarts` their number; the
        schedule's own restarts, every `cycle` steps, are added to these.
        """
        since = xp.asarray(steps) - xp.asarray(origin)
        count = xp.asarray(restarts)
        if self.cycle:
            count = count + since // self.cycle
            since, horizon = since % self.cycle, self.cycle
        begin = self._begin(count, agent, xp)
        part = since.astype(np.float32) / xp.maximum(horizon * self.over, 1).astype(np.float32)
        part = xp.minimum(part, np.float32(1))
        return self._between(begin, np.float32(self.last), part, xp).astype(np.float32)

    def _begin(self, count: Array, agent: Array, xp: Any) -> Array:
        levels = xp.asarray((self.start, *(self.restart or (self.start,))), np.float32)
        level = levels[xp.minimum(count, len(self.restart) or 1)]
        if self.agents:
            factors = xp.asarray(self.agents, np.float32)
            level = level * factors[xp.minimum(xp.asarray(agent), len(self.agents) - 1)]
            level = xp.maximum(level, np.float32(min(self.last, self.start)))
        return level + xp.zeros(np.shape(agent), np.float32)

    def _between(self, begin: Array, end: Array, part: Array, xp: Any) -> Array:
        if self.shape == "constant":
            return begin + 0 * part
        if self.shape == "linear":
            return begin + (end - begin) * part
        if self.shape == "exponential":
            return begin * (end / begin) ** part
        return end + (begin - end) * np.float32(0.5) * (1 + xp.cos(np.float32(np.pi) * part))


def constant(value: float) -> Schedule:
    """The same value at every step: `constant(2.5e-4)`."""
    return Schedule("constant", value)


def linear(start: float, end: float, over: float = 1.0) -> Schedule:
    """Linear over a fraction of the run, then constant: `linear(1.0, 0.05, over=0.1)`."""
    return Schedule("linear", start, end, over)
