"""Writes blocks of rows into a ring in place, without copying the ring."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


def write(rings: Any, blocks: Any, head: Array, axis: int = 0) -> Any:
    """Write blocks [rows, ...] at head, head + 1, ... of rings [length, ...], wrapping around.

    Both are trees of arrays with equal rows and length along `axis`; rows <= length. Each update
    reads only the rows it writes, which XLA does in place.
    """
    ring, block = jax.tree.leaves(rings)[0], jax.tree.leaves(blocks)[0]
    length, rows = ring.shape[axis], block.shape[axis]
    if rows == 1:
        return jax.tree.map(lambda ring, block: _put(ring, block, head, axis), rings, blocks)
    if 2 * rows > length:
        return jax.tree.map(lambda ring, block: _rebuild(ring, block, head, axis), rings, blocks)
    # On CPU, a loop of 0 or 1 iterations is a branch that XLA runs in place; `cond` would copy the
    # rings. On GPU, such a loop has to ask the host, and scattering whole rows runs at full speed.
    ways = {"cpu": _write_by_loop, "default": _scatter}
    ways = {name: functools.partial(way, axis=axis) for name, way in ways.items()}
    return jax.lax.platform_dependent(rings, blocks, head, **ways)


def _write_by_loop(rings: Any, blocks: Any, head: Array, axis: int) -> Any:
    """Write all rows at once if they fit before the ring's end, else one by one."""
    length, rows = (jax.tree.leaves(tree)[0].shape[axis] for tree in (rings, blocks))
    fits = head + rows <= length

    def put_all(_: Array, rings: Any) -> Any:
        return jax.tree.map(lambda ring, block: _put(ring, block, head, axis), rings, blocks)

    def put_row(row: Array, rings: Any) -> Any:
        def put(ring: Array, block: Array) -> Array:
            one = jax.lax.dynamic_slice_in_dim(block, row, 1, axis)
            return _put(ring, one, (head + row) % length, axis)

        return jax.tree.map(put, rings, blocks)

    rings = jax.lax.fori_loop(0, jnp.where(fits, 1, 0), put_all, rings)
    return jax.lax.fori_loop(0, jnp.where(fits, 0, rows), put_row, rings)


def _scatter(rings: Any, blocks: Any, head: Array, axis: int) -> Any:
    def put(ring: Array, block: Array) -> Array:
        rows = (head + np.arange(block.shape[axis], dtype=np.int32)) % ring.shape[axis]
        where = (slice(None),) * axis + (rows,)
        return ring.at[where].set(block, mode="promise_in_bounds", unique_indices=True)

    return jax.tree.map(put, rings, blocks)


def write_pair(ring: Array, pair: Array, head: Array, axis: int = 0) -> Array:
    """Write two rows at head and head + 1, in the fastest way of each platform."""
    length = ring.shape[axis]

    def one_by_one(ring: Array, pair: Array, head: Array) -> Array:
        first, second = jnp.split(pair, 2, axis)
        return _put(_put(ring, first, head, axis), second, (head + 1) % length, axis)

    scatter = functools.partial(_scatter, axis=axis)
    return jax.lax.platform_dependent(ring, pair, head, cpu=one_by_one, default=scatter)


def _put(ring: Array, block: Array, head: Array, axis: int) -> Array:
    where = [jnp.zeros_like(head)] * ring.ndim  # of head's dtype, also under x64
    where[axis] = head
    return jax.lax.dynamic_update_slice(ring, block, where)


def _rebuild(ring: Array, block: Array, head: Array, axis: int) -> Array:
    """Write a block that replaces most of the ring, in one pass over it."""
    length, rows = ring.shape[axis], block.shape[axis]
    kept = jax.lax.slice_in_dim(ring, 0, length - rows, axis=axis)
    fresh = jnp.roll(jnp.concatenate([block, kept], axis), head, axis)
    changed = (jnp.arange(length, dtype=np.int32) - head) % length < rows
    return jnp.where(changed.reshape(-1, *(1,) * (ring.ndim - 1 - axis)), fresh, ring)
