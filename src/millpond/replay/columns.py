"""`Column`: how a field is stored in a device ring.

On an H200, gathering 32-bit words is 2.3 times faster than gathering bytes, so 8- and 16-bit fields
are padded to whole words and reinterpreted, and binary fields take one bit per element. On a CPU,
wide rows of bytes are gathered at memory speed, and converting words to bytes one by one would be
slow, so they stay bytes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field
from .bits import WIDE

_BITS = np.arange(32, dtype=np.uint32)


class Column:
    """Encodes values [..., *shape] to stored rows [..., *stored_shape] and back, exactly."""

    def __init__(self, path: str, field: Field, words: bool = True) -> None:
        """`words`: store everything as 32-bit words; else, wide rows keep their dtype."""
        if field.dtype.itemsize == 8:
            raise BadConfig(
                f"Pond: field '{path}' is {field.dtype}, and JAX holds no 64-bit values on a "
                "device; declare a 32-bit field or use HostPond"
            )
        self.field = field
        self.words = -(-field.nbytes // 4)
        own = not field.shape or (field.dtype.itemsize == 4 and not field.binary)
        self.dtype = field.dtype if own else np.dtype(np.uint32)
        self.shape = _row_shape(self.words) if field.shape else ()
        whole = field.nbytes >= WIDE and field.nbytes % 4 == 0  # as many bytes either way
        if not words and whole and not field.binary and field.dtype != bool:
            self.dtype, self.shape = field.dtype, (field.size,)

    @property
    def nbytes(self) -> int:
        """Bytes per stored row, padding included."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def encode(self, value: Array, lead: tuple[int, ...]) -> Array:
        """Values [*lead, *field.shape] of any accepted dtype, as stored: [*lead, *self.shape]."""
        field = self.field
        if not field.shape:
            return jnp.asarray(value).astype(field.dtype)
        flat = jnp.reshape(value, (*lead, field.size))
        if field.binary:
            flat = (flat != 0).astype(jnp.uint32)
            flat = _pad(flat, self.words * 32).reshape(*lead, *self.shape, 32)
            return (flat << _BITS).sum(-1, dtype=jnp.uint32)
        flat = flat.astype(field.dtype)
        if self.dtype == field.dtype:
            return flat.reshape(*lead, *self.shape)
        per_word = 4 // field.dtype.itemsize
        flat = _pad(flat, self.words * per_word).reshape(*lead, *self.shape, per_word)
        return jax.lax.bitcast_convert_type(flat, jnp.uint32)

    def decode(self, stored: Array) -> Array:
        """Stored rows [..., *self.shape] as values [..., *field.shape] in the field's dtype."""
        field = self.field
        if not field.shape:
            return stored
        lead = stored.shape[: stored.ndim - len(self.shape)]
        if field.binary:
            bits = (stored[..., None] >> _BITS) & 1
            flat = bits.reshape(*lead, self.words * 32)[..., : field.size].astype(field.dtype)
        elif self.dtype == field.dtype:
            flat = stored
        else:
            parts = jax.lax.bitcast_convert_type(stored, field.dtype)
            flat = parts.reshape(*lead, self.words * (4 // field.dtype.itemsize))[..., : field.size]
        return flat.reshape(*lead, *field.shape)


def _row_shape(words: int) -> tuple[int, ...]:
    """The shape of a row of this many words in the ring.

    XLA on CPU gathers flat rows of 24 to 48 words one by one (1.6 ns each), but rows shaped
    4 x up to 8 or 8 x up to 8 as vectors (0.3 ns); wider rows are fast anyway. On a GPU it makes no
    difference.
    """
    for rows in (8, 4):
        if words % rows == 0 and 1 < words // rows <= 8:
            return rows, words // rows
    return (words,)


def _pad(flat: Array, size: int) -> Array:
    missing = size - flat.shape[-1]
    return jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, missing)]) if missing else flat
