"""`XValues`: the x values of a curve's points, for every x axis that a chart can have."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class XValues(NamedTuple):
    """`x` is what the run counts (frames or updates); `steps` and `seconds` are None if unknown.

    `XValues(frames, steps, seconds).take([0, 5])`.
    """

    x: np.ndarray
    steps: np.ndarray | None = None
    seconds: np.ndarray | None = None

    def take(self, which: Any) -> XValues:
        """The x values of some of the points."""
        x, *others = self
        return XValues(x[which], *(None if one is None else one[which] for one in others))

    def to_json(self) -> dict[str, Any]:
        """The keys of a trace: `x`, and in `at` the other x values, unless equal."""
        at: dict[str, Any] = {}
        if self.steps is not None and not np.array_equal(self.steps, self.x):
            at["steps"] = _whole(self.steps)
        if self.seconds is not None:
            minutes = (self.seconds / 60).tolist()
            at["time"] = [float(f"{one:.4g}") if math.isfinite(one) else None for one in minutes]
        return {"x": _whole(self.x), **({"at": at} if at else {})}


def _whole(values: np.ndarray) -> list[int]:
    return np.round(np.nan_to_num(values)).astype(np.int64).tolist()


def elapsed(steps: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps in ascending order and the seconds spent until then, over all sessions of a run.

    When a run is resumed, seconds restart at 0, and steps where it was saved.
    """
    there = np.isfinite(seconds) & np.isfinite(steps)
    steps, seconds = steps[there], seconds[there]
    step = np.diff(seconds, prepend=0.0)
    total = np.cumsum(np.where(step < 0, seconds, step))
    return np.maximum.accumulate(steps) if len(steps) else steps, total
