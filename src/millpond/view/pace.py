"""`pace(history)`: the speed of a run over time, from its `speed.jsonl`."""

from __future__ import annotations

import numpy as np

from .history import RunHistory
from .x_values import XValues


def pace(history: RunHistory) -> tuple[str, XValues, np.ndarray]:
    """The unit that is counted, x values, and units per second."""
    found, places = history.speed, history.x_values(history.speed)
    if "steps_per_second" in found:
        return "env steps", places, found.of("steps_per_second")
    # A mixture writes only seconds, so compute the speed between lines.
    took, moved = np.diff(found.of("seconds")), np.diff(places.x)
    rate = np.full(len(took), np.nan)
    np.divide(moved, took, out=rate, where=(took > 0) & (moved > 0))
    return "frames", places.take(slice(1, None)), rate
