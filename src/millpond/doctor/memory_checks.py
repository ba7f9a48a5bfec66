"""What agents with a memory remembered when they acted, as their rows hold it."""

from __future__ import annotations

import numpy as np

from .probe import Probe
from .verdict import Verdict, green, red, unknown

_FEW = 200


def memory(probe: Probe) -> Verdict:
    """Nothing where an episode begins, something later, and not always the same."""
    name, play = "memory-acted-with", probe.saved.play
    if not getattr(probe.agent, "memory", 0):
        return unknown(name, f"{probe.settings.section} has no memory")
    if play is None or "memory" not in play.extras:
        return unknown(name, probe.saved.why or "its memory is not kept: no replay holds its rows")
    kept = play.extras["memory"]
    first, later = play.first & play.step, play.step.copy()
    later[1:] &= play.follows
    later[0] = False
    later &= ~play.first
    if first.sum() < 8 or later.sum() < _FEW:
        return unknown(name, f"{first.sum()} beginnings and {later.sum()} later rows: too few")
    full = np.abs(kept).reshape(*kept.shape[:2], -1).max(-1) > 0
    left, empty = float(full[first].mean()), float(1 - full[later].mean())
    numbers = dict(beginnings=int(first.sum()), left=round(left, 4), empty_later=round(empty, 4))
    if left > 0:
        return red(
            name,
            f"{left:.0%} of {first.sum():,} episodes begin with a memory of the one before",
            "empty the memory at FIRST rows",
            **numbers,
        )
    if empty > 0.5:
        return red(
            name,
            f"the memory is empty in {empty:.0%} of the rows within episodes: nothing is "
            "remembered from turn to turn",
            "keep what act returns, and give it to the next act",
            **numbers,
        )
    return green(name, f"empty at {first.sum():,} beginnings, used in {1 - empty:.0%} of the rows "
                 "after", **numbers)  # fmt: skip
