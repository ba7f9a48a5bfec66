"""What rows say of episodes: how they end, what begins after an end, which row follows which."""

from __future__ import annotations

import numpy as np

from ..rows import BORDER, TERMINATED, TRUNCATED, breaks
from .play import Play
from .verdict import Verdict, green, red, unknown, yellow


def ends(play: Play) -> Verdict:
    """Episodes end; truncated ones at the clock's time, terminated ones at different times."""
    name = "env-ends"
    lengths, how = play.ends
    cut, over = lengths[(how & TRUNCATED) != 0], lengths[(how & TERMINATED) != 0]
    numbers = dict(episodes=len(lengths), terminated=len(over), truncated=len(cut))
    numbers |= dict(shortest=int(lengths.min(initial=0)), longest=int(lengths.max(initial=0)))
    if len(lengths) < 8:
        told = f"{len(lengths)} whole episodes among {play.steps:,} steps of {play.source}"
        return unknown(name, f"{told}: too few to judge", **numbers)
    both = int(((how & TERMINATED) & ((how & TRUNCATED) >> 1) != 0).sum())
    remedy = "terminated: the future is worth nothing; truncated: the clock ran out. Swap them"
    if (lengths == 1).mean() > 0.9 and lengths.max() > 1:
        message = f"{(lengths == 1).mean():.0%} of the episodes of {play.source} last one step"
        return red(
            name,
            message,
            "something of the ended episode, such as its count of steps, "
            "survives the reset: set all of it in reset",
            **numbers,
        )
    spread = len(set(cut.tolist()))
    common = np.unique(cut, return_counts=True)[1].max(initial=0)
    wide = len(cut) >= 8 and cut.max() - cut.min() > 0.2 * cut.max()
    if wide and spread >= 5 and common < 0.5 * len(cut):
        clock = len(over) >= 8 and len(set(over.tolist())) == 1 and over[0] >= cut.max()
        message = f"{len(cut)} episodes were truncated at {spread} different lengths"
        if clock:
            message += f", and all {len(over)} terminated ones at {over[0]}"
            return red(name, f"{message}: the two are swapped", remedy, **numbers)
        return yellow(name, f"{message}: a clock would cut at one", remedy, **numbers)
    if len(over) >= 16 and not len(cut) and len(set(over.tolist())) == 1 and over[0] >= 5:
        return yellow(
            name,
            f"all {len(over)} episodes terminated after exactly {over[0]} steps, as a clock would",
            "if only time ran out, say truncated: a value must be bootstrapped there",
            **numbers,
        )
    told = f"{len(over)} terminated, {len(cut)} truncated, {lengths.min()} to {lengths.max()} steps"
    return green(name, told + (f", {both} both" if both else ""), **numbers)


def resets(play: Play) -> Verdict:
    """After an end a new episode begins: not where the old one stopped."""
    name = "env-resets"
    border = (play.byte[:-1] & BORDER) != 0
    again = border & play.first[1:]
    number = int(again.sum())
    if number < 8:
        return unknown(name, f"{number} resets among the rows of {play.source}: too few")
    same = float((play.hashes[1:] == play.hashes[:-1])[again].mean())
    usual = float((play.hashes[1:] == play.hashes[:-1])[play.follows].mean())
    numbers = dict(resets=number, unchanged=round(same, 4), usually_unchanged=round(usual, 4))
    error = np.sqrt(max(usual * (1 - usual), 0.01) / number)
    if same > 0.5 and same > usual + 6 * error:
        message = f"{same:.0%} of {number:,} new episodes begin with what the last one ended with"
        remedy = (
            "look at the env's reset: the world goes on (or its first observation is an old one)"
        )
        return red(name, message, remedy, **numbers)
    return green(
        name, f"{number:,} new episodes, {same:.0%} begin as the last one ended", **numbers
    )


def borders(play: Play) -> Verdict:
    """Which row may follow which: an end, its border row, a FIRST row."""
    name = "row-order"
    wrong = breaks(play.byte[:-1], play.byte[1:])
    numbers = dict(rows=int(wrong.size), breaks=int(wrong.sum()))
    if wrong.any():
        message = (
            f"{wrong.sum():,} of {wrong.size:,} rows of {play.source} cannot follow the row before"
        )
        remedy = "set terminated or truncated in exactly the last row of an episode, by next_flags"
        return red(name, message, remedy, **numbers)
    return green(name, f"{wrong.size:,} rows of {play.source} follow each other", **numbers)
