"""`pace(history)`: how fast a run went, at every line of its `speed.jsonl`."""

from __future__ import annotations

import numpy as np

from .history import RunHistory
from .places import Places


def pace(history: RunHistory) -> tuple[str, Places, np.ndarray]:
    """What is counted, where, and how many of it per second."""
    found, places = history.speed, history.places(history.speed)
    if "steps_per_second" in found:
        return "env steps", places, found.of("steps_per_second")
    # A mixture writes when, not how fast.
    took, moved = np.diff(found.of("seconds")), np.diff(places.x)
    rate = np.full(len(took), np.nan)
    np.divide(moved, took, out=rate, where=(took > 0) & (moved > 0))
    return "frames", places.take(slice(1, None)), rate
