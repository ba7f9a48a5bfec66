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
    # would have to ask the host how many turns; there, writing twice is cheaper.
    return jax.lax.platform_dependent(rings, blocks, head, cpu=_write_by_loop, default=_write_twice)


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


def _write_twice(rings: Any, blocks: Any, head: Array) -> Any:
    """Two updates of block-sized parts: up to the ring's end, and from its start."""
    return jax.tree.map(lambda ring, block: _split(ring, block, head), rings, blocks)


def _put(ring: Array, block: Array, head: Array) -> Array:
    return jax.lax.dynamic_update_slice(ring, block, (head,) + (0,) * (ring.ndim - 1))


def _split(ring: Array, block: Array, head: Array) -> Array:
    wrapped = jnp.maximum(head + block.shape[0] - ring.shape[0], 0)
    fresh = jnp.roll(block, wrapped, axis=0)
    here = _along(jnp.arange(block.shape[0], dtype=np.int32) >= wrapped, ring)
    for start, mine in ((head - wrapped, here), (jnp.int32(0), ~here)):
        corner = (start,) + (0,) * (ring.ndim - 1)
        old = jax.lax.dynamic_slice(ring, corner, block.shape)
        ring = jax.lax.dynamic_update_slice(ring, jnp.where(mine, fresh, old), corner)
    return ring


def _rebuild(ring: Array, block: Array, head: Array) -> Array:
    """Most of the ring changes: one pass over it."""
    length, rows = ring.shape[0], block.shape[0]
    fresh = jnp.roll(jnp.concatenate([block, ring[: length - rows]]), head, axis=0)
    changed = (jnp.arange(length, dtype=np.int32) - head) % length < rows
    return jnp.where(_along(changed, ring), fresh, ring)


def _along(mask: Array, ring: Array) -> Array:
    return mask.reshape(-1, *(1,) * (ring.ndim - 1))
