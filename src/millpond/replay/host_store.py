"""`HostStore`: one field of all rows of a host ring, laid out for `np.take`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ..spec import Field
from .layouts import Layout

_WIDE = 1024  # bytes; wider fields are stored stream by stream, so a window is contiguous
SHORT = 8000  # bytes; copying up to this many twice is faster than one more NumPy call
_BLOCK = 2**18  # bytes; a block of this size is read and written within a core's cache


class HostStore:
    """[capacity + 1, width]: the ring's rows, and a row of zeros for padded stack positions."""

    def __init__(self, field: Field, layout: Layout, stretched: bool = False) -> None:
        """`stretched`: stream by stream, as narrow as it may be, for who reads many rows of one."""
        self.field, self.layout = field, layout
        wide = stretched or field.nbytes >= _WIDE
        self.turned = not layout.own_heads and layout.streams > 1 and wide
        self._size = field.size
        width = field.nbytes if field.binary else field.size
        self.data = np.zeros(
            (layout.capacity + 1, width), np.uint8 if field.binary else field.dtype
        )
        self.ring = self.data[:-1]
        # The same with one item per row, in memory order: such items are copied whole.
        self._item = np.dtype((np.void, width * self.data.itemsize))
        self.rows = self.ring.reshape(-1).view(self._item)
        turned = self.turned or layout.own_heads
        outer = (layout.streams, layout.length) if turned else (layout.length, layout.streams)
        grid = self.ring.reshape(*outer, width)
        self.grid = grid.swapaxes(0, 1) if turned else grid  # a view [length, streams, width]
        # One item per step of all streams, if contiguous and short: then `tobytes` and one item
        # assignment are faster than assigning an array.
        step, beside = layout.streams * self._item.itemsize, layout.streams == 1 or not turned
        short = beside and step <= SHORT
        self.steps = self.ring.reshape(-1).view(np.dtype((np.void, step))) if short else None

    @property
    def values_grid(self) -> np.ndarray:
        """A view [length, streams, *field.shape] of a column that is not binary."""
        return self.grid.reshape(*self.grid.shape[:2], *self.field.shape)

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
        """Write encoded rows[n, width] at distinct slots[n]."""
        self.put_as_they_lie(self._turn(slots) if self.turned else slots, rows)

    def put_as_they_lie(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """The same, with slots in this column's memory order."""
        if rows.dtype is self.data.dtype and rows.nbytes <= SHORT:
            self.rows[slots] = np.frombuffer(rows.tobytes(), self._item)
            return
        items = np.ascontiguousarray(rows, self.data.dtype).reshape(-1).view(self._item)
        self.rows.put(slots, items, "clip")  # five times faster than to index rows of numbers

    def take_around(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Read rows at slots, modulo the ring's size, into out[n, *field.shape]."""
        self._take(self.ring, self._turn(slots) if self.turned else slots, out)

    def take_stacks(
        self,
        stream: np.ndarray,
        rows: np.ndarray,
        padded: np.ndarray,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Read two stacks per sample, rows[2, batch, stack] of stream[batch, 1], into `outs`.

        Block by block, so that frames in both stacks are fetched from memory once.
        """
        turned = self.turned or self.layout.own_heads
        slots = (
            stream * self.layout.length + rows if turned else rows * self.layout.streams + stream
        )
        slots[padded] = self.layout.capacity
        if self.field.binary:
            for where, out in zip(slots, outs, strict=True):
                self._take(self.data, where, out)
            return
        width, take = self.data.shape[1], self.data.take
        size = max(1, _BLOCK // (rows.shape[-1] * self.field.nbytes)) * rows.shape[-1]
        flat = [array.reshape(-1) for array in slots] + [array.reshape(-1, width) for array in outs]
        for here, after, obs, next_obs in zip(*(_blocks(a, size) for a in flat), strict=True):
            take(here, 0, obs, "wrap")
            take(after, 0, next_obs, "wrap")

    def take_stretched(
        self, slots: np.ndarray, out: np.ndarray, padded: np.ndarray | None = None
    ) -> None:
        """Read rows at slots stream * length + row, zeros where padded, into `out`."""
        if padded is not None:
            slots = np.where(padded, self.layout.capacity, slots)
        self._take(self.data, slots, out)

    def _take(self, data: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
        flat = slots.reshape(-1)
        if self.field.binary:
            out[...] = self.unpack(data.take(flat, axis=0, mode="wrap")).reshape(out.shape)
        elif self.field.shape:
            # The default mode checks every slot before it writes to `out`: 2.3 times slower.
            data.take(flat, axis=0, out=out.reshape(flat.size, self._size), mode="wrap")
        else:
            data.reshape(-1).take(flat, out=out.reshape(-1), mode="wrap")

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Rows of a binary field as stored, [..., width] → [..., size] of 0 and 1."""
        return np.unpackbits(packed, axis=-1, count=self._size, bitorder="little")

    def values(self) -> np.ndarray:
        """A copy of the ring as values [*layout.lead, *field.shape]."""
        grid = self.grid.swapaxes(0, 1) if self.layout.own_heads else self.grid
        if self.field.binary:
            bits = self.unpack(grid)
            return bits.reshape(*self.layout.lead, *self.field.shape).astype(self.field.dtype)
        return grid.copy().reshape(*self.layout.lead, *self.field.shape)

    def restore(self, values: np.ndarray) -> None:
        """The inverse of `values`."""
        grid = values.swapaxes(0, 1) if self.layout.own_heads else values
        self.grid[...] = self.encode(grid)

    def _turn(self, slots: np.ndarray) -> np.ndarray:
        position, stream = np.divmod(slots % self.layout.capacity, self.layout.streams)
        return stream * self.layout.length + position


def _blocks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Split an array into parts of `size`, and a shorter last one."""
    whole = len(array) // size * size
    parts = array[:whole].reshape(-1, size, *array.shape[1:])
    return chain(parts, [array[whole:]] if whole < len(array) else [])
