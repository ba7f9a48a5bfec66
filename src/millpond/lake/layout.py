"""The three layouts of rows within a segment; its description says which one it has.

`shares`: every stream has an equal share of the slots; row t of stream s has slot
`s * length + t`. For streams that advance evenly and so fill their shares at the same time; such a
segment is sealed in place.

`log`: rows are stored in the order they were written, block by block, and stream by stream within
a block; the journal says which stream each belongs to. For open segments whose streams advance
unevenly: it is full when all its slots are used.

`packed`: a sealed log: stream by stream, without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

SHARES, LOG, PACKED = "shares", "log", "packed"

Rows = Callable[[str, int, int], np.ndarray]  # (column, start slot, stop slot) → uint8[n, width]


class Pieces(NamedTuple):
    """Contiguous stretches of a segment: row `time` of a stream and the `rows - 1` after it."""

    stream: np.ndarray
    time: np.ndarray
    slot: np.ndarray
    rows: np.ndarray


def length_of(layout: str, slots: int, streams: int) -> int:
    """The most rows one stream can have in a segment."""
    return slots // streams if layout == SHARES else slots


def fits(layout: str, length: int, count: np.ndarray) -> bool:
    """Whether a segment has room for count[stream] rows."""
    return bool((count.max() if layout == SHARES else count.sum()) <= length)


def layout_after(count: np.ndarray) -> str:
    """The layout of the segment after one with count[stream] rows.

    Shares waste the room that slow streams leave unused, a log costs a copy when it is sealed:
    shares as long as they waste at most an eighth.
    """
    even = 8 * int(count.sum()) >= 7 * int(count.max()) * len(count)
    return SHARES if even else LOG


def index_ranges(numbers: np.ndarray) -> np.ndarray:
    """arange(n) for every n in `numbers`, concatenated."""
    return np.arange(int(numbers.sum())) - np.repeat(np.cumsum(numbers) - numbers, numbers)


def slot_owners(begin: np.ndarray, ends: Iterable[np.ndarray]) -> np.ndarray:
    """int32[rows]: the stream of each slot of a log, from the ends of its blocks."""
    parts = [np.zeros(0, np.int32)]
    for end in ends:
        which = np.flatnonzero(end - begin)
        parts.append(np.repeat(which, (end - begin)[which]).astype(np.int32))
        begin = end
    return np.concatenate(parts)


def slots_of(layout: str, length: int, count: np.ndarray, owner: np.ndarray | None) -> np.ndarray:
    """int64[rows]: the slot of every row, stream by stream; `owner`: whose slots a log's are."""
    if layout == LOG:
        owner = np.zeros(0, np.int32) if owner is None else owner
        order = np.argsort(owner, kind="stable")
        # If the log has more rows of a stream than `count`, take the oldest.
        return order[index_ranges(np.bincount(owner, minlength=len(count))) < count[owner[order]]]
    if layout == PACKED:
        return np.arange(int(count.sum()))
    return np.repeat(np.arange(len(count)) * length, count) + index_ranges(count)


def pieces_of(layout: str, length: int, count: np.ndarray, owner: np.ndarray | None) -> Pieces:
    """All rows of a segment as the fewest contiguous stretches, by stream and time."""
    which = np.flatnonzero(count)
    rows = count[which]
    if layout != LOG:
        slot = which * length if layout == SHARES else np.cumsum(rows) - rows
        return Pieces(which, np.zeros_like(which), slot, rows)
    slot = slots_of(layout, length, count, owner)
    stream, time = np.repeat(which, rows), index_ranges(rows)
    apart = (stream[1:] != stream[:-1]) | (slot[1:] != slot[:-1] + 1)
    first = np.append(0, np.flatnonzero(apart) + 1)[: len(slot)]
    return Pieces(stream[first], time[first], slot[first], np.diff(np.append(first, len(slot))))


def select_rows(rows: Rows, slots: np.ndarray) -> Rows:
    """A `Rows` function over the rows at `slots`, indexed by position in `slots`."""
    edges = np.flatnonzero(np.diff(slots, prepend=-2) != 1)  # where a contiguous stretch begins

    def pick(name: str, start: int, stop: int) -> np.ndarray:
        low, high = np.searchsorted(edges, [start, stop])
        cuts = [start, *(edges[low:high][edges[low:high] > start]).tolist(), stop]
        found = [
            rows(name, int(slots[a]), int(slots[a]) + b - a)
            for a, b in zip(cuts, cuts[1:], strict=False)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    return pick
