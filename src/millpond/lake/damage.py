"""`Damage` and `Examined`: what examining a segment finds, for `verify` and `repair`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..rows import CUT, breaks
from .codec import Codec
from .columns import LOST
from .journal import Block
from .layout import index_ranges
from .manifest import GroupInfo
from .segment import Meta


@dataclass(frozen=True)
class Damage:
    """Bytes `start ... stop - 1` of a file that are not what was written.

    `for damage in verify_lake(path).damages: print(damage.path, damage.what)`.
    """

    path: Path
    start: int
    stop: int
    what: str
    rows: int | None  # committed rows that depend on them; None: unknown


@dataclass
class Examined:
    """What a segment claims to hold, what is damaged, and how much of each stream is verified."""

    path: Path
    group: GroupInfo
    number: int
    kind: str  # open or sealed, by its name
    size: int  # bytes on disk
    meta: Meta | None  # None: unreadable
    count: np.ndarray  # int64[streams]: committed rows; zeros where that is unknown
    keep: np.ndarray  # int64[streams]: how many of these, from the oldest, are verified
    damages: list[Damage] = field(default_factory=list[Damage])
    damaged_rows: int = 0
    blocks: list[Block] = field(default_factory=list[Block])  # of an open segment, verified
    codecs: dict[str, Codec] = field(default_factory=dict[str, Codec])  # of a sealed segment
    promised: bool = True  # False: an open segment that a power loss may have taken rows from
    gap: Damage | None = None  # unexplained missing rows before it


class Continuity:
    """Checks, segment by segment, that every row's flags can follow those of the row before it."""

    def __init__(self, streams: int) -> None:
        self.end = np.zeros(streams, np.int64)  # id after the newest row seen
        self.flags = np.full(streams, CUT, np.uint8)  # that row's flags; CUT: anything may follow

    def broken(
        self, meta: Meta, count: np.ndarray, flags: np.ndarray, bad: np.ndarray
    ) -> np.ndarray:
        """bool[rows]: which rows of the next segment cannot follow the row before; keeps its end.

        `flags` and `bad` (damaged rows) are [rows], stream by stream, count[stream] of each. A
        damaged row says nothing about its neighbours.
        """
        some = np.flatnonzero(count)
        ends = np.cumsum(count)[some]
        newest = ends - 1
        before = np.empty_like(flags)
        before[1:] = np.where(bad[:-1], np.uint8(CUT), flags[:-1])
        follows = np.where(self.end == meta.first, self.flags, np.uint8(CUT))
        before[ends - count[some]] = follows[some]
        before = np.where((flags & LOST) != 0, np.uint8(CUT), before)
        broken = breaks(before, flags) & ~bad
        self.end[some] = (meta.first + count)[some]
        self.flags[some] = np.where(bad[newest], np.uint8(CUT), flags[newest])
        return broken


def intact_rows(count: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """int64[streams]: rows before each stream's first bad one, from bad[rows], stream by stream."""
    keep, which = count.astype(np.int64), np.flatnonzero(bad)
    stream = np.repeat(np.arange(len(count)), count)[which]
    np.minimum.at(keep, stream, index_ranges(count)[which])
    return keep


def report_broken(
    found: Examined, broken: np.ndarray, first: np.ndarray, slot: np.ndarray, at: int, width: int
) -> None:
    """Report the rows in broken[rows], stored at slot[rows], whose flags contradict the row before.

    Rows are ordered stream by stream; the records begin at byte `at` of the file.
    """
    if not broken.any():
        return
    row, slots = int(np.argmax(broken)), slot[broken]
    ends = np.cumsum(found.count)
    stream = int(np.searchsorted(ends, row, side="right"))
    time = row - int(ends[stream] - found.count[stream])
    what = (
        f"flags of {len(slots)} row(s) contradict the row before, the first being row "
        f"{int(first[stream]) + time} of stream {found.group.base + stream}"
    )
    start, stop = at + int(slots.min()) * width, at + (int(slots.max()) + 1) * width
    found.damages.append(Damage(found.path, start, stop, what, len(slots)))
