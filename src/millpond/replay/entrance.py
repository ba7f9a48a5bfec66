"""`Entrance`: the fast path into one column of a host ring, for values that are clearly valid."""

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
_FEW = 16  # numbers; up to this many, Python is faster than NumPy
_MANY = 10_000  # numbers; a longer dot product would wake up BLAS's threads
_FLOAT64 = np.dtype(np.float64)
_ndarray = np.ndarray


class Entrance:
    """Checks the values of a column against its bounds, by their dtype, and writes them."""

    def __init__(self, store: HostStore, streams: int, reward: bool = False) -> None:
        field = self._field = store.field
        self.shape, self.lead = field.shape, (streams, *field.shape)
        self._reward = reward
        self._dtype = field.dtype
        # By dtype: (low, high), None where nothing needs to be checked; () for a refused dtype.
        self._known: dict[np.dtype, tuple[Any, ...]] = {}
        self._least, self._most = self._whole()
        self._store, self._grid = store, store.values_grid
        self._values = store.ring.reshape(-1, *field.shape)
        self.rows, self.steps, self.turned = store.rows, store.steps, store.turned
        self.pack_row, inside_row = self._packer(self.shape)
        self.pack_step, self._inside = self._packer(self.lead)
        # For values as bytes: the size of a step and of a row, and checks for them.
        any_ = self._known[self._dtype] == (None, None)
        self.step_bytes = int(np.prod(self.lead)) * self._dtype.itemsize
        self.item, self.row_bytes = self.rows.dtype, self.rows.itemsize
        self.inside = _anything if any_ else self._inside or self._packed_between
        self.inside_row = _anything if any_ else inside_row or self._packed_between

    def fits(self, value: Any) -> bool:
        """Whether the values of a step, one per stream, are certainly valid."""
        if value.__class__ is not _ndarray or value.shape != self.lead:
            return False
        inside = self._inside
        if inside and value.dtype is self._dtype and inside(value.tobytes()):
            return True
        return self.between(value)

    def fits_row(self, value: Any) -> bool:
        """Whether the value of a single row is certainly valid."""
        if value.__class__ is _ndarray:
            return value.shape == self.shape and self.between(value)
        return not self.shape and value.__class__ in INTEGERS and self._least <= value <= self._most

    def between(self, value: np.ndarray) -> bool:
        """Whether all elements of an array are valid, regardless of its shape."""
        rule = self._known.get(value.dtype)
        if rule is None:
            rule = self._learn(value.dtype)
        if not rule:
            return False
        low, high = rule
        if self._reward:
            if value.size <= _FEW:  # no element exceeds the norm, which is NaN if any element is
                return hypot(*value.tolist()) <= high
            if value.dtype is self._dtype and value.size <= _MANY and value.dot(value) <= high:
                return True
        # argmax and argmin both return the first NaN, which fails every comparison.
        return (high is None or value.item(value.argmax()) <= high) and (
            low is None or value.item(value.argmin()) >= low
        )

    def _packed_between(self, packed: bytes) -> bool:
        return self.between(np.frombuffer(packed, self._dtype))

    def write(self, at: int, value: np.ndarray) -> None:
        """Write a step of all streams at their common head."""
        if self.steps is not None and value.dtype is self._dtype:
            self.steps[at] = value.tobytes()
        else:
            self._grid[at] = value

    def write_row(self, slot: int, value: Any, packed: bytes | None = None) -> None:
        """Write one row at a slot, in the order of rows in this column's memory."""
        if packed:
            self.rows[slot] = packed
        else:
            self._values[slot] = value

    def write_each(self, slots: np.ndarray, value: np.ndarray) -> None:
        """Write one row per slot."""
        self._store.put_as_they_lie(slots, value)

    def _packer(self, shape: tuple[int, ...]) -> tuple[Callable[[Any], bytes | None], Asked | None]:
        """(pack, inside): functions that check small arrays of this shape in the column's dtype.

        `pack` returns an array's bytes, or None if it is not certainly valid. `inside` (or None)
        checks bytes. NaN and bounds are checked in one copy as bytes, which is faster than NumPy.
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
            """Also accepts float64, the dtype of rewards from Gymnasium's vector envs."""
            if value.__class__ is not _ndarray or value.dtype is not _FLOAT64:
                return pack(value)
            if value.shape != shape:
                return None
            numbers = value.tolist()
            return floats(*numbers) if hypot(*numbers) <= MOST else None

        return pack_reward, inside

    def _whole(self) -> tuple[float, float]:
        """Bounds for a single whole number; float and bool fields accept none."""
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
            return ()  # bounds per element: left to the slow path
        if field.dtype.kind == "f":
            if field.allow_nan:
                return (None, None) if dtype == field.dtype and low is high is None else ()
            # Infinities are valid floats; values that only become infinite when stored are not.
            wider = self._reward or dtype != field.dtype
            most = float(np.finfo(field.dtype).max) if wider else inf
            low = None if low is None and most == inf else max(-most, -inf if low is None else low)
            high = min(most, inf if high is None else high)
        return low, high


def _nothing(value: Any) -> None:
    """A `pack` that declines everything."""


def _anything(packed: bytes) -> bool:
    """An `inside` for columns whose bytes are all valid."""
    return True


def _number(bound: Any) -> Any:
    """A bound as a Python number, which is faster to compare."""
    return None if bound is None else np.asarray(bound).item()
