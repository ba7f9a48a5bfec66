"""The env's own scripted players, where it has some: they must do better than a random one."""

from __future__ import annotations

import numpy as np

from .probe import Probe
from .verdict import Verdict, green, red, unknown

_SURE = 5.0


def scripted_players(probe: Probe) -> Verdict:
    """A script that plays the task well and is paid less than chance: rewards have another sign."""
    name, world = "env-references", probe.settings.world
    names = list(getattr(world, "references", {}))
    if not names:
        return unknown(name, "the env has no scripted player to compare with")
    by_chance = probe.referee.watch("random")
    chance, error = by_chance.mean().mean(), by_chance.error().mean()
    best: tuple[float, float, str] | None = None
    for script in names:
        scores = probe.referee.watch(script)
        one = float(scores.mean().mean()), float(scores.error().mean()), script
        if best is None or one[0] > best[0]:
            best = one
        if one[0] > chance:
            break  # one that does better is enough
    assert best
    numbers = dict(scripted=round(best[0], 3), random=round(float(chance), 3))
    versus = f"'{best[2]}' scores {best[0]:.4g}, a random player {chance:.4g}"
    if best[0] < chance - _SURE * float(np.hypot(best[1], error)):
        return red(
            name,
            f"the env's own scripted player {versus}: playing well is paid worse than chance, as "
            "where rewards have the wrong sign",
            "look at the sign of the reward in step, and at wrappers that change it",
            **numbers,
        )
    return green(name, f"the scripted player {versus}", **numbers)
