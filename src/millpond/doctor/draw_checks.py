"""Batches drawn from a replay, against the rows that lie in it: transitions, and which rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..replay import Pond
from ..rows import BORDER, CONTEXT, CUT, ENDED, FIRST, Batch, Rows
from ..samplers import Stratified, Uniform
from ..window import Window
from .probe import Probe
from .verdict import Verdict, green, red, unknown, yellow

Read = Callable[[np.ndarray, np.ndarray], Rows]
_BATCH, _DRAWS = 256, 8
_CHECKED = 128  # transitions that are rebuilt
_SURE = 7.0


def draws(probe: Probe) -> list[Verdict]:
    """`replay-transitions` and `replay-draws` of a run's first policy."""
    pond = probe.saved.pond
    if pond is None or not probe.saved.rings:
        why = (
            probe.saved.why
            or "no replay was saved: rows are learned as they come, or lie in a Lake"
        )
        return [unknown("replay-transitions", why), unknown("replay-draws", why)]
    return of_pond(pond, probe.saved.rings[0], probe.saved.sample)


def of_pond(pond: Pond, ring: Any, sample: Any = None) -> list[Verdict]:
    """The same of any Pond and its state."""
    names = "replay-transitions", "replay-draws"
    if not isinstance(pond.window, Window):
        return [unknown(name, "sequences are not rebuilt here") for name in names]
    if pond.layout.name != "stream" or not bool(np.asarray(pond.can_sample(ring))):
        return [
            unknown(name, "there is nothing to draw yet, or no order of rows") for name in names
        ]
    sample = sample or jax.jit(pond.sample, static_argnums=2)
    batches: list[Any] = []
    for turn in range(_DRAWS):
        ring, batch = sample(ring, jax.random.key(100 + turn), _BATCH)
        batches.append(jax.device_get(batch))

    def read(stream: np.ndarray, ids: np.ndarray) -> Rows:
        position = (ids % pond.length).astype(np.int32)
        return jax.device_get(pond.read(ring, jnp.asarray(stream), jnp.asarray(position)))

    return [
        rebuilt(pond.window, batches[0], read, names[0]),
        _spread(pond, ring, batches, names[1]),
    ]


def rebuilt(window: Window, batch: Batch, read: Read, name: str) -> Verdict:
    """Every part of a transition, made again from the rows as `Window` defines it.

    `read(streams, ids)` gives rows of any shape as they were added.
    """
    keep = np.nonzero(batch.mask)[0][:_CHECKED]
    if not len(keep):
        return unknown(name, "no draw found a valid start")
    stream, ids = batch.draw.stream[keep], batch.draw.ids()[keep]
    before = max(1, window.stack - 1)
    reach = np.arange(-before, window.n_step + 1)
    # What lies before the first row or behind the last belongs to no transition that was drawn.
    wide = np.broadcast_to(stream[:, None], (len(ids), len(reach)))
    steps = np.asarray(batch.steps)[keep]
    rows = read(
        wide, ids[:, None] + np.clip(reach, -np.minimum(ids, before)[:, None], steps[:, None])
    )
    here = before
    wrong: dict[str, int] = {}
    instead = Counter[str]()  # what a wrong part is instead, by transitions
    for i, at in enumerate(keep):
        steps, over = 0, False
        total, discount = 0.0, 1.0
        for ahead in range(window.n_step):
            reward = float(rows.reward[i, here + ahead])
            if window.reward_clip:
                reward = float(np.clip(reward, -window.reward_clip, window.reward_clip))
            total, discount, steps = total + discount * reward, discount * window.gamma, steps + 1
            over = bool(rows.terminated[i, here + ahead])
            if over or rows.truncated[i, here + ahead]:
                break
        if window.life_loss_ends:
            return unknown(name, "lives that end returns are not rebuilt here")
        good = {
            "obs": _same_stack(window, rows, i, here, batch.obs, at),
            "next_obs": _same_stack(window, rows, i, here + steps, batch.next_obs, at),
            "action": bool(np.array_equal(rows.action[i, here], batch.action[at])),
            "reward": bool(np.isclose(total, batch.reward[at], rtol=1e-4, atol=1e-5)),
            "discount": bool(
                np.isclose(0.0 if over else discount, batch.discount[at], rtol=1e-4, atol=1e-6)
            ),
            "start": not rows.flags[i, here] & (BORDER | CONTEXT),
        }
        for what, fine in good.items():
            wrong[what] = wrong.get(what, 0) + (not fine)
        instead.update(_instead(window, rows, i, here, batch, at, good))
    bad = {what: number for what, number in wrong.items() if number}
    if bad:
        told = ", ".join(f"{what} in {n / len(keep):.0%}" for what, n in bad.items())
        most = max(bad.values())
        explains = [what for what, n in instead.most_common(3) if n >= 0.9 * most]
        cause = f"; {explains[0]}" if explains else ""
        return red(
            name,
            f"of {len(keep)} drawn transitions these parts are not those of the "
            f"stored rows: {told}{cause}",
            "let Window and the sampler make transitions; see docs/concepts.md",
            checked=len(keep), **bad,
        )  # fmt: skip
    return green(
        name, f"{len(keep)} drawn transitions rebuilt from their rows, all equal", checked=len(keep)
    )


