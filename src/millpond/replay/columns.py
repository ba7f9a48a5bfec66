"""`Column`: how one field lies in a device ring, as 32-bit words where it is wide.

On an H200 a gather of 32-bit words runs 2.3 times faster than one of bytes, so 8- and 16-bit
fields are padded to whole words and reinterpreted, and binary fields take one bit per element.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field

_BITS = np.arange(32, dtype=np.uint32)


class Column:
    """Encodes values [..., *shape] to stored rows [..., *stored_shape] and back, exactly."""

    def __init__(self, path: str, field: Field) -> None:
        if field.dtype.itemsize == 8:
            raise BadConfig(
                f"Pond: field '{path}' is {field.dtype}, and JAX holds no 64-bit values on a "
                "device; declare a 32-bit field or use HostPond"
            )
        self.field = field
        self.shape: tuple[int, ...]
        if field.binary:
            self.shape, self.dtype = (-(-field.size // 32),), np.dtype(np.uint32)
        elif not field.shape:
            self.shape, self.dtype = (), field.dtype
        elif field.dtype.itemsize == 4:
            self.shape, self.dtype = (field.size,), field.dtype
        else:
            self.shape, self.dtype = (-(-field.nbytes // 4),), np.dtype(np.uint32)

    @property
    def nbytes(self) -> int:
        """Bytes per stored row, padding included."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def encode(self, value: Array, lead: tuple[int, ...]) -> Array:
        """[*lead, *field.shape] of any accepted dtype → [*lead, *self.shape] as stored."""
        field = self.field
        if not field.shape:
            return jnp.asarray(value).astype(field.dtype)
        flat = jnp.reshape(value, (*lead, field.size))
        if field.binary:
            flat = (flat != 0).astype(jnp.uint32)
            flat = _pad(flat, self.shape[0] * 32).reshape(*lead, self.shape[0], 32)
            return (flat << _BITS).sum(-1, dtype=jnp.uint32)
        flat = flat.astype(field.dtype)
        if self.dtype == field.dtype:
            return flat
        per_word = 4 // field.dtype.itemsize
        flat = _pad(flat, self.shape[0] * per_word).reshape(*lead, self.shape[0], per_word)
        return jax.lax.bitcast_convert_type(flat, jnp.uint32)

    def decode(self, stored: Array) -> Array:
        """[..., *self.shape] as stored → [..., *field.shape] in the field's dtype."""
        field = self.field
        if not field.shape:
            return stored
        lead = stored.shape[:-1]
        if field.binary:
            bits = (stored[..., None] >> _BITS) & 1
            flat = bits.reshape(*lead, -1)[..., : field.size].astype(field.dtype)
        elif self.dtype == field.dtype:
            flat = stored
        else:
            parts = jax.lax.bitcast_convert_type(stored, field.dtype)
            flat = parts.reshape(*lead, -1)[..., : field.size]
        return flat.reshape(*lead, *field.shape)


def _pad(flat: Array, size: int) -> Array:
    missing = size - flat.shape[-1]
    return jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, missing)]) if missing else flat
