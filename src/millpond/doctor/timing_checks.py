"""Whether rewards and observations belong to the action beside them, or to the one before.

Two linear models of what was seen and done compete: one takes the action of the same row, the
other that of the row before. Pure functions of a `Play`.
"""

from __future__ import annotations

import numpy as np

from .play import Play
from .row_models import Pairs, by_action, errors, gain_of, pairs, telling, varied
from .verdict import Verdict, green, red, unknown

_FREE = 0.5  # share of the actions' variance that what is seen does not decide
_SURE = 6.0  # standard errors over streams and stretches of time


def late_reward(play: Play, found: Pairs | None) -> Verdict:
    """The reward of a row must be predicted better by that row than by the one before."""
    name = "reward-timing"
    if found is None or len(np.unique(found.block)) < 8:
        return unknown(name, f"too few rows of {play.source}, or actions are real vectors")
    goal, test = found.reward, ~found.fit
    total = float(((goal[test] - goal[found.fit].mean()) ** 2).sum())
    if total < 1e-9 or (goal != np.median(goal)).sum() < 50:
        return unknown(name, f"rewards of {play.source} hardly vary: nothing can be seen")
    own = telling(found, found.here, found.acted, goal)
    old = telling(found, found.before, found.acted_before, goal)
    same = errors(by_action(found.here[:, own], found.acted), goal, found.fit)
    past = errors(by_action(found.before[:, old], found.acted_before), goal, found.fit)
    gain, sure = gain_of(past, same, found.block[test], total)
    explained = 1 - past.sum() / total, 1 - same.sum() / total
    numbers = dict(by_row_before=round(explained[0], 3), by_own_row=round(explained[1], 3))
    numbers |= dict(rows=int(test.sum()), standard_errors=round(sure, 1))
    if gain > 0.15 and sure > _SURE and explained[1] < 0.5 * explained[0]:
        return red(
            name,
            f"rewards of {play.source} follow the row before ({explained[0]:.0%} explained, "
            f"{explained[1]:.0%} by their own): they are late by one",
            "store the reward that step(action) returned beside that action and its observation",
            **numbers,
        )
    return green(name, f"their own row explains {max(explained[1], 0):.0%}, the one before "
                 f"{max(explained[0], 0):.0%}", **numbers)  # fmt: skip


def freedom(found: Pairs, here: np.ndarray) -> float:
    """The share of the actions' variance that what is seen does not decide; 0: always greedy."""
    chosen = np.eye(int(found.acted.max()) + 1)[found.acted]
    total = ((chosen[~found.fit] - chosen[found.fit].mean(0)) ** 2).sum()
    return float(errors(here, chosen, found.fit).sum() / max(total, 1e-12))


def effect(play: Play, found: Pairs | None) -> Verdict:
    """What is seen next must depend on the action, and on that of this row rather than the last."""
    name = "action-effect"
    if found is None or len(np.unique(found.block)) < 8:
        return unknown(name, f"too few rows of {play.source}, or actions are real vectors")
    counts = np.bincount(found.acted)
    if (counts > 0.02 * len(found.acted)).sum() < 2:
        return unknown(name, f"{play.source} hardly tries more than one action: see acting")
    test = ~found.fit
    some = varied(found)
    here = found.here[:, some]
    goal = np.concatenate([found.after[:, some[:-1]], found.reward[:, None]], -1)
    total = float(((goal[test] - goal[found.fit].mean(0)) ** 2).sum())
    none = errors(here, goal, found.fit)
    same = errors(by_action(here, found.acted), goal, found.fit)
    past = errors(by_action(here, found.acted_before), goal, found.fit)
    block = found.block[test]
    gain, sure = gain_of(same, none, block, total)
    behind, as_sure = gain_of(past, same, block, total)
    late = errors(by_action(here, found.acted_after), goal, found.fit)
    ahead, so_sure = gain_of(late, np.minimum(none.mean(), same.mean()) + 0 * none, block, total)
    free = freedom(found, here)
    numbers = dict(gain=round(gain, 4), standard_errors=round(sure, 1))
    numbers |= dict(of_action_before=round(behind, 4), of_action_after=round(ahead, 4))
    numbers |= dict(free=round(free, 3))
    if behind > 0.02 and as_sure > _SURE:
        return red(
            name,
            f"what {play.source} saw next follows the action before: observations or actions "
            "are late by one",
            "observe after the step, and store each action beside what was seen when it was chosen",
            **numbers,
        )
    # Whoever acts greedily shows by the next action what is seen next, and by this one nothing.
    if ahead > 0.02 and so_sure > _SURE and gain < 0.2 * ahead and free > _FREE:
        return red(
            name,
            f"what {play.source} saw next follows the action of the row after: actions are "
            "stored one row late",
            "store each action beside what was seen when it was chosen",
            **numbers,
        )
    return green(name, f"the action explains {max(gain, 0):.1%} more of what comes next", **numbers)


def timing(play: Play) -> list[Verdict]:
    """Both checks of one player's rows."""
    found = pairs(play)
    return [late_reward(play, found), effect(play, found)]
