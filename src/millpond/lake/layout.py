"""Where the rows of a segment lie. Which of three layouts it has, its description says.

`shares`: every stream has an equal share of the slots; row t of stream s has slot
`s * length + t`. For streams that advance evenly, which fill their shares at the same time: such a
segment is sealed where it lies.

`log`: rows lie in the order in which they were written, block by block and in a block stream by
stream; the journal says whose they are. An open segment for streams that advance unevenly: it is
full when all its slots are, whoever has them.

`packed`: what a log becomes when it is sealed: stream by stream, without room between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

SHARES, LOG, PACKED = "shares", "log", "packed"

Rows = Callable[[str, int, int], np.ndarray]  # (column, start slot, stop slot) → uint8[n, width]


class Pieces(NamedTuple):
    """Stretches of a segment: row `time` of a stream and the next `rows - 1` lie side by side."""

    stream: np.ndarray
    time: np.ndarray
    slot: np.ndarray
    rows: np.ndarray


def length_of(layout: str, slots: int, streams: int) -> int:
    """The most rows that one stream can have in a segment."""
    return slots // streams if layout == SHARES else slots


def fits(layout: str, length: int, count: np.ndarray) -> bool:
    """Whether a segment can have these rows per stream."""
    return bool((count.max() if layout == SHARES else count.sum()) <= length)


def layout_after(count: np.ndarray) -> str:
    """The layout for the segment that follows one with these rows per stream.

    Shares that are not filled are room that is lost, so an eighth of it may be; a log costs a
    copy when it is sealed.
    """
    even = 8 * int(count.sum()) >= 7 * int(count.max()) * len(count)
    return SHARES if even else LOG


def aranges(numbers: np.ndarray) -> np.ndarray:
    """0 ... n - 1 for every n of numbers, one after the other."""
    return np.arange(int(numbers.sum())) - np.repeat(np.cumsum(numbers) - numbers, numbers)


def slot_owners(begin: np.ndarray, ends: Iterable[np.ndarray]) -> np.ndarray:
    """int32[rows]: whose the rows of a log are, slot by slot, by the ends of its blocks."""
    parts = [np.zeros(0, np.int32)]
    for end in ends:
        which = np.flatnonzero(end - begin)
        parts.append(np.repeat(which, (end - begin)[which]).astype(np.int32))
        begin = end
    return np.concatenate(parts)


def slots_of(layout: str, length: int, count: np.ndarray, owner: np.ndarray | None) -> np.ndarray:
    """int64[rows]: the slot of every row, stream by stream. `owner` is that of a log's slots."""
    if layout == LOG:
        owner = np.zeros(0, np.int32) if owner is None else owner
        order = np.argsort(owner, kind="stable")
        # Of a stream that has more rows than are counted, the oldest are.
        return order[aranges(np.bincount(owner, minlength=len(count))) < count[owner[order]]]
    if layout == PACKED:
        return np.arange(int(count.sum()))
    return np.repeat(np.arange(len(count)) * length, count) + aranges(count)


def pieces_of(layout: str, length: int, count: np.ndarray, owner: np.ndarray | None) -> Pieces:
    """All rows of a segment in as few stretches as they lie in, by stream and time."""
    which = np.flatnonzero(count)
    rows = count[which]
    if layout != LOG:
        slot = which * length if layout == SHARES else np.cumsum(rows) - rows
        return Pieces(which, np.zeros_like(which), slot, rows)
    slot = slots_of(layout, length, count, owner)
    stream, time = np.repeat(which, rows), aranges(rows)
    apart = (stream[1:] != stream[:-1]) | (slot[1:] != slot[:-1] + 1)
    first = np.append(0, np.flatnonzero(apart) + 1)[: len(slot)]
    return Pieces(stream[first], time[first], slot[first], np.diff(np.append(first, len(slot))))


def select_rows(rows: Rows, slots: np.ndarray) -> Rows:
    """Rows by their number in `slots` instead of by slot."""
    edges = np.flatnonzero(np.diff(slots, prepend=-2) != 1)  # where neighbours are none

    def pick(name: str, start: int, stop: int) -> np.ndarray:
        low, high = np.searchsorted(edges, [start, stop])
        cuts = [start, *(edges[low:high][edges[low:high] > start]).tolist(), stop]
        found = [
            rows(name, int(slots[a]), int(slots[a]) + b - a)
            for a, b in zip(cuts, cuts[1:], strict=False)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    return pick
