"""Writing a block of rows into a ring in place: no scatter, no copy of the ring."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


def write(ring: Array, block: Array, head: Array) -> Array:
    """Put block[rows, ...] at head, head+1, ... of ring[length, ...], around its end.

    rows <= length. Each update reads just the rows it writes, which XLA does in place.
    """
    length, rows = ring.shape[0], block.shape[0]
    tail = (0,) * (ring.ndim - 1)
    if rows == 1:
        return jax.lax.dynamic_update_slice(ring, block, (head, *tail))
    if 2 * rows > length:  # most of the ring changes: rebuild it in one pass
        position = jnp.arange(length, dtype=np.int32)
        offset = (position - head) % length
        fresh = jnp.roll(jnp.concatenate([block, ring[: length - rows]]), head, axis=0)
        return jnp.where(_along(offset < rows, ring), fresh, ring)
    wrapped = jnp.maximum(head + rows - length, 0)  # rows that continue at position 0
    fresh = jnp.roll(block, wrapped, axis=0)
    here = _along(jnp.arange(rows, dtype=np.int32) >= wrapped, ring)
    for start, mine in ((head - wrapped, here), (jnp.int32(0), ~here)):
        old = jax.lax.dynamic_slice(ring, (start, *tail), block.shape)
        ring = jax.lax.dynamic_update_slice(ring, jnp.where(mine, fresh, old), (start, *tail))
    return ring


def _along(mask: Array, ring: Array) -> Array:
    return mask.reshape(-1, *(1,) * (ring.ndim - 1))
