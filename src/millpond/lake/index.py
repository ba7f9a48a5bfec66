"""`Index`: where every row of a Lake is stored, and which rows are its neighbours.

A *piece* is what one segment holds of one stream or, in layout `log`, a contiguous part of it.
Pieces of a stream that follow each other without a gap are linked; windows cross only links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import BadConfig


@dataclass(frozen=True)
class SegmentPieces:
    """One segment's pieces, int64 each.

    A slot is a row's position in the address range that all mapped segments share.
    """

    stream: np.ndarray  # numbered across the Lake
    first: np.ndarray  # id of the first row
    count: np.ndarray  # number of rows
    slot: np.ndarray  # of the first row


class Index:
    """Built once per refresh; every lookup is vectorised."""

    def __init__(self, streams: int, parts: Iterable[SegmentPieces]) -> None:
        columns = [(part.stream, part.first, part.count, part.slot) for part in parts]
        if columns:
            stream, first, count, slot = (np.concatenate(c) for c in zip(*columns, strict=True))
        else:
            stream, first, count, slot = (np.zeros(0, np.int64) for _ in range(4))
        order = np.lexsort((first, stream))
        self.stream, self.first = stream[order], first[order]
        self.count, self.slot = count[order], slot[order]
        joined = (self.stream[1:] == self.stream[:-1]) & (
            self.first[:-1] + self.count[:-1] == self.first[1:]
        )
        self.has_next = np.append(joined, False)[: len(order)]
        self.has_previous = np.append(False, joined)[: len(order)]
        ends = np.cumsum(self.count)
        self.begin = ends - self.count  # rows before each piece, over all streams
        self.total = int(ends[-1]) if len(ends) else 0
        self.streams = streams
        self.rows = np.bincount(self.stream, self.count, streams).astype(np.int64)
        self._row0 = np.cumsum(self.rows) - self.rows  # rows before each stream
        self._piece0 = np.searchsorted(self.stream, np.arange(streams))
        self._length = np.ones(streams, np.int64)  # of a full piece
        np.maximum.at(self._length, self.stream, self.count)
        # Stream and id as one number, ascending along the table.
        self._span = 1 + int((self.first + self.count).max(initial=0))
        if self._span * max(streams, 1) >= 2**63:
            raise BadConfig("Lake: ids and streams exceed 63 bits together; begin a new Lake")
        self._key = self.stream * self._span + self.first

    def locate(self, stream: np.ndarray, age: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The piece of a stream's `age`-th stored row (0: the oldest), and its place in it."""
        row = self._row0[stream] + age
        # All pieces but the last are full, so this guess is nearly always right.
        guess = self._piece0[stream] + age // self._length[stream]
        piece = np.minimum(guess, len(self.begin) - 1)
        at = row - self.begin[piece]
        wrong = np.flatnonzero((at < 0) | (at >= self.count[piece]))
        if len(wrong):
            piece[wrong] = np.searchsorted(self.begin, row[wrong], side="right") - 1
            at[wrong] = row[wrong] - self.begin[piece[wrong]]
        return piece, at

    def find(self, stream: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of rows by id, and their places in them; place -1 if a row is not stored."""
        if not len(self.stream):
            return np.zeros(row.shape, np.int64), np.full(row.shape, -1)
        key = stream * self._span + np.minimum(row, self._span - 1)
        piece = np.maximum(np.searchsorted(self._key, key, side="right") - 1, 0)
        at = row - self.first[piece]
        here = (self.stream[piece] == stream) & (at >= 0) & (at < self.count[piece])
        return piece, np.where(here, at, -1)

    def around(self, piece: np.ndarray, at: np.ndarray, reach: np.ndarray) -> np.ndarray:
        """Slots [reach, n] of the rows at places at + reach of the stream; -1: not stored."""
        place = at + reach[:, None]
        slots = self.slot[piece] + place
        edge = np.flatnonzero((place[0] < 0) | (place[-1] >= self.count[piece]))
        if len(edge):
            slots[:, edge] = self._across(piece[edge], place[:, edge])
        return slots

    def _across(self, piece: np.ndarray, place: np.ndarray) -> np.ndarray:
        """`around` for rows that may be in other pieces, which may be several pieces away."""
        where = np.broadcast_to(piece, place.shape).copy()
        place = place.copy()
        while True:
            back = (place < 0) & self.has_previous[where]
            where[back] -= 1
            place[back] += self.count[where[back]]
            on = (place >= self.count[where]) & self.has_next[where]
            place[on] -= self.count[where[on]]
            where[on] += 1
            if not (back.any() or on.any()):
                break
        here = (place >= 0) & (place < self.count[where])
        return np.where(here, self.slot[where] + place, -1)

    def multiples(self, every: int) -> Index | Multiples:
        """The index restricted to rows whose ids are multiples of `every`."""
        return self if every == 1 else Multiples(self, every)

    def stretches(
        self, piece: np.ndarray, place: np.ndarray, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Split n runs of rows place ... place + length - 1 into stretches of neighbouring slots.

        Returns, per stretch: which run, where it begins in the run, its first slot, its rows. Rows
        that are not stored are in none. `place` is relative to the run's piece; it may be negative.
        """
        piece, place = piece.copy(), place.copy()
        while True:  # find the piece in which the run begins
            back = (place < 0) & self.has_previous[piece]
            if not back.any():
                break
            piece[back] -= 1
            place[back] += self.count[piece[back]]
        while True:
            on = (place >= self.count[piece]) & self.has_next[piece]
            if not on.any():
                break
            place[on] -= self.count[piece[on]]
            piece[on] += 1
        done = np.maximum(-place, 0)  # rows of the run before its stream's first
        place = np.maximum(place, 0)
        run = np.flatnonzero((done < length) & (place < self.count[piece]))
        found: list[tuple[np.ndarray, ...]] = []
        while len(run):
            here = piece[run]
            rows = np.minimum(self.count[here] - place[run], length - done[run])
            found.append((run, done[run], self.slot[here] + place[run], rows))
            done[run] += rows
            place[run] = 0
            piece[run] += 1
            run = run[(done[run] < length) & self.has_next[here]]
        if not found:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        run, begin, slot, rows = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.lexsort((begin, run))
        return run[order], begin[order], slot[order], rows[order]


class Multiples:
    """The rows of an `Index` whose ids are multiples of `every`, located as in the `Index`."""

    def __init__(self, index: Index, every: int) -> None:
        first, stop = -(-index.first // every), -(-(index.first + index.count) // every)
        self._every, self._skip = every, first * every - index.first
        self._ends = np.cumsum(stop - first)
        self._begin = self._ends - (stop - first)
        self.rows = np.bincount(index.stream, stop - first, index.streams).astype(np.int64)
        self._row0 = np.cumsum(self.rows) - self.rows

    def locate(self, stream: np.ndarray, age: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The piece of a stream's `age`-th such row (0: the oldest), and its place in it."""
        number = self._row0[stream] + age
        piece = np.searchsorted(self._ends, number, side="right")
        return piece, self._skip[piece] + (number - self._begin[piece]) * self._every
