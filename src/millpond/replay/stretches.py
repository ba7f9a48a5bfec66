"""`Stretches`: rows of a stream that follow one another, copied out of a column as one piece."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .host_store import HostStore

_LONG = 2**15  # bytes; stretches as long are copied faster one by one, each straight to its place


class Places(NamedTuple):
    """Where the rows of a batch of sequences lie in a column that lies stream by stream."""

    begin: np.ndarray  # int64[n]: where those begin whose rows are all there, side by side
    whole: np.ndarray | slice  # int64[n]: which of the batch they are
    rest: np.ndarray  # int64[k]: the others of the batch
    rows: np.ndarray  # int64[k, time + 1]: their rows


class Stretches:
    """`rows` rows of a column, from any row on."""

    def __init__(self, store: HostStore, rows: int) -> None:
        self._store, self._rows = store, rows
        ring, width = store.ring, store.ring.shape[1]
        shape = max(0, len(ring) - rows + 1), rows * width
        # One item per row, each of which overlaps with the next: no index of rows is worked out.
        self._items = as_strided(ring, shape, ring.strides, writeable=False)
        self._width = width
        self._long = rows * width * ring.itemsize >= _LONG

    def take(self, places: Places, out: np.ndarray) -> None:
        """Into out[batch, rows, *field.shape]."""
        begin, whole, rest, rows = places
        flat = out.reshape(len(out), -1)
        if self._store.field.binary:
            packed = self._items[begin].reshape(-1, self._width)
            flat[whole] = self._store.unpack(packed).reshape(len(begin), flat.shape[1])
        elif self._long:
            every = range(len(out)) if isinstance(whole, slice) else whole.tolist()
            for place, first in zip(every, begin.tolist(), strict=True):
                flat[place] = self._items[first]
        else:
            flat[whole] = self._items[begin]
        if len(rest):
            others = np.empty((len(rest), *out.shape[1:]), out.dtype)
            self._store.take_stretched(rows[:, : self._rows], others)
            out[rest] = others
