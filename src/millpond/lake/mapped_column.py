"""`MappedColumn`: one column of all segments, mapped next to each other into one address range.

The range is divided into seats of equal size, one per segment. So a whole Lake reads like one array
in memory: a single `np.take` gathers rows from any number of segments.
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
_GAP = 2  # pages; reading a page in between is cheaper than a second call
_FAILED = ctypes.c_void_p(-1).value

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedColumn:
    """`seats` seats of `stride` bytes (whole pages), each empty, a mapped file, or plain memory.

    `flat` is all of it as uint8[seats * stride]. Reading from an empty seat crashes the process, so
    every index must come from a segment that has a seat.
    """

    def __init__(self, seats: int, stride: int) -> None:
        self.seats, self.stride = seats, stride
        size = seats * stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
        self._base = _map(None, size, _NONE, flags, -1, 0)
        self.broken: set[int] = set()  # seats that the disk failed to read; now zeros
        guard(self._base, size, stride, functools.partial(_blank, self._base, stride), self.broken)
        weakref.finalize(self, _unmap, self._base, size)
        self.flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._base))
        self.flat.setflags(write=False)

    def seat(self, seat: int, fd: int, offset: int, size: int) -> None:
        """Map `size` bytes of a file, at a page-aligned `offset`, onto a seat, read-only.

        The whole seat is mapped, even beyond `size`: the rest would otherwise be a second map.
        """
        where = self._base + seat * self.stride
        _map(where, self.stride, _READ, _SHARED | _FIXED, fd, offset)
        # Without it, every fault would read 128 KiB around a single randomly drawn row.
        _libc.madvise(where, size, mmap.MADV_RANDOM)

    def read_in(self, seat: int, fd: int, offset: int, spans: list[tuple[int, int]]) -> None:
        """Read the spans, bytes start ... stop - 1 after `offset` in the file, into a seat."""
        where = self._base + seat * self.stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED
        _map(where, self.stride, _READ | _WRITE, flags, -1, 0)
        for start, stop in spans:
            while start < stop:
                part = (ctypes.c_uint8 * (stop - start)).from_address(where + start)
                done = os.preadv(fd, [part], offset + start)
                if not done:
                    break  # the file is too short: zeros remain, and fail the checksum
                start += done

    def clear(self, seat: int) -> None:
        """Empty a seat again."""
        where = self._base + seat * self.stride
        flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED
        _map(where, self.stride, _NONE, flags, -1, 0)
        self.broken.discard(seat)

    def __reduce__(self) -> Any:
        # A copy would read terabytes of addresses, most of which crash the process.
        raise BadConfig(
            "Lake: mapped segments cannot be copied or pickled; copy or send the Lake itself, "
            "which is then opened again"
        )

    def bytes(self, seat: int, start: int, stop: int) -> np.ndarray:
        """Bytes start ... stop - 1 of a seat, as a view."""
        return self.flat[seat * self.stride + start : seat * self.stride + stop]

    def prefetch_all(self, seat: int, size: int) -> None:
        """Start reading the first `size` bytes of a seat from disk."""
        _libc.madvise(self._base + seat * self.stride, size, mmap.MADV_WILLNEED)

    def prefetch(self, pages: np.ndarray) -> None:
        """Start reading the (sorted) pages from disk, without waiting for them."""
        ends = np.flatnonzero(np.diff(pages) > _GAP)
        first = pages[np.append(0, ends + 1)] if len(ends) else pages[:1]
        last = pages[np.append(ends, len(pages) - 1)]
        ask, base = _libc.madvise, self._base
        for start, size in zip(
            (first * PAGE + base).tolist(), ((last - first + 1) * PAGE).tolist(), strict=True
        ):
            ask(start, size, mmap.MADV_WILLNEED)


def _blank(base: int, stride: int, seat: int) -> None:
    """Replace a seat by zeros. Not a method, which would keep the column alive."""
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
