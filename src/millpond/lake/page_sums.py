"""The checksums of a sealed segment: one per page of every region, all in one table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from .files import PAGE
from .journal import digest


def digests(parts: Iterable[Any]) -> np.ndarray:
    """uint64[n]: the `digest` of each of `parts`, such as the rows of a uint8[n, PAGE] array.

    Made for thousands: joining them as bytes takes half the time of converting Python numbers.
    """
    each = xxhash.xxh3_64_digest
    return np.frombuffer(b"".join([each(part) for part in parts]), ">u8").astype(np.uint64)


class PageSums:
    """Computes the checksums of a region's pages from its bytes, added in order; gaps are zeros.

    A page without added bytes has the sum 0 and is never read. `size` is the region's size; None:
    the region ends with the last byte added.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._sums: dict[int, int] = {}
        self._page, self._part = -1, b""  # the last page, which may still grow

    def add(self, offset: int, data: np.ndarray) -> None:
        """Add bytes at `offset` in the region, which must be after everything added before."""
        page, inside = divmod(offset, PAGE)
        if page != self._page:
            self._finish_page()
            self._page = page
        head = min(len(data), PAGE - inside)
        self._part = self._part.ljust(inside, b"\0") + data[:head].tobytes()
        if head == len(data):
            return
        self._finish_page()
        whole, left = divmod(len(data) - head, PAGE)
        pages = data[head : head + whole * PAGE].reshape(whole, PAGE)
        self._sums |= dict(enumerate(digests(pages).tolist(), page + 1))
        if left:
            self._page, self._part = page + whole + 1, data[-left:].tobytes()

    def _finish_page(self) -> None:
        if self._page >= 0:
            size = PAGE if self._size is None else min(PAGE, self._size - self._page * PAGE)
            whole = self._part if self._size is None else self._part.ljust(size, b"\0")
            self._sums[self._page] = digest(whole)
        self._page, self._part = -1, b""

    def finish(self) -> np.ndarray:
        """The checksums uint64[pages]."""
        self._finish_page()
        last = 1 + max(self._sums, default=-1)
        table = np.zeros(last if self._size is None else -(-self._size // PAGE), np.uint64)
        table[list(self._sums)] = list(self._sums.values())
        return table


class Tables:
    """Concatenates the checksums of all regions."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._size = 0

    def add(self, sums: np.ndarray) -> int:
        """Add a region's checksums; return the byte where they begin."""
        at, self._size = self._size, self._size + 8 * len(sums)
        self._parts.append(sums)
        return at

    def whole(self) -> np.ndarray:
        """All checksums, uint64[...]."""
        return np.concatenate(self._parts).astype("<u8")