def _instead(
    window: Window, rows: Rows, i: int, here: int, batch: Batch, at: int, good: dict[str, bool]
) -> list[str]:
    """What the wrong parts of a transition are instead, as far as known mistakes say."""
    found: list[str] = []
    raw = np.asarray(rows.reward[i], np.float64)
    if window.reward_clip:
        raw = np.clip(raw, -window.reward_clip, window.reward_clip)
    powers = window.gamma ** np.arange(window.n_step)
    ahead = raw[here : here + window.n_step]
    steps = int(batch.steps[at])

    def paid(total: float) -> bool:
        return not good["reward"] and bool(np.isclose(total, batch.reward[at], 1e-4, 1e-5))

    if paid(float((powers[: len(ahead)] * ahead).sum())):
        found.append("rewards are summed on across the end of the episode")
    if paid(float((powers[:steps] * raw[here - 1 : here - 1 + steps]).sum())):
        found.append("rewards are those of the row before: late by one")
    if here + 1 + steps <= len(raw) and paid(
        float((powers[:steps] * raw[here + 1 : here + 1 + steps]).sum())
    ):
        found.append("rewards are those of the next row: early by one")
    if paid(float(ahead[0])) and window.n_step > 1:
        found.append("only the first of the rewards is there")
    if paid(float(ahead[:steps].sum())) and window.n_step > 1:
        found.append("rewards are added up without a discount")
    if not good["next_obs"]:
        if _same_stack(window, rows, i, here, batch.next_obs, at):
            found.append("next_obs is the observation of the same row")
        elif steps > 1 and _same_stack(window, rows, i, here + 1, batch.next_obs, at):
            found.append("next_obs is that of the next row, whatever n_step is")
    if not good["action"]:
        for shift, what in ((-1, "the row before"), (1, "the next row")):
            if np.array_equal(rows.action[i, here + shift], batch.action[at]):
                found.append(f"actions are those of {what}")
    if not good["discount"]:
        over = bool(rows.terminated[i, here + steps - 1])
        wrong = float(batch.discount[at])
        if over and wrong > 0:
            found.append("terminations do not set the discount to 0")
        elif wrong == 0:
            found.append("the discount is 0 where no episode terminated")
    return found


def _same_stack(window: Any, rows: Any, i: int, at: int, batch: Any, row: int) -> bool:
    """Whether a stack holds the row's own observations, oldest first, padded at the beginning."""
    wanted = [at]
    for _ in range(window.stack - 1):
        begun = (rows.flags[i, wanted[0]] & FIRST) != 0
        wanted.insert(0, wanted[0] if begun or wanted[0] == 0 else wanted[0] - 1)
        if begun:
            wanted[0] = -1 if window.pad == "zeros" else wanted[1]
        if wanted[0] == -1:
            wanted = [-1] * (window.stack - len(wanted)) + wanted
            break
    for stored, drawn in zip(jax.tree.leaves(rows.obs), jax.tree.leaves(batch), strict=True):
        for place, back in enumerate(wanted):
            frame = np.zeros_like(stored[i, 0]) if back < 0 else stored[i, back]
            if not np.array_equal(frame, drawn[row, place]):
                return False
    return True


