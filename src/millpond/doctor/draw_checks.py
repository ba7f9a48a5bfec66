"""Batches drawn from a replay, against the rows that lie in it: transitions, and which rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..replay import Pond
from ..rows import BORDER, CONTEXT, CUT, ENDED, Batch, Rows
from ..samplers import Stratified, Uniform
from ..window import Window
from .probe import Probe
from .transition_checks import rebuilt
from .verdict import Verdict, green, red, unknown, yellow

_BATCH, _DRAWS = 256, 8
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
        if told := _corner(ids * pond.streams + stream, mask, age, stream[mask], valid):
            message = f"{drawn:,} draws by {kind} hit {pairs:,} of {number:,} rows: {told}"
            remedy = "if that is not what the sampler is for, look at its keys, ages and streams"
            return yellow(name, message, remedy, **numbers)
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


def _corner(
    row: np.ndarray, mask: np.ndarray, age: np.ndarray, stream: np.ndarray, valid: np.ndarray
) -> str:
    """In which corner draws stay that need not be even, or nothing.

    `row` [draws, batch] is a number for each row that was drawn, `age` is 0 for the oldest turn.
    """
    size, envs = valid.shape
    most = max(len(np.unique(one[keep])) for one, keep in zip(row, mask, strict=True))
    if most < 0.1 * row.shape[1]:
        rows = "one row" if most == 1 else f"{most} different rows"
        return f"a batch of {row.shape[1]} holds only {rows}, again and again"
    never = (np.bincount(stream, minlength=envs)[:envs] == 0) & (valid.sum(0) > 0)
    if len(stream) > 20 * envs and never.sum() >= max(1, 0.25 * envs):
        return f"{never.sum()} of {envs} envs are never drawn"
    if age.max() < size // 2:
        return f"none of the newest {1 - (age.max() + 1) / size:.0%} of the replay is ever drawn"
    return ""


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
