"""What rows say of rewards: finite, of a sane size, and not all the same."""

from __future__ import annotations

import numpy as np

from ..rows import TERMINATED, TRUNCATED
from .play import Play
from .verdict import Verdict, green, red, unknown, yellow

_FEW = 200  # steps below which nothing is judged
_LARGE = 1e6  # of a reward


def rewards(play: Play, lasts: bool = False) -> Verdict:
    """Rewards must be finite and not all the same; how sparse and how large they are is shown.

    `lasts`: other rows have shown that to last longer is the task, as `ends_by_chance` says.
    """
    name, found = "env-rewards", play.reward[play.step]
    if len(found) < _FEW:
        return unknown(name, f"only {len(found)} steps of {play.source}: too few")
    if not np.isfinite(found).all():
        share = 1 - np.isfinite(found).mean()
        remedy = "look at the env's reward: it divides by zero, or its state runs away"
        return red(
            name, f"{share:.1%} of the rewards of {play.source} are no finite number", remedy
        )
    low, high, some = found.min(), found.max(), float((found != 0).mean())
    numbers = dict(least=float(low), most=float(high), nonzero=round(some, 5), steps=len(found))
    if low == high:
        what = "no step is rewarded" if low == 0 else f"every reward is {low:g}"
        return _constant(play, name, what, lasts and low != 0, numbers)
    if (kinds := _sums(play)) is not None:
        return red(
            name,
            f"every reward of {play.source} is the one before and one of {kinds} values more, from "
            "0 in every episode: they are sums so far",
            "give what this step was worth, not the return until now",
            **numbers,
        )
    if max(-low, high) > _LARGE:
        return yellow(
            name,
            f"rewards of {play.source} go from {low:.3g} to {high:.3g}",
            "scale or clip them: --dqn.reward-scale, --dqn.reward-clip",
            **numbers,
        )
    sparse = f", one of {1 / some:,.0f} steps is rewarded" if 0 < some < 0.01 else ""
    return green(name, f"from {low:.3g} to {high:.3g}, {some:.2%} not zero{sparse}", **numbers)


def _sums(play: Play) -> int | None:
    """Of rewards that add up over an episode, how many kinds of step they are made of."""
    both = play.follows & play.step[1:]
    now, later = play.reward[:-1][both], play.reward[1:][both]
    begun = play.reward[play.first & play.step]
    kinds, more = np.unique(np.round(now, 4)), np.unique(np.round(later - now, 4))
    if len(now) < _FEW or len(begun) < 8 or len(more) > 16 or len(kinds) < 2 * len(more):
        return None
    # At the beginning of an episode there is one step in it; later there are many.
    steps = np.isin(np.round(begun, 4), more).mean()
    grows = (begun**2).mean() < 0.2 * (later**2).mean()
    return len(more) if steps > 0.95 and grows else None


def ends_by_chance(play: Play) -> bool:
    """Whether episodes terminate, at different lengths: then how long they last is a task."""
    lengths, how = play.ends
    return bool((how & TERMINATED).any()) and len(set(lengths.tolist())) > 1


def _constant(play: Play, name: str, what: str, lasts: bool, numbers: dict[str, float]) -> Verdict:
    """Rewards that never change: a task, if episodes terminate, and none, if they do not."""
    lengths, how = play.ends
    zero = numbers["least"] == 0
    told = f"{what}, in {len(play.reward[play.step]):,} steps of {play.source}"
    if not zero and (lasts or ends_by_chance(play)):
        # As in CartPole: every step is worth the same, and to last longer is the task.
        return green(
            name, f"{what}; episodes end at different lengths, which is the task", **numbers
        )
    truncated = len(lengths) >= 8 and bool((how & TRUNCATED).all())
    if truncated and not zero and len(set(lengths.tolist())) > 4:
        return yellow(
            name,
            f"{told}; episodes end at many lengths and are all truncated: either these ends are "
            "terminations, and to last longer is the task, or the reward is wrong",
            "say terminated where the world ends and truncated where the clock runs out (env-ends)",
            **numbers,
        )
    if truncated and zero and len(set(lengths.tolist())) == 1:
        turns = int(lengths[0])
        return yellow(
            name,
            f"{told}, and the clock cuts all {len(lengths)} episodes off after {turns} steps: too "
            "few to reach a reward, or nobody finds one",
            f"give episodes more than {turns} steps; if that changes nothing, explore more",
            **numbers,
            turns=turns,
        )
    if zero:
        remedy = (
            "if it is sparse, explore more or shape it; else look where the env computes it: "
            "millpond doctor --env ENV plays it at random"
        )
        return yellow(name, told, remedy, **numbers)
    if len(lengths) < 8 and not zero:  # as in Acrobot, where to end sooner is the task
        return unknown(name, f"{told}; too few episodes end to say whether that is the task")
    remedy = "a constant reward tells no action from another: look where the env computes it"
    return red(name, told, remedy, **numbers)
