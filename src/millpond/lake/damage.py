"""`Damage` and what an examination finds: facts that verify reports and repair acts on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..rows import CUT, breaks
from .codec import Codec
from .columns import LOST
from .journal import Block
from .layout import aranges
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
    """What a segment says it holds, what is damaged, and what of every stream is proven."""

    path: Path
    group: GroupInfo
    number: int
    kind: str  # open or sealed, by its name
    size: int  # bytes on disk
    meta: Meta | None  # None: it cannot be read
    count: np.ndarray  # int64[streams]: committed rows; zeros where that is unknown
    keep: np.ndarray  # int64[streams]: how many of these, from the oldest, are proven
    damages: list[Damage] = field(default_factory=list[Damage])
    damaged_rows: int = 0
    blocks: list[Block] = field(default_factory=list[Block])  # an open one's, verified
    codecs: dict[str, Codec] = field(default_factory=dict[str, Codec])  # a sealed one's
    promised: bool = True  # False: an open one of which a power loss may have taken anything
    gap: Damage | None = None  # rows before it that no one has set aside


class Continuity:
    """Where every stream of a group stands: a row's flags must follow those of the row before."""

    def __init__(self, streams: int) -> None:
        self.end = np.zeros(streams, np.int64)  # id after the newest row seen
        self.flags = np.full(streams, CUT, np.uint8)  # of that row; CUT: anything may follow

    def broken(
        self, meta: Meta, count: np.ndarray, flags: np.ndarray, bad: np.ndarray
    ) -> np.ndarray:
        """bool[rows]: rows that cannot follow the row before; then move on.

        flags and bad are [rows], count[stream] of every stream, stream by stream. A damaged row
        proves nothing about its neighbours.
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


def rows_before_damage(count: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """int64[streams]: rows before the first bad one, of bad[rows], stream by stream."""
    keep, which = count.astype(np.int64), np.flatnonzero(bad)
    stream = np.repeat(np.arange(len(count)), count)[which]
    np.minimum.at(keep, stream, aranges(count)[which])
    return keep


def report_broken(
    found: Examined, broken: np.ndarray, first: np.ndarray, slot: np.ndarray, at: int, width: int
) -> None:
    """Report rows whose flags contradict: broken[rows], stream by stream, at slot[rows].

    Records begin at byte `at`.
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
