"""What rows say of the environment they come from: rewards, observations, ends, resets, copies.

Pure functions of a `Play`. They serve a run's stored rows, rows that were played for the doctor,
an environment before any training, and the replay of your own loop.
"""

from __future__ import annotations

import numpy as np

from ..rows import BORDER, ENDED, TERMINATED, TRUNCATED, breaks
from .play import Play
from .verdict import Verdict, green, red, unknown, yellow

_FEW = 200  # steps below which nothing is judged
_LARGE = 1e6  # of a reward
_WIDE = 1e4  # of an observation
_DROWNS = 1e3  # times the usual size of a number
_TINY = 1e-3  # of what changes in an observation
_FEW_NUMBERS = 16  # of an observation that is no picture: each is there for a reason


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


def observations(play: Play) -> Verdict:
    """Observations must be finite, inside their bounds, and change."""
    name, seen = "env-observations", play.seen
    if play.steps < _FEW:
        return unknown(name, f"only {play.steps} steps of {play.source}: too few")
    numbers = dict(features=seen.shape[-1], steps=play.steps)
    if not np.isfinite(seen).all():
        share = 1 - np.isfinite(seen).mean()
        remedy = "look at the env: it observes something that is no number"
        return red(name, f"{share:.1%} of what {play.source} saw is not finite", remedy, **numbers)
    low, high = float(seen.min()), float(seen.max())
    numbers |= dict(least=low, most=high)
    if low < play.low - 1e-6 or high > play.high + 1e-6:
        message = f"observed {low:.4g} to {high:.4g}, outside {play.low:g} to {play.high:g}"
        return red(name, message, "widen the Field's bounds, or look at the env", **numbers)
    alive = (seen.max((0, 1)) > seen.min((0, 1))).mean()
    numbers |= dict(changing=round(float(alive), 4))
    if alive == 0:
        remedy = "look at the env's observe: nothing can be learned from what never changes"
        return red(name, f"{play.source} always saw the same", remedy, **numbers)
    moves = float((play.hashes[1:] != play.hashes[:-1])[play.follows].mean())
    numbers |= dict(moving=round(moves, 4))
    if moves < 0.01:
        remedy = "look at the env's observe: it shows an old state, or the world stands still"
        message = f"what {play.source} saw changes in {moves:.2%} of the steps only"
        return red(name, message, remedy, **numbers)
    if (still := _still_after(play)) is not None:
        message = (
            f"after step {still} of an episode nothing that {play.source} saw changes any more"
        )
        remedy = "look at step: the world stands still, and the episode goes on"
        return red(name, message, remedy, **numbers, still_after=still)
    if (found := _sizes(play, name, numbers)) is not None:
        return found
    return green(
        name, f"from {low:.4g} to {high:.4g}, {alive:.0%} of {seen.shape[-1]} change", **numbers
    )


def _sizes(play: Play, name: str, numbers: dict[str, float]) -> Verdict | None:
    """Sizes that a network learns badly from: enormous, tiny, or one number that drowns all."""
    flat = play.seen.reshape(-1, play.seen.shape[-1])
    low, high = flat.min(0), flat.max(0)
    wide = (high - low).astype(np.float64)
    size = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    changing = wide > 0
    top = int(np.argmax(size))
    usual = float(np.median(size[changing]))
    if changing.sum() >= 2 and size[top] > 100 and size[top] > _DROWNS * usual:
        return yellow(
            name,
            f"number {top} of an observation goes up to {size[top]:.3g}, the others to about "
            f"{usual:.3g}: beside it a network hardly sees them",
            "bring all numbers of an observation to about 1",
            **numbers, number=top,
        )  # fmt: skip
    if size[top] > _WIDE and play.high == np.inf:
        message = f"observed {low.min():.4g} to {high.max():.4g}: a network learns badly from that"
        return yellow(name, message, "scale observations to about 1", **numbers)
    if wide.max() < _TINY:
        return yellow(
            name,
            f"everything observed lies between {low.min():.3g} and {high.max():.3g}, and no number "
            f"changes by more than {wide.max():.2g}: a network can hardly tell states apart",
            "bring observations to about 1: are they divided twice?",
            **numbers,
        )
    few = play.seen.shape[-1] <= _FEW_NUMBERS and play.real
    if few and not changing.all():
        still = np.nonzero(~changing)[0]
        which = ", ".join(str(number) for number in still[:4])
        return yellow(
            name,
            f"{len(still)} of the {len(changing)} numbers of an observation never change (number "
            f"{which}; always {low[still[0]]:g})",
            "look at what is observed there: a mask, a wrong index, or a number that is not needed",
            **numbers,
        )
    return None


