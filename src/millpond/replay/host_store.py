"""`HostStore`: one field of every row of a host ring, ready for `np.take`."""

from __future__ import annotations

import numpy as np

from ..spec import Field
from .layouts import Layout

_WIDE = 1024  # bytes; wider fields lie stream by stream, which makes a window one stretch of memory


class HostStore:
    """[capacity + 1, width]: the ring's rows and one row of zeros for padded stack positions."""

    def __init__(self, field: Field, layout: Layout) -> None:
        self.field, self.layout = field, layout
        self.turned = not layout.own_heads and layout.streams > 1 and field.nbytes >= _WIDE
        width = field.nbytes if field.binary else field.size
        self.data = np.zeros(
            (layout.capacity + 1, width), np.uint8 if field.binary else field.dtype
        )
        self.ring = self.data[:-1]
        turned = self.turned or layout.own_heads
        outer = (layout.streams, layout.length) if turned else (layout.length, layout.streams)
        grid = self.ring.reshape(*outer, width)
        self.grid = grid.swapaxes(0, 1) if turned else grid  # a view [length, streams, width]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.data.nbytes

    def encode(self, value: np.ndarray) -> np.ndarray:
        """[time, stream, *shape] → [time, stream, width] as stored."""
        flat = value.reshape(value.shape[0], value.shape[1], -1)
        if self.field.binary:
            return np.packbits(flat != 0, axis=-1, bitorder="little")
        return flat

    def put(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """Write encoded rows[n, width] at slots[n], none of them twice."""
        self.data[self._turn(slots)] = rows

    def take(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Rows at slots, capacity meaning zeros, into out[*slots.shape, *field.shape]."""
        self._take(self.data, self._turn(slots), out)

    def take_around(self, slots: np.ndarray, out: np.ndarray) -> None:
        """As `take`, but slots go on around the ring's end, and none means zeros."""
        if self.turned:
            slots = self._turn(slots % self.layout.capacity)
        self._take(self.ring, slots, out)

    def _take(self, data: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
        flat = slots.reshape(-1)
        if self.field.binary:
            packed = data.take(flat, axis=0, mode="wrap")
            bits = np.unpackbits(packed, axis=-1, count=self.field.size, bitorder="little")
            out[...] = bits.reshape(out.shape)
        elif self.field.shape:
            # The default mode checks every slot before it writes to `out`: 2.3 times slower.
            data.take(flat, axis=0, out=out.reshape(flat.size, -1), mode="wrap")
        else:
            data.reshape(-1).take(flat, out=out.reshape(-1), mode="wrap")

    def values(self) -> np.ndarray:
        """A copy of the ring as values [*layout.lead, *field.shape]."""
        grid = self.grid.swapaxes(0, 1) if self.layout.own_heads else self.grid
        if self.field.binary:
            bits = np.unpackbits(grid, axis=-1, count=self.field.size, bitorder="little")
            return bits.reshape(*self.layout.lead, *self.field.shape).astype(self.field.dtype)
        return grid.copy().reshape(*self.layout.lead, *self.field.shape)

    def restore(self, values: np.ndarray) -> None:
        """The inverse of `values`."""
        grid = values.swapaxes(0, 1) if self.layout.own_heads else values
        self.grid[...] = self.encode(grid)

    def _turn(self, slots: np.ndarray) -> np.ndarray:
        if not self.turned:
            return slots
        position, stream = np.divmod(slots, self.layout.streams)
        turned = stream * self.layout.length + position
        return np.where(slots == self.layout.capacity, slots, turned)
