"""The row format shared by acting, device replay, host replay and disk.

A row is one environment step of one stream. Nothing is stored twice: the next observation is
the next row's observation, and an episode ends with one *border row* that holds its final
observation. `Rows` holds any number of rows, with leading axes `[]`, `[env]` or `[time, env]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np

from .errors import SpecMismatch
from .memory import keep_freed_memory
from .spec import Field, Spec, walk

__all__ = ["Batch", "Draw", "Field", "Flag", "Rows", "Spec", "border_row", "next_flags"]

Array = Any  # numpy.ndarray or jax.Array: the same code serves both
Tree = Any  # an array, or a nested dict of arrays structured like Spec.obs


class Flag(IntFlag):
    """The kind of a row. A row without flags is an ordinary step inside an episode.

    `np.full(num_envs, Flag.FIRST, np.uint8)` are the flags of the first rows after a reset.
    """

    FIRST = 1  # first row of an episode: no earlier row belongs to it
    BORDER = 2  # an episode's final observation; dummy action, reward 0, never a start
    CONTEXT = 4  # only completes its neighbours' windows, never a start
    CUT = 8  # continuity is lost after this row; no window may cross to the next


# The flags byte of a stored row holds the flags above and these bits. Plain ints: arithmetic on
# enum members costs microseconds, and these are used in hot paths.
FIRST, BORDER, CONTEXT, CUT = (int(flag) for flag in Flag)
TERMINATED = 16
TRUNCATED = 32
LIFE_LOST = 64
ENDED = TERMINATED | TRUNCATED
_BOOL = np.dtype(bool)
_INSIDE = bytes(byte for byte in range(256) if not byte & BORDER)


class Rows(NamedTuple):
    """Environment steps; every field has the same leading axes.

    `reward`, `terminated` and `truncated` are what `step(action)` returned in state `obs`.
    `Rows(obs, action, reward, terminated, truncated, flags)` after `env.step(action)`.
    """

    obs: Tree
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    flags: Array
    extras: Mapping[str, Array] = {}


class Draw(NamedTuple):
    """Which rows a batch was drawn from and, if drawn by priority, how likely each was.

    `row` is a 64-bit id, counted per stream and never reused: int64[batch] on the host,
    uint32[batch, 2] (high word, low word) on a device, where JAX has no int64.
    `batch.draw.ids()`; `pond.update_priorities(batch.draw, errors)`.
    """

    stream: Array
    row: Array
    probability: Array = None  # None unless drawn by priority

    def ids(self) -> np.ndarray:
        """Row ids as int64[batch], whichever placement drew them: `batch.draw.ids()`."""
        row = np.asarray(self.row)
        if row.dtype == np.int64:
            return row
        return (row[..., 0].astype(np.int64) << 32) | row[..., 1].astype(np.int64)


class Batch(NamedTuple):
    """Transitions as defined by a `Window`.

    obs, next_obs: [batch, stack, *shape]; every other field: [batch, ...].
    `discount` is gamma^steps, or 0 where bootstrapping must stop. Entries whose `mask` is false
    are meaningless and must not be trained on. `weight` corrects the sampler's bias.
    `batch = pond.sample(256)`; the target is `reward + discount * value(next_obs)`.
    """

    obs: Tree
    action: Array
    reward: Array
    next_obs: Tree
    discount: Array
    terminated: Array
    truncated: Array
    steps: Array
    mask: Array
    weight: Array
    draw: Draw
    extras: Mapping[str, Array]


def host_batch(
    spec: Spec, stack: int, number: int, out: Batch | None = None, ranked: bool = False
) -> Batch:
    """Uninitialised NumPy arrays for a batch of `number`; or `out`, if given, checked for size."""
    if out is not None:
        if not isinstance(out, Batch) or len(out.reward) != number:
            raise SpecMismatch(
                f"sample: out must be a batch of {number}; "
                "pass what an earlier sample of the same size returned"
            )
        return out
    keep_freed_memory()

    def empty(field: Field, *lead: int) -> np.ndarray:
        return np.empty((number, *lead, *field.shape), field.dtype)

    def obs() -> Tree:
        return spec.obs_tree({path: empty(f, stack) for path, f in walk(spec.obs, "obs")})

    def plain(dtype: str) -> np.ndarray:
        return np.empty(number, dtype)

    return Batch(
        obs=obs(),
        action=empty(spec.action),
        reward=plain("float32"),
        next_obs=obs(),
        discount=plain("float32"),
        terminated=plain("bool"),
        truncated=plain("bool"),
        steps=plain("int32"),
        mask=plain("bool"),
        weight=plain("float32"),
        draw=Draw(plain("int32"), plain("int64"), plain("float32") if ranked else None),
        extras={name: empty(field) for name, field in spec.extras.items()},
    )


def leaf(tree: Tree, path: str) -> Array:
    """The leaf of an observation at a path such as `obs/image`; keys may contain slashes."""
    if not isinstance(tree, Mapping):
        return tree
    return dict(walk(tree, "obs"))[path]


def leaves(tree: Tree) -> list[Array]:
    """The leaves of an observation, in the order of `walk`."""
    return [leaf for _, leaf in walk(tree, "")] if isinstance(tree, Mapping) else [tree]


def next_flags(flags: Array, terminated: Array, truncated: Array, same_step: bool = False) -> Array:
    """Flags of the next rows, for envs with next-step autoreset: uint8[...], NumPy or JAX.

    The row that ends an episode is followed by its border row, and that by the first row of the
    next episode. `flags = next_flags(flags, terminated, truncated)` after every step. With
    `same_step`, for envs that reset in the step that ends the episode, the first row follows at
    once: `add(rows, final_obs=...)` makes the border row.
    """
    if _quiet(flags, terminated, truncated, same_step):
        return np.zeros(flags.shape, np.uint8)
    ended = (terminated | truncated) & ((flags & BORDER) == 0)
    if same_step:
        return ended.astype(np.uint8) * np.uint8(FIRST)
    first = ((flags & BORDER) != 0).astype(np.uint8) * np.uint8(FIRST)
    return first + ended.astype(np.uint8) * np.uint8(BORDER)


def _quiet(flags: Any, terminated: Any, truncated: Any, same_step: bool) -> bool:
    """Whether all are NumPy arrays and no episode ends or begins, as in most steps: a fast path."""
    return (
        flags.__class__ is terminated.__class__ is truncated.__class__ is np.ndarray
        and terminated.dtype is truncated.dtype is _BOOL
        and flags.shape == terminated.shape == truncated.shape
        and 1 not in terminated.tobytes()
        and 1 not in truncated.tobytes()
        and (same_step or not flags.tobytes().translate(None, _INSIDE))
    )


def pack_flags(flags: Array, terminated: Array, truncated: Array, life_lost: Array | None) -> Array:
    """The flags byte to store for checked rows: uint8[...], NumPy or JAX."""
    byte = flags.astype(np.uint8, copy=False)
    byte = byte + terminated * np.uint8(TERMINATED) + truncated * np.uint8(TRUNCATED)
    return byte if life_lost is None else byte + life_lost * np.uint8(LIFE_LOST)


def unpack_rows(spec: Spec, byte: Array, at: Callable[[str], Array]) -> Rows:
    """Rows from stored flags bytes and `at`, which returns the values of a column by path."""
    extras = {
        name: (byte & LIFE_LOST) != 0 if name == "life_lost" else at(f"extras/{name}")
        for name in spec.extras
    }
    return Rows(
        obs=spec.obs_tree({path: at(path) for path, _ in walk(spec.obs, "obs")}),
        action=at("action"),
        reward=at("reward"),
        terminated=(byte & TERMINATED) != 0,
        truncated=(byte & TRUNCATED) != 0,
        flags=byte & np.uint8(FIRST | BORDER | CONTEXT | CUT),
        extras=extras,
    )


def breaks(before: Array, after: Array) -> Array:
    """bool[...]: where a row `after` cannot follow a row `before`, both as stored flags bytes.

    Except after a CUT, a row that ends an episode must be followed by its border row, a border row
    by a FIRST row, and any other row by a row that is neither.
    """
    ended = (before & ENDED) != 0
    border = (before & BORDER) != 0
    same = (ended == ((after & BORDER) != 0)) & (border == ((after & FIRST) != 0))
    return ~same & ((before & CUT) == 0)


def border_row(spec: Spec, final_obs: Tree, extras: Mapping[str, Array] | None = None) -> Rows:
    """The border row that closes an episode of one env: its final observation, without a step.

    `pond.add(border_row(spec, final_obs), env=3)`. For vector envs that reset in the same step, use
    `pond.add(rows, final_obs=...)`.
    """
    blank = {name: field.blank() for name, field in spec.extras.items()}
    return Rows(
        obs=final_obs,
        action=spec.action.lowest(),
        reward=np.float32(0),
        terminated=np.False_,
        truncated=np.False_,
        flags=np.uint8(BORDER),
        extras={**blank, **(extras or {})},
    )
