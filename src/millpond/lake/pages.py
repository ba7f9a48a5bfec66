"""`Pages`: a column's pages, prefetched from disk together and checked against checksums once.

A cold batch needs thousands of pages from dozens of segments. So all seats share one array of
states: a Python object per segment would cost more than the checksums.
"""

from __future__ import annotations

import numpy as np

from .files import PAGE, as_bytes
from .mapped_column import MappedColumn
from .page_sums import digests
from .segment import Region

# Pages prefetched together for compressed frames. A disk reads eight in a row nearly as fast as
# one, and they contain the frames of dozens of other windows; a raw window takes about as many.
_BLOCK = 8


class Pages:
    """Which pages of a column have been checked; `tables` holds the checksums of all segments."""

    def __init__(self, column: MappedColumn, tables: MappedColumn) -> None:
        self.column = column
        self.per_seat = column.stride // PAGE
        self.good = np.zeros(column.seats * self.per_seat, bool)  # memory is only used as touched
        self.whole = np.zeros(column.seats, bool)  # seats whose pages with rows are all good
        self._bytes = as_bytes(column.flat)
        self._tables = tables.flat.view("<u8")
        self._sums = np.zeros(column.seats, np.int64)  # where a seat's checksums begin in `tables`
        self._offset = np.zeros(column.seats, np.int64)  # where a seat's region begins in its file
        self._size = np.zeros(column.seats, np.int64)  # bytes of that region
        self._left = np.full(column.seats, -1)  # unchecked pages of a seat; -1: not counted yet
        self._packed = np.zeros(column.seats, bool)
        self._table_stride = tables.stride // 8

    def seat(
        self,
        seat: int,
        fd: int,
        region: Region,
        packed: bool = False,
        spans: list[tuple[int, int]] | None = None,
    ) -> None:
        """Map a region of a file onto a seat, or read `spans` of it; all pages are unchecked."""
        if spans is not None:
            self.column.read_in(seat, fd, region.offset, spans)
        elif region.size:
            self.column.seat(seat, fd, region.offset, region.size)
        self._sums[seat] = seat * self._table_stride + region.sums // 8
        self._offset[seat], self._size[seat] = region.offset, region.size
        self._packed[seat] = packed
        self.good[seat * self.per_seat : (seat + 1) * self.per_seat] = False
        self.whole[seat], self._left[seat] = False, -1

    def mark_checked(self, seat: int) -> None:
        """Mark a whole seat as checked, because it was verified in another way."""
        self.good[seat * self.per_seat : (seat + 1) * self.per_seat] = True
        self.whole[seat] = True

    def unchecked(self, seat: int) -> np.ndarray:
        """The pages of a seat that hold rows and are unchecked, numbered across the column."""
        number = -(-int(self._size[seat]) // PAGE)
        begin, sums = seat * self.per_seat, int(self._sums[seat])
        held = self._tables[sums : sums + number] != 0
        return begin + np.flatnonzero(held & ~self.good[begin : begin + number])

    def prefetch(self, pages: np.ndarray) -> None:
        """Start reading the (sorted) pages from disk; for compressed data, their neighbours too."""
        packed = self._packed[pages // self.per_seat]
        if packed.any():
            blocks = np.unique(pages[packed] // _BLOCK)
            more = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
            pages = more if packed.all() else np.union1d(pages[~packed], more)
        self.column.prefetch(pages)

    def check(self, pages: np.ndarray) -> int:
        """Check distinct pages against their checksums; return the first that differs, or -1."""
        seats = pages // self.per_seat
        for seat in np.unique(seats[self._left[seats] < 0]).tolist():
            self._left[seat] = len(self.unchecked(seat))
        begin = pages * PAGE
        end = np.minimum(begin + PAGE, seats * self.column.stride + self._size[seats])
        data = self._bytes
        found = digests(data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True))
        wrong = found != self._tables[self._sums[seats] + pages - seats * self.per_seat]
        if wrong.any():
            return int(pages[np.argmax(wrong)])
        self.good[pages] = True
        which, number = np.unique(seats, return_counts=True)
        self._left[which] -= number
        self.whole[which] = self._left[which] == 0
        return -1

    def region(self, seat: int) -> tuple[int, int]:
        """Where a seat's region begins and ends in its file, in bytes."""
        return int(self._offset[seat]), int(self._offset[seat] + self._size[seat])

    def place(self, page: int) -> tuple[int, int, int]:
        """The seat of a page, and where the page begins and ends in its file, in bytes."""
        seat, inside = divmod(page, self.per_seat)
        offset, size = int(self._offset[seat]), int(self._size[seat])
        return seat, offset + inside * PAGE, offset + min((inside + 1) * PAGE, size)
