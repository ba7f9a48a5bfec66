"""Writing a block of rows into a ring in place: no scatter, no copy of the ring."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


def write(ring: Array, block: Array, head: Array) -> Array:
    """Put block[rows, ...] at head, head+1, ... of ring[length, ...], around its end.

    rows <= length. Everything is read before anything is written: XLA would copy the whole ring
    to keep a value that is read after an update.
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
    start = head - wrapped
    fresh = jnp.roll(block, wrapped, axis=0)
    upper = jax.lax.dynamic_slice(ring, (start, *tail), block.shape)
    stays = _along(jnp.arange(rows, dtype=np.int32) >= wrapped, ring)
    lower = jnp.where(stays, ring[:rows], fresh)
    upper = jnp.where(stays, fresh, upper)
    ring = jax.lax.dynamic_update_slice(ring, lower, (0, *tail))
    return jax.lax.dynamic_update_slice(ring, upper, (start, *tail))


def _along(mask: Array, ring: Array) -> Array:
    return mask.reshape(-1, *(1,) * (ring.ndim - 1))
