"""What rows say of observations: finite, changing, of a size that a network can use."""

from __future__ import annotations

import numpy as np

from ..rows import BORDER, ENDED
from .play import Play
from .verdict import Verdict, green, red, unknown, yellow

_FEW = 200  # steps below which nothing is judged
_WIDE = 1e4  # of an observation
_DROWNS = 1e3  # times the usual size of a number
_TINY = 1e-3  # of what changes in an observation
_FEW_NUMBERS = 16  # of an observation that is no picture: each is there for a reason


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


def final_observations(play: Play) -> Verdict:
    """What is seen at an end must follow from the step before, not be where the next one begins."""
    name = "env-final-observation"
    last = play.step[:-2] & ((play.byte[:-2] & ENDED) != 0)
    whole = last & ((play.byte[1:-1] & BORDER) != 0) & play.first[2:]
    number, inside = int(whole.sum()), play.follows & play.step[1:]
    if number < 16 or inside.sum() < _FEW or play.first.sum() < 16:
        return unknown(name, f"{number} whole ends among the rows of {play.source}: too few")
    seen = play.seen[..., play.seen.reshape(-1, play.seen.shape[-1]).std(0) > 0]
    if not seen.size:
        return unknown(name, "nothing that is observed ever changes")
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