def _spread(pond: Pond, ring: Any, batches: list[Batch], name: str) -> Verdict:
    """Draws by different keys differ, and go evenly over ages and envs where they should."""
    mask = np.stack([batch.mask for batch in batches])
    stream = np.stack([batch.draw.stream for batch in batches])
    ids = np.stack([batch.draw.ids() for batch in batches])
    if mask.mean() < 0.5:
        return unknown(name, "most draws found no valid start")
    alike = [
        np.array_equal(ids[0], ids[i]) and np.array_equal(stream[0], stream[i])
        for i in range(1, len(ids))
    ]
    valid = _valid_starts(pond, ring)  # [age, streams]
    number, drawn = int(valid.sum()), int(mask.sum())
    if any(alike) and number >= 16:  # by chance never, in so many draws
        message = f"{sum(alike) + 1} of {len(ids)} draws by different keys are the same"
        return red(
            name, message, "give every draw a key of its own (jax.random.split)", same=sum(alike)
        )
    if number < 64:
        return unknown(name, f"only {number} rows can be drawn")
    head = int(np.max(np.asarray(pond.added(ring))))
    size = len(valid)
    age = (ids - (head - size))[mask]
    pairs = len(set(zip(age.tolist(), stream[mask].tolist(), strict=True)))
    expected = number * (1 - (1 - 1 / number) ** drawn)
    numbers: dict[str, Any] = dict(
        draws=drawn, rows=number, different=pairs, expected=round(expected)
    )
    if not isinstance(pond.sampler, Uniform | Stratified):  # and of yours nobody knows
        kind = type(pond.sampler).__name__
        if pairs < 0.1 * expected:
            return yellow(
                name,
                f"{drawn:,} draws by {kind} hit {pairs:,} different rows of {number:,}, none older "
                f"than {size - int(age.min())} of {size:,} turns; even ones hit {expected:,.0f}",
                "if that is not what the sampler is for, look at its range of ages and streams",
                **numbers,
            )
        return green(
            name, f"{drawn:,} draws hit {pairs:,} rows; {kind} need not be even", **numbers
        )
    spread = np.sqrt(max(1.0, drawn - expected))
    if pairs < 0.8 * expected - _SURE * spread:
        message = (
            f"{drawn:,} draws hit {pairs:,} different rows of {number:,}; even ones hit "
            f"{expected:,.0f}"
        )
        return red(
            name, message, "the sampler repeats itself: look at its random numbers", **numbers
        )
    for what, places, wanted in (
        ("ages", age * 8 // size, valid.sum(1)),
        ("envs", stream[mask] * min(8, pond.streams) // pond.streams, valid.sum(0)),
    ):
        bins = 8 if what == "ages" else min(8, pond.streams)
        share = np.bincount(np.arange(len(wanted)) * bins // len(wanted), wanted, bins) / number
        seen = np.bincount(np.clip(places, 0, bins - 1), minlength=bins)
        error = np.sqrt(np.maximum(share * (1 - share) * drawn, 1.0))
        off = (seen - share * drawn) / error
        if np.abs(off).max() > _SURE and np.abs(seen / drawn - share).max() > 0.03:
            worst = int(np.argmax(np.abs(off)))
            message = (
                f"draws are uneven over {what}: part {worst + 1} of {bins} gets "
                f"{seen[worst] / drawn:.0%} of them and holds {share[worst]:.0%} of the rows"
            )
            return red(name, message, "look at the sampler; uniform() draws all alike", **numbers)
    return green(
        name, f"{drawn:,} draws hit {pairs:,} different rows, evenly over ages and envs", **numbers
    )


def _valid_starts(pond: Pond, ring: Any) -> np.ndarray:
    """Which stored rows may be starts, oldest first: bool[age, streams]."""
    window: Any = pond.window
    size = int(np.max(np.asarray(ring.size)))
    head = int(np.max(np.asarray(ring.head)))
    position = (head - size + np.arange(size)) % pond.length
    flags = np.asarray(ring.flags)[position]
    flags = flags.reshape(size, -1)
    start = (flags & (BORDER | CONTEXT)) == 0
    blocked = (flags & CUT) != 0
    going = np.ones(flags.shape, bool)
    for ahead in range(window.n_step):
        later = np.roll(blocked, -ahead, 0) & going
        start &= ~later
        going &= (np.roll(flags, -ahead, 0) & ENDED) == 0
    first, count = window.eligible(np.int64(size), pond.length)
    start[: int(first)] = False
    start[int(first + count) :] = False
    return start
