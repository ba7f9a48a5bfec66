"""`ShortWay`: rows that are right at first sight enter a host ring in a few microseconds."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from ..intake import KNOWN_FLAGS
from ..rows import BORDER, CUT, ENDED, FIRST, Flag, Rows, breaks, pack_flags
from ..spec import Field, Spec
from .host_ring import HostRing

_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel().tolist()
# The only flags that may follow a flags byte; after a cut several may: 255, which no row has.
_FOLLOWS = bytes(
    255 if byte & CUT else BORDER if byte & ENDED else FIRST if byte & BORDER else 0
    for byte in range(256)
)
_BOOL, _UINT8 = np.dtype(bool), np.dtype(np.uint8)
_INTEGERS = {int, Flag, np.uint8, np.int32, np.int64}
_BOOLS = {bool, np.bool_}
_MOST = float(np.finfo(np.float32).max)  # a reward beyond it would be stored as infinite
_REFUSE = None, nan  # nothing is at most NaN


class ShortWay:
    """Takes one step of all envs in lockstep, or one row of one env, and writes it.

    It declines whatever it is not sure of, and changes nothing then: the long way (`HostGate`)
    takes up to ten times as long, finds every fault, and names it.
    """

    def __init__(self, spec: Spec, ring: HostRing) -> None:
        paths = ("obs", "action", "reward")
        stores = [ring.stores[path] for path in paths]
        self._ring, self._streams = ring, ring.streams
        self._grids = [store.values_grid for store in stores]
        self._columns = [
            _Column(store.field, path == "reward")
            for path, store in zip(paths, stores, strict=True)
        ]
        self._step = [((ring.streams, *c.field.shape), c.rules, c) for c in self._columns]
        self._row = [(c.field.shape, c.rules, c) for c in self._columns[:2]]
        self._lead, self._none = (ring.streams,), bytes(ring.streams)

    @staticmethod
    def of(spec: Spec, ring: HostRing) -> ShortWay | None:
        """The short way into a ring, if rows of this spec can take it."""
        plain = isinstance(spec.obs, Field) and not spec.extras and not ring.layout.whole
        packed = any(field.binary for field in spec.columns.values())
        return ShortWay(spec, ring) if plain and not packed else None

    def step(self, rows: Rows) -> bool:
        """Write rows[env]; False if they were declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring, lead, none = self._ring, self._lead, self._none
        if extras or ring.each < 0:
            return False
        values = obs, action, reward
        for value, (shape, rules, column) in zip(values, self._step, strict=True):
            if value.__class__ is not np.ndarray or value.shape != shape:
                return False
            low, high = rules.get(value.dtype) or column.learn(value.dtype)
            # The first NaN counts as both the least and the largest, and compares with nothing.
            if high is not None and not value.item(value.argmax()) <= high:
                return False
            if low is not None and not value.item(value.argmin()) >= low:
                return False
        for value, dtype in ((terminated, _BOOL), (truncated, _BOOL), (flags, _UINT8)):
            if value.__class__ is not np.ndarray or value.shape != lead or value.dtype != dtype:
                return False
        due = ring.last.tobytes().translate(_FOLLOWS)
        if flags.tobytes() != due:
            return False
        byte = flags
        if terminated.tobytes() != none or truncated.tobytes() != none:
            byte = pack_flags(flags, terminated, truncated, None)
        if BORDER in due:
            border = flags == BORDER
            if np.count_nonzero(reward[border]) or np.count_nonzero(byte[border] & ENDED):
                return False
        ring.write_step(self._grids, values, byte)
        return True

    def row(self, rows: Rows, env: int | None) -> bool:
        """Write one row, of the only env or of `env`; False if it was declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring = self._ring
        if env is None:
            env = 0 if self._streams == 1 else -1
        if (
            env.__class__ not in _INTEGERS
            or not 0 <= env < self._streams
            or extras
            or terminated.__class__ not in _BOOLS
            or truncated.__class__ not in _BOOLS
            or flags.__class__ not in _INTEGERS
            or not 0 <= (byte := int(flags)) <= KNOWN_FLAGS
            or not -_MOST <= reward <= _MOST
        ):
            return False
        byte |= terminated << 4 | truncated << 5
        if byte & BORDER and (reward or byte & ENDED):
            return False
        if _BREAKS[ring.last.item(env) << 7 | byte]:
            return False
        for value, (shape, rules, column) in zip((obs, action), self._row, strict=True):
            if value.__class__ is np.ndarray:
                if value.shape != shape:
                    return False
                low, high = rules.get(value.dtype) or column.learn(value.dtype)
                if high is not None and not value.item(value.argmax()) <= high:
                    return False
                if low is not None and not value.item(value.argmin()) >= low:
                    return False
            elif (
                shape
                or value.__class__ not in _INTEGERS
                or not column.least <= value <= column.most
            ):
                return False
        values = obs, action, reward
        if self._streams == 1:
            ring.write_step(self._grids, values, byte)
        else:
            ring.write_one(self._grids, env, values, byte)
        return True


class _Column:
    """What the values of a field must lie between, by the dtype in which they come."""

    def __init__(self, field: Field, finite: bool) -> None:
        self.field, self._finite = field, finite
        self.rules: dict[np.dtype, tuple[Any, Any]] = {}
        # Single whole numbers; there are none where the field holds floats.
        low, high = self._whole()
        self.least, self.most = low, high

    def _whole(self) -> tuple[float, float]:
        if self.field.dtype.kind not in "iu":
            return inf, -inf
        dtype = np.dtype(np.int64)
        edge, bounds = np.iinfo(dtype), self.field.limits(dtype)
        if any(np.ndim(bound) for bound in bounds):
            return inf, -inf
        low, high = bounds
        return edge.min if low is None else int(low), edge.max if high is None else int(high)

    def learn(self, dtype: np.dtype) -> tuple[Any, Any]:
        """Least and largest value; None where nothing needs to be compared."""
        rule = self.rules[dtype] = self._bounds(dtype)
        return rule

    def _bounds(self, dtype: np.dtype) -> tuple[Any, Any]:
        field = self.field
        if not field.accepts(dtype):
            return _REFUSE
        low, high = field.limits(dtype)
        if np.ndim(low) or np.ndim(high):
            return _REFUSE  # an element each: the long way compares them
        if field.dtype.kind == "f":
            if field.allow_nan:
                return (None, None) if dtype == field.dtype and low is high is None else _REFUSE
            # Infinities fit a float field; what is only made infinite by storing it does not.
            most = float(np.finfo(field.dtype).max) if self._finite or dtype != field.dtype else inf
            low = None if low is None and most == inf else max(-most, -inf if low is None else low)
            high = min(most, inf if high is None else high)
        return tuple(None if bound is None else np.asarray(bound).item() for bound in (low, high))
