"""Writing a block of rows into a ring in place: no scatter, no copy of the ring."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


def write(rings: Any, blocks: Any, head: Array) -> Any:
    """Put blocks [rows, ...] at head, head+1, ... of rings [length, ...], around their end.

    Trees of arrays with the same rows and length; rows <= length. Each update reads just the rows
    it writes, which XLA does in place.
    """
    ring, block = jax.tree.leaves(rings)[0], jax.tree.leaves(blocks)[0]
    length, rows = ring.shape[0], block.shape[0]
    if rows == 1:
        return jax.tree.map(lambda ring, block: _put(ring, block, head), rings, blocks)
    if 2 * rows > length:
        return jax.tree.map(lambda ring, block: _rebuild(ring, block, head), rings, blocks)
    # A loop of no or one turn is a choice that XLA makes in place; `cond` copies the rings. A GPU
    # would have to ask the host how many turns; it scatters whole rows at full speed instead.
    return jax.lax.platform_dependent(rings, blocks, head, cpu=_write_by_loop, default=_scatter)


def _write_by_loop(rings: Any, blocks: Any, head: Array) -> Any:
    """All rows at once where they fit before the ring's end, or else one by one."""
    length, rows = (jax.tree.leaves(tree)[0].shape[0] for tree in (rings, blocks))
    fits = head + rows <= length

    def put_all(_: Array, rings: Any) -> Any:
        return jax.tree.map(lambda ring, block: _put(ring, block, head), rings, blocks)

    def put_row(row: Array, rings: Any) -> Any:
        def put(ring: Array, block: Array) -> Array:
            one = jax.lax.dynamic_slice_in_dim(block, row, 1)
            return _put(ring, one, (head + row) % length)

        return jax.tree.map(put, rings, blocks)

    rings = jax.lax.fori_loop(0, jnp.where(fits, 1, 0), put_all, rings)
    return jax.lax.fori_loop(0, jnp.where(fits, 0, rows), put_row, rings)


def _scatter(rings: Any, blocks: Any, head: Array) -> Any:
    def put(ring: Array, block: Array) -> Array:
        rows = (head + np.arange(block.shape[0], dtype=np.int32)) % ring.shape[0]
        return ring.at[rows].set(block, mode="promise_in_bounds", unique_indices=True)

    return jax.tree.map(put, rings, blocks)


def write_pair(ring: Array, pair: Array, head: Array) -> Array:
    """Two rows at head and after it, as fast as either placement can."""
    length = ring.shape[0]

    def one_by_one(ring: Array, pair: Array, head: Array) -> Array:
        return _put(_put(ring, pair[:1], head), pair[1:], (head + 1) % length)

    return jax.lax.platform_dependent(ring, pair, head, cpu=one_by_one, default=_scatter)


def _put(ring: Array, block: Array, head: Array) -> Array:
    zeros = (jnp.zeros_like(head),) * (ring.ndim - 1)  # of head's dtype, also under x64
    return jax.lax.dynamic_update_slice(ring, block, (head, *zeros))


def _rebuild(ring: Array, block: Array, head: Array) -> Array:
    """Most of the ring changes: one pass over it."""
    length, rows = ring.shape[0], block.shape[0]
    fresh = jnp.roll(jnp.concatenate([block, ring[: length - rows]]), head, axis=0)
    changed = (jnp.arange(length, dtype=np.int32) - head) % length < rows
    return jnp.where(_along(changed, ring), fresh, ring)


def _along(mask: Array, ring: Array) -> Array:
    return mask.reshape(-1, *(1,) * (ring.ndim - 1))
