"""What a sampled sequence means: `Sequence` turns raw rows into stretches of time.

All index arithmetic about sequences is in this file, written once for NumPy and `jax.numpy`. A
row's place in a sequence is its *offset* from the start: -burn_in ... -1 are the burn-in,
0 ... length - 1 the rows to learn from, and `length` holds the observation after the last.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .errors import BadConfig, SpecMismatch
from .memory import keep_freed_memory
from .rows import (
    BORDER,
    CONTEXT,
    CUT,
    ENDED,
    FIRST,
    LIFE_LOST,
    TERMINATED,
    TRUNCATED,
    Array,
    Batch,
    Draw,
    Tree,
    host_batch,
)
from .spec import Field, Spec, mismatch, walk
from .window import Window

_MOST = 65535  # 2^16 - 1: remainders of 64-bit ids are worked out in 32-bit words on a device

_FAR = np.int32(2**31 - 1)


class Span(NamedTuple):
    """What the flags around a start say about its sequence; fields have the start's shape."""

    valid: Array  # bool: may be sampled
    back: Array  # int32: rows before it, of its episode, that are there with all of their stack
    reach: Array  # int32: rows before it, of its episode, that are there
    until: Array  # int32: offset of the last observation that is there
    flags: Array  # uint8[..., before + length]: the flags bytes that say so


class SpanFacts(NamedTuple):
    """What the flags of a sequence's rows say, [..., burn_in + length] each."""

    mask: Array
    first: Array
    terminated: Array
    truncated: Array
    life_lost: Array
    discount: Array


class SequenceBatch(NamedTuple):
    """Stretches of time as `Sequence` defines them.

    obs: [batch, burn_in + length + 1, stack, *shape]; the observation after row t is `obs[:, t+1]`,
    always, for an episode's last row too: there it is the final one, in its own row, whose mask is
    false. weight: [batch]. Every other field: [batch, burn_in + length, ...]. Where `mask` is
    false there is no step: its reward and discount are 0. `first` marks the first row of an
    episode: reset a recurrent state there. `discount` is gamma, or 0 where an episode terminated.
    `batch = pond.sample(32)`; the target of a row is `reward + discount * value(obs[:, 1:])`.
    """

    obs: Tree
    action: Array
    reward: Array
    discount: Array
    terminated: Array
    truncated: Array
    first: Array
    mask: Array
    weight: Array
    draw: Draw
    extras: Mapping[str, Array]


