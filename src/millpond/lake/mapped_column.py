"""`MappedColumn`: one column of every segment side by side in one range of addresses.

Each segment's file is mapped onto its own seat. So a whole Lake reads like one array in memory: a
single `np.take` gathers rows from any number of segments.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from typing import Any

import numpy as np

from ..errors import BadConfig, LakeFailed
from .files import PAGE
from .sigbus import forget, guard

_READ, _WRITE, _NONE = 1, 2, 0
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 1, 2, 0x10, 0x20, 0x4000
_GAP = 2  # pages; asking for one between is cheaper than asking twice
_FAILED = ctypes.c_void_p(-1).value

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedColumn:
    """`seats` places of `stride` bytes each (whole pages): empty, a mapped file, or memory.

    `flat` is all of it as uint8[seats * stride].
    Touching an empty seat is a crash, so every index must come from a segment that is seated.
    """

    def __init__(self, seats: int, stride: int) -> None:
        self.seats, self.stride = seats, stride
        size = seats * stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
        self._base = _map(None, size, _NONE, flags, -1, 0)
        self.broken: set[int] = set()  # seats of which the disk did not give a byte; zeros now
        guard(self._base, size, stride, functools.partial(_blank, self._base, stride), self.broken)
        weakref.finalize(self, _unmap, self._base, size)
        self.flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._base))
        self.flat.setflags(write=False)

    def seat(self, seat: int, fd: int, offset: int, size: int) -> None:
        """Map `size` bytes of a file at a whole page `offset` onto a seat, read-only.

        All of the seat is mapped, so that it is one map: what is left over would be another.
        """
        where = self._base + seat * self.stride
        _map(where, self.stride, _READ, _SHARED | _FIXED, fd, offset)
        # A fault would otherwise read 128 KiB around it, for rows drawn anywhere.
        _libc.madvise(where, size, mmap.MADV_RANDOM)

    def read_in(self, seat: int, fd: int, offset: int, spans: list[tuple[int, int]]) -> None:
        """Read bytes start ... stop - 1 of the file behind `offset` into a seat, for all spans."""
        where = self._base + seat * self.stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED
        _map(where, self.stride, _READ | _WRITE, flags, -1, 0)
        for start, stop in spans:
            while start < stop:
                part = (ctypes.c_uint8 * (stop - start)).from_address(where + start)
                done = os.preadv(fd, [part], offset + start)
                if not done:
                    break  # the file is shorter: zeros, which have another checksum
                start += done

    def clear(self, seat: int) -> None:
        """Empty a seat again."""
        where = self._base + seat * self.stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED
        _map(where, self.stride, _NONE, flags, -1, 0)
        self.broken.discard(seat)

    def __reduce__(self) -> Any:
        # By value it would be terabytes of addresses, most of which are a crash to touch.
        raise BadConfig(
            "Lake: mapped segments cannot be copied or pickled; copy or send the Lake itself, "
            "which is opened again"
        )

    def bytes(self, seat: int, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start] of one seat, as a view."""
        return self.flat[seat * self.stride + start : seat * self.stride + stop]

    def prefetch_all(self, seat: int, size: int) -> None:
        """Start reading the first `size` bytes of a seat from disk."""
        _libc.madvise(self._base + seat * self.stride, size, mmap.MADV_WILLNEED)

    def prefetch(self, pages: np.ndarray) -> None:
        """Start reading the (sorted) pages from disk, all at once, without waiting for any."""
        ends = np.flatnonzero(np.diff(pages) > _GAP)
        first = pages[np.append(0, ends + 1)] if len(ends) else pages[:1]
        last = pages[np.append(ends, len(pages) - 1)]
        ask, base = _libc.madvise, self._base
        for start, size in zip(
            (first * PAGE + base).tolist(), ((last - first + 1) * PAGE).tolist(), strict=True
        ):
            ask(start, size, mmap.MADV_WILLNEED)


def _blank(base: int, stride: int, seat: int) -> None:
    """Zeros in place of a seat; a Python function of a column itself would keep it alive."""
    flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED
    _map(base + seat * stride, stride, _READ, flags, -1, 0)


def _unmap(base: int, size: int) -> None:
    forget(base)
    _libc.munmap(base, size)


def _map(where: int | None, size: int, protect: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(where, size, protect, flags, fd, offset)
    if address in (None, _FAILED):
        code = ctypes.get_errno()
        raise LakeFailed(
            f"Lake: mapping {size} bytes into memory failed: {os.strerror(code)}; "
            "raise the limit on address space or maps (ulimit -v, vm.max_map_count)"
        )
    return address
