"""`Entrance`: one column's way into a host ring for values that are right at first sight."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, inf
from struct import Struct
from typing import Any

import numpy as np

from ..rows import Flag
from .host_store import SHORT, HostStore
from .lanes import Asked, within

INTEGERS = {int, Flag, np.uint8, np.int32, np.int64}
MOST = float(np.finfo(np.float32).max)  # a reward beyond it would be stored as infinite
_FEW = 16  # numbers; as many Python handles faster than NumPy
_MANY = 10_000  # numbers; for more a dot product would wake BLAS's threads
_FLOAT64 = np.dtype(np.float64)
_ndarray = np.ndarray


class Entrance:
    """What the values of a column must lie between, by the dtype they come in; and writes them."""

    def __init__(self, store: HostStore, streams: int, reward: bool = False) -> None:
        field = self._field = store.field
        self.shape, self.lead = field.shape, (streams, *field.shape)
        self._reward = reward
        self._dtype = field.dtype
        # By dtype: least and largest, None where nothing needs to be compared; () is refused.
        self._known: dict[np.dtype, tuple[Any, ...]] = {}
        self._least, self._most = self._whole()
        self._store, self._grid = store, store.values_grid
        self._values = store.ring.reshape(-1, *field.shape)
        self.rows, self.steps, self.turned = store.rows, store.steps, store.turned
        self.pack_row, inside_row = self._packer(self.shape)
        self.pack_step, self._inside = self._packer(self.lead)
        # Of bytes: how many a step and a row are, and whether they are surely right.
        any_ = self._known[self._dtype] == (None, None)
        self.step_bytes = int(np.prod(self.lead)) * self._dtype.itemsize
        self.item, self.row_bytes = self.rows.dtype, self.rows.itemsize
        self.inside = _anything if any_ else self._inside or self._packed_between
        self.inside_row = _anything if any_ else inside_row or self._packed_between

    def fits(self, value: Any) -> bool:
        """Whether the values of a step, one per stream, are surely right."""
        if value.__class__ is not _ndarray or value.shape != self.lead:
            return False
        inside = self._inside
        if inside and value.dtype is self._dtype and inside(value.tobytes()):
            return True
        return self.between(value)

    def fits_row(self, value: Any) -> bool:
        """Whether the value of one row is."""
        if value.__class__ is _ndarray:
            return value.shape == self.shape and self.between(value)
        return not self.shape and value.__class__ in INTEGERS and self._least <= value <= self._most

    def between(self, value: np.ndarray) -> bool:
        """Whether all elements of an array are right, whatever its shape."""
        rule = self._known.get(value.dtype)
        if rule is None:
            rule = self._learn(value.dtype)
        if not rule:
            return False
        low, high = rule
        if self._reward:
            if value.size <= _FEW:  # no side is longer than the diagonal; NaN if one is
                return hypot(*value.tolist()) <= high
            if value.dtype is self._dtype and value.size <= _MANY and value.dot(value) <= high:
                return True
        # The first NaN counts as both the least and the largest, and compares with nothing.
        return (high is None or value.item(value.argmax()) <= high) and (
            low is None or value.item(value.argmin()) >= low
        )

    def _packed_between(self, packed: bytes) -> bool:
        return self.between(np.frombuffer(packed, self._dtype))

    def write(self, at: int, value: np.ndarray) -> None:
        """A step of all streams, at the head that they share."""
        if self.steps is not None and value.dtype is self._dtype:
            self.steps[at] = value.tobytes()
        else:
            self._grid[at] = value

    def write_row(self, slot: int, value: Any, packed: bytes | None = None) -> None:
        """One row, at its slot among the rows as they lie in this column."""
        if packed:
            self.rows[slot] = packed
        else:
            self._values[slot] = value

    def write_each(self, slots: np.ndarray, value: np.ndarray) -> None:
        """A row per slot."""
        self._store.put_as_they_lie(slots, value)

    def _packer(self, shape: tuple[int, ...]) -> tuple[Callable[[Any], bytes | None], Asked | None]:
        """A function from an array of this shape to its bytes; None if it is not surely right.

        For few bytes in the column's own dtype: they are copied once, and NaN and bounds are looked
        for in the copy, which takes less time than the calls of NumPy. And how it looks, if so.
        """
        dtype, size = self._dtype, int(np.prod(shape))
        rule = self._known.get(dtype) or self._learn(dtype)
        if not rule or not 0 < size * dtype.itemsize <= SHORT:
            return _nothing, None
        any_, between = rule == (None, None), self.between
        inside = within(dtype, size, *rule)

        def pack(value: Any) -> bytes | None:
            if value.__class__ is not _ndarray or value.dtype is not dtype or value.shape != shape:
                return None
            packed = value.tobytes()
            if any_ or (inside(packed) if inside else between(value)):
                return packed
            return None

        if not self._reward or size > _FEW:
            return pack, inside
        floats = Struct(f"={size}f").pack

        def pack_reward(value: Any) -> bytes | None:
            """Also of float64, as Gymnasium's vectors give rewards."""
            if value.__class__ is not _ndarray or value.dtype is not _FLOAT64:
                return pack(value)
            if value.shape != shape:
                return None
            numbers = value.tolist()
            return floats(*numbers) if hypot(*numbers) <= MOST else None

        return pack_reward, inside

    def _whole(self) -> tuple[float, float]:
        """Bounds of one whole number; none fits a field of floats or bools."""
        refused = inf, -inf
        if self._field.dtype.kind not in "iu":
            return refused
        dtype = np.dtype(np.int64)
        low, high = self._field.limits(dtype)
        if np.ndim(low) or np.ndim(high):
            return refused
        edge = np.iinfo(dtype)
        return edge.min if low is None else int(low), edge.max if high is None else int(high)

    def _learn(self, dtype: np.dtype) -> tuple[Any, ...]:
        rule = self._known[dtype] = tuple(map(_number, self._bounds(dtype)))
        return rule

    def _bounds(self, dtype: np.dtype) -> tuple[Any, ...]:
        field = self._field
        if not field.accepts(dtype):
            return ()
        low, high = field.limits(dtype)
        if np.ndim(low) or np.ndim(high):
            return ()  # an element each: the long way compares them
        if field.dtype.kind == "f":
            if field.allow_nan:
                return (None, None) if dtype == field.dtype and low is high is None else ()
            # Infinities fit a float field; what is only made infinite by storing it does not.
            wider = self._reward or dtype != field.dtype
            most = float(np.finfo(field.dtype).max) if wider else inf
            low = None if low is None and most == inf else max(-most, -inf if low is None else low)
            high = min(most, inf if high is None else high)
        return low, high


def _nothing(value: Any) -> None:
    """For who packs nothing."""


def _anything(packed: bytes) -> bool:
    """For columns that hold any bytes."""
    return True


def _number(bound: Any) -> Any:
    """A bound as a plain number, which compares faster."""
    return None if bound is None else np.asarray(bound).item()