@dataclass(frozen=True)
class Sequence:
    """`length` rows of one stream, one after the other, and the observation after the last.

    `end="cross"`: rows continue into the next episode, and `first` marks where it begins.
    `end="stop"`: what comes after the episode's end is masked, so an episode shorter than `length`
    gives all its rows. `burn_in` rows of the same episode come before the start, masked where there
    are none. `every`: only rows whose id is a multiple of it are starts; with "stop", an episode's
    rows before its first multiple are then in no sequence. `stack`, `gamma`, `life_loss_ends`,
    `pad` and `reward_clip` are those of `Window`, for each row.
    `Sequence(length=64, burn_in=16, end="stop")`.
    """

    length: int
    stack: int = 1
    gamma: float = 0.99
    end: Literal["cross", "stop"] = "cross"
    burn_in: int = 0
    every: int = 1
    life_loss_ends: bool = False
    pad: Literal["zeros", "first"] = "zeros"
    reward_clip: float = 0.0

    def __post_init__(self) -> None:
        for name, least in {"length": 1, "stack": 1, "burn_in": 0, "every": 1}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= _MOST:
                raise BadConfig(
                    f"Sequence: {name} must be a whole number in [{least}, {_MOST}], got {value!r}"
                )
        if self.end not in ("cross", "stop"):
            raise BadConfig(f"Sequence: end must be 'cross' or 'stop', got {self.end!r}")
        if not 0.0 <= self.gamma <= 1.0:
            raise BadConfig(f"Sequence: gamma must lie in [0, 1], got {self.gamma!r}")
        if self.pad not in ("zeros", "first"):
            raise BadConfig(f"Sequence: pad must be 'zeros' or 'first', got {self.pad!r}")
        if not self.reward_clip >= 0:
            raise BadConfig(f"Sequence: reward_clip must be 0 or more, got {self.reward_clip!r}")

    def fits(self, spec: Spec, length: int) -> None:
        """Raise BadConfig unless a ring of `length` rows per stream can ever serve this."""
        if length < self.stack + self.length:
            raise BadConfig(
                f"Sequence: stack {self.stack} and length {self.length} span "
                f"{self.stack + self.length} rows, a stream keeps {length}; "
                "raise capacity or shorten the sequence"
            )
        if self.life_loss_ends and "life_lost" not in spec.extras:
            raise BadConfig(
                "Sequence: life_loss_ends needs the extra 'life_lost', which this Spec does not "
                'declare; add extras={"life_lost": Field("bool")}'
            )

    @property
    def ranked(self) -> Sequence:
        """The same for a ring with priorities: there age decides, so that a start that is given its
        priority once, when `length` rows follow it, keeps it until it grows too old."""
        return _Aged(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def n_step(self) -> int:
        """Rows from a start on whose flags decide about it."""
        return self.length

    @property
    def before(self) -> int:
        """Rows before a start whose flags matter."""
        return self.burn_in + self.stack - 1

    @property
    def _plain(self) -> bool:
        """Whether every row of every sequence is there, whatever the flags say."""
        return self.end == "cross" and not self.burn_in

    @property
    def time(self) -> int:
        """Rows of a sequence: the burn-in and those to learn from."""
        return self.burn_in + self.length

    def eligible(self, size: Array, length: int) -> tuple[Array, Array]:
        """Of `size` rows, counted from the oldest: first start, how many, by number alone.

        What is left is decided by flags, exactly, if a ring's newest row counts as cut.
        """
        none = size * 0
        count = size - (self.length if self.end == "cross" else 1)
        return none, count * (count > 0)

    def judge(self, flags: Array, xp: Any) -> Span:
        """Judge starts by the flags bytes of rows i - before ... i + length - 1 (first axis)."""
        here, axes = self.before, (*range(1, flags.ndim), 0)
        start, ahead, behind = flags[here], flags[here:], flags[here::-1]
        nothing, around = xp.zeros(start.shape, np.int32), flags.transpose(*axes)
        stepped = (start & (BORDER | CONTEXT)) == 0
        if self.end == "cross":
            whole = np.int32(self.length)
            until = nothing + whole
            linked = (xp.bitwise_or.reduce(around[..., here:], axis=-1) & CUT) == 0
        else:
            until = _earliest((ahead & ENDED) != 0, self.length - 1, xp) + 1
            linked = _earliest((ahead & CUT) != 0, self.length, xp) >= until
        if not here:  # nothing before the start is asked for
            return Span(stepped & linked, nothing, nothing, until, around)
        # Back to the first row of the episode, or to a cut, or as far as is asked.
        first = _earliest((behind & FIRST) != 0, here, xp)
        earlier = behind[1:]
        cut = _earliest((earlier & CUT) != 0, here, xp)
        back = xp.where(first <= cut, first, cut - (self.stack - 1))  # those that have their stack
        valid, reach = stepped & (back >= 0) & linked, xp.minimum(first, cut)
        return Span(valid, back, reach, until, around)

    def offsets(self, span: Span, xp: Any) -> Array:
        """Which rows are read, [..., time + 1]; where there is none, the nearest that is.

        Where they are the same of all starts, they are given once: [1, time + 1].
        """
        rows = xp.arange(-self.burn_in, self.length + 1, dtype=_whole(xp))
        if self._plain:
            return rows[None]
        return xp.clip(rows, -span.back[..., None], span.until[..., None])

    def whole(self, span: Span) -> Array:
        """bool[...]: which sequences have every row that is asked for, none of them repeated."""
        if self._plain:
            return np.True_
        return (span.back >= self.burn_in) & (span.until == self.length)

    def seen(self, span: Span, xp: Any) -> Array:
        """uint8[..., time]: the flags bytes of the rows; where there is no row, BORDER."""
        flags = span.flags[..., self.stack - 1 :]
        if self._plain:
            return flags
        rows = xp.arange(-self.burn_in, self.length, dtype=np.int32)
        begun = rows >= -span.back[..., None]
        there = begun & (rows < span.until[..., None])
        return xp.where(there, flags, np.uint8(BORDER))

    def facts(self, seen: Array) -> SpanFacts:
        """From flags bytes as `seen` gives them; what each says depends on no other."""
        mask = (seen & BORDER) == 0
        seen = seen * mask  # nothing is said of what is not a step
        stops = TERMINATED | LIFE_LOST if self.life_loss_ends else TERMINATED
        goes_on = mask & ((seen & stops) == 0)
        first, terminated, truncated, life_lost = (
            (seen & flag) != 0 for flag in (FIRST, TERMINATED, TRUNCATED, LIFE_LOST)
        )
        discount = goes_on * np.float32(self.gamma)
        return SpanFacts(mask, first, terminated, truncated, life_lost, discount)

    def rewards(self, rewards: Array, mask: Array, xp: Any) -> Array:
        """float32[..., time]: clipped, and 0 where there is no step."""
        if self.reward_clip:
            rewards = xp.clip(rewards, -self.reward_clip, self.reward_clip)
        return xp.where(mask, rewards, np.float32(0))

    def lookback(self, flags: Array, span: Span, xp: Any) -> tuple[Array, Array]:
        """Offsets of every observation's stack, oldest first, and which of them are padding.

        int32[..., time + 1, stack] and bool of that shape, from the flags of the rows at `offsets`.
        """
        at = self.offsets(span, xp)
        firsts = xp.where((flags & FIRST) != 0, at, -span.reach[..., None])
        depth = at - xp.maximum.accumulate(firsts, axis=-1)  # from the episode's first row on
        back, padded = Window(self.stack, pad=self.pad).lookback(depth, xp)
        return at[..., None] - back, padded


class _Aged(Sequence):
    """A Sequence whose starts are old enough, or too old, by age alone, as those of a Window."""

    def eligible(self, size: Array, length: int) -> tuple[Array, Array]:
        first = (size == length) * (self.stack - 1)
        number = size - self.length - first
        return first, number * (number > 0)


AnyWindow = Window | Sequence
Sample = Batch | SequenceBatch  # what a store gives, by its window

if TYPE_CHECKING:  # a plain `Pond` gives `Batch`; Python 3.11 itself knows no default here
    from typing_extensions import TypeVar

    AnyBatch = TypeVar("AnyBatch", default=Batch)
else:
    AnyBatch = typing.TypeVar("AnyBatch")


def _whole(xp: Any) -> Any:
    """The kind of numbers that places are: on the host those that NumPy indexes with."""
    return np.int64 if xp is np else np.int32


def _earliest(found: Array, none: int, xp: Any) -> Array:
    """int32: along the first axis, the first place where it was found; `none` if nowhere."""
    places = xp.arange(found.shape[0], dtype=np.int32).reshape(-1, *(1,) * (found.ndim - 1))
    return xp.where(found, places, _FAR).min(axis=0, initial=none)


def host_sequences(
    spec: Spec,
    sequence: Sequence,
    number: int,
    out: SequenceBatch | None = None,
    ranked: bool = False,
) -> SequenceBatch:
    """NumPy arrays for `number` sequences, not yet filled; or `out`, if it fits."""
    rows = sequence.time
    if out is not None:
        shape = np.shape(out.reward) if isinstance(out, SequenceBatch) else ()
        if shape != (number, rows) or (out.draw.probability is not None) != ranked:
            raise SpecMismatch(
                f"sample: out must be a batch of {number} sequences of {rows} rows; "
                "pass what an earlier sample of the same size returned"
            )
        return out
    keep_freed_memory()

    def empty(field: Field, *lead: int) -> np.ndarray:
        return np.empty((number, *lead, *field.shape), field.dtype)

    def plain(dtype: str, *shape: int) -> np.ndarray:
        return np.empty((number, *shape), dtype)

    obs = {path: empty(field, rows + 1, sequence.stack) for path, field in walk(spec.obs, "obs")}
    return SequenceBatch(
        obs=spec.obs_tree(obs),
        action=empty(spec.action, rows),
        reward=plain("float32", rows),
        discount=plain("float32", rows),
        terminated=plain("bool", rows),
        truncated=plain("bool", rows),
        first=plain("bool", rows),
        mask=plain("bool", rows),
        weight=plain("float32"),
        draw=Draw(plain("int32"), plain("int64"), plain("float32") if ranked else None),
        extras={name: empty(field, rows) for name, field in spec.extras.items()},
    )


def blank_batch(
    spec: Spec, window: AnyWindow, number: int, out: Any = None, ranked: bool = False
) -> Sample:
    """NumPy arrays for `number` samples of a window, not yet filled; or `out`, if it fits."""
    if isinstance(window, Sequence):
        return host_sequences(spec, window, number, out, ranked)
    return host_batch(spec, window.stack, number, out, ranked)


def sequence_priority(errors: Array, mask: Array, mix: float = 0.9) -> Array:
    """Priorities[batch] of sequences from TD errors[batch, length], as in R2D2: NumPy or JAX.

    `mix` times the largest plus `1 - mix` times the mean of the absolute errors, of those where
    mask[batch, length] is true; 0 where it is never true. Leave the burn-in out of both.
    `pond.update_priorities(batch.draw, sequence_priority(errors, batch.mask))`.
    """
    if np.shape(errors) != np.shape(mask):
        remedy = "one error per row, and the mask of the same rows"
        raise mismatch("errors", f"shape {np.shape(mask)}", f"{np.shape(errors)}", remedy)
    if isinstance(mix, (int, float)) and not 0 <= mix <= 1:
        raise BadConfig(f"sequence_priority: mix must lie in [0, 1], got {mix!r}")
    xp: Any = jnp if isinstance(errors, jax.Array) or isinstance(mask, jax.Array) else np
    size, steps = xp.where(mask, abs(errors), 0), mask.sum(axis=-1)
    return mix * size.max(axis=-1) + (1 - mix) * size.sum(axis=-1) / xp.maximum(steps, 1)