def _still_after(play: Play) -> int | None:
    """The step of an episode after which, in all episodes, nothing that is seen changes."""
    place = np.zeros(play.byte.shape, int)
    begun = np.full(play.byte.shape[1], -1)
    for time in range(len(place)):
        begun = np.where(play.first[time], time, begun)
        place[time] = np.where(begun >= 0, time - begun, -1)
    place = place[:-1]
    known = play.follows & (place >= 0)
    moved = known & (play.hashes[1:] != play.hashes[:-1])
    if not moved.any():
        return None
    last = int(place[moved].max())  # the last step at which anything moved
    before, after = known & (place <= last), known & (place > last)
    usual = moved.sum() / before.sum()
    enough = after.sum() >= max(100, 0.25 * known.sum()) and len(np.nonzero(after.any(0))[0]) >= 4
    return last if enough and usual > 0.5 else None


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


def final_observations(play: Play) -> Verdict:
    """What is seen at an end must follow from the step before, not be where the next one begins."""
    name = "env-final-observation"
    last = play.step[:-2] & ((play.byte[:-2] & ENDED) != 0)
    whole = last & ((play.byte[1:-1] & BORDER) != 0) & play.first[2:]
    number, inside = int(whole.sum()), play.follows & play.step[1:]
    if number < 16 or inside.sum() < _FEW or play.first.sum() < 16:
        return unknown(name, f"{number} whole ends among the rows of {play.source}: too few")
    seen = play.seen[..., play.seen.reshape(-1, play.seen.shape[-1]).std(0) > 0]
    wide = seen.reshape(-1, seen.shape[-1]).std(0)

    def far(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.abs((one - other) / wide).mean(-1)

    begun = seen[play.first]
    low, high = begun.min(0) - 1e-6, begun.max(0) + 1e-6

    def among(rows: np.ndarray) -> float:
        """The share of observations that lie where episodes begin."""
        return float(((rows >= low) & (rows <= high)).all(-1).mean())

    final, before = seen[1:-1][whole], seen[:-2][whole]
    usual = np.quantile(far(seen[1:][inside], seen[:-1][inside]), 0.99)
    jump, there, was = float(np.median(far(final, before))), among(final), among(before)
    numbers = dict(ends=number, at_a_beginning=round(there, 3), one_step_before=round(was, 3))
    numbers |= dict(jump=round(jump, 3), usual_jump=round(float(usual), 3))
    if there > 0.9 and was < 0.5 and jump > usual:
        return red(
            name,
            f"{there:.0%} of {number} final observations lie where episodes begin, and one step "
            f"before only {was:.0%}: they belong to the next episode",
            "give the observation before the reset (final_obs): a wrapper resets by itself",
            **numbers,
        )
    return green(name, f"{number} final observations follow from the step before", **numbers)


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


def copies(play: Play) -> Verdict:
    """Envs beside each other must not be the same env."""
    name = "env-copies"
    worst: Verdict | None = None
    for policy in range(int(play.policy.max()) + 1):
        found = _copies(play, play.of_policy(policy), name)
        if found.fired:
            return found
        worst = found if worst is None or found.state == "green" else worst
    assert worst
    return worst


def _copies(play: Play, streams: np.ndarray, name: str) -> Verdict:
    number = len(streams)
    if number < 2:
        return unknown(name, f"there is one env in the rows of {play.source}")
    seen, action = (
        play.hashes[:, streams],
        play.action[:, streams].reshape(len(play.byte), number, -1),
    )
    varied = len(np.unique(seen))
    remedy = "give every env a seed of its own (jax.random.split; seed + i)"
    if varied > 5 and len(play.byte) >= 20:
        keys = [row.tobytes() for row in np.moveaxis(seen, 1, 0)]
        acted = [row.tobytes() for row in np.moveaxis(action, 1, 0)]
        alone = len(set(zip(keys, acted, strict=True)))
        if alone <= 0.75 * number:
            message = f"{number} envs of {play.source} are {alone}: the others are exact copies"
            return red(name, message, remedy, envs=number, different=alone, rows=len(play.byte))
    # The same chance in every env shows where all begin: alike at one time, different each time.
    first = play.first[:, streams]
    begun = [
        np.unique(row[which]) for row, which in zip(seen, first, strict=True) if which.sum() > 1
    ]
    counts = [int(which.sum()) for which in first if which.sum() > 1]
    if len(begun) >= 3 and sum(counts) >= 24:
        distinct = len(np.unique(np.concatenate(begun)))
        alike = sum(len(values) == 1 for values in begun)
        numbers = dict(envs=number, beginnings=len(begun), distinct=distinct, alike=alike)
        # By chance: every one of so many would have to meet the others' beginning.
        if alike == len(begun) and distinct >= max(3, 0.75 * len(begun)):
            message = f"{number} envs always begin alike, {distinct} times differently"
            return red(name, f"{message}: they share their chance", remedy, **numbers)
    return green(name, f"{number} envs play {number} different games", envs=number)


def examined(play: Play, lasts: bool = False) -> list[Verdict]:
    """All that rows say by themselves: `examined(Play.of(spec, rows, "the replay"))`."""
    checks = (observations, borders, ends, resets, final_observations, copies)
    return [rewards(play, lasts), *(check(play) for check in checks)]
