"""Surveys a Lake: counts rows, episodes and bytes in one pass over the records."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..rows import BORDER, CUT, ENDED, FIRST, TERMINATED, TRUNCATED
from .columns import LOST
from .examine import pages_of
from .files import PAGE
from .lake import Lake, Stats
from .reader import MappedSegment, Reader
from .recovery import set_aside_files
from .segment import SEALED

_SCAN = 1 << 20  # rows read at a time


@dataclass(frozen=True)
class ColumnSize:
    """The size of one column: raw bytes of its rows, and bytes of its pages or frames on disk."""

    name: str
    stored: str  # raw, zstd, or both
    raw: int
    disk: int
    index: int  # bytes of the offsets of compressed frames
    dictionaries: int  # distinct ones
    dictionary: int  # bytes; every segment holds its own copy


@dataclass(frozen=True)
class GroupSurvey:
    """The contents of one writer group."""

    name: str
    streams: int
    rows: int
    sealed: int
    open: int
    oldest: int  # the lowest row id that is stored; -1: none
    newest: int  # the highest row id that is stored
    first_time: float  # when its oldest segment file was last written; seconds since 1970
    last_time: float
    damaged_files: int  # files moved aside by repair
    damaged_bytes: int  # bytes of these


@dataclass(frozen=True)
class Range:
    """Mean, minimum and maximum; zeros if there are no values."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class EpisodeCounts:
    """How many episodes ended; returns and lengths of those that are stored completely."""

    finished: int
    terminated: int
    truncated: int
    whole: int
    returns: Range
    lengths: Range


@dataclass(frozen=True)
class Survey:
    """What a Lake holds, as `millpond lake info` prints it.

    `survey_lake(path).episodes.finished`.
    """

    path: Path
    stats: Stats
    steps: int  # rows that are not border rows
    capacity_rows: int | None
    capacity_bytes: int | None
    use: float  # share of the capacity
    slots: int  # rows per segment
    parts: tuple[ColumnSize, ...]
    groups: tuple[GroupSurvey, ...]
    episodes: EpisodeCounts


def survey_lake(path: str | Path, progress: Callable[[int, int], None] | None = None) -> Survey:
    """Read every record of a Lake and summarise it; calls progress(rows done, total rows).

    `survey_lake("runs/lake").steps`.
    """
    lake = Lake.open(path)
    stats, info = lake.stats(), lake.info
    counter = _EpisodeCounter()
    total = stats.rows
    for start in range(0, total, _SCAN):
        stop = min(start + _SCAN, total)
        counter.add(lake.reader, start, stop)
        if progress is not None:
            progress(stop, total)
    capacity = info.capacity
    share = stats.rows / capacity.rows if capacity.rows else 0.0
    share = stats.bytes_on_disk / capacity.size if capacity.size else share
    return Survey(
        path=Path(path),
        stats=stats,
        steps=counter.steps,
        capacity_rows=capacity.rows,
        capacity_bytes=capacity.size,
        use=share,
        slots=info.slots,
        parts=_parts(lake.reader),
        groups=_groups(lake),
        episodes=counter.episodes(),
    )


class _EpisodeCounter:
    """Counts steps and episodes; rows are added stream by stream, the oldest first."""

    def __init__(self) -> None:
        self.steps = self.finished = self.terminated = self.truncated = 0
        self._returns: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        # The episode of the last row so far.
        self._first, self._ended, self._return, self._length = False, False, 0.0, 0
        self._cut = True  # whether the next row does not continue that one

    def add(self, reader: Reader, start: int, stop: int) -> None:
        """Add rows start ... stop - 1 of the reader's index."""
        index = reader.index
        rows = np.arange(start, stop)
        piece = np.searchsorted(index.begin, rows, side="right") - 1
        at = rows - index.begin[piece]
        records = reader.records(index.slot[piece] + at)
        flags, reward = records["flags"], records["reward"].astype(np.float64)
        step, ended = (flags & BORDER) == 0, (flags & ENDED) != 0
        self.steps += int(step.sum())
        self.finished += int(ended.sum())
        self.terminated += int(((flags & TERMINATED) != 0).sum())
        self.truncated += int(((flags & TRUNCATED) != 0).sum())

        # A stretch: consecutive rows of one episode, as far as is known.
        begins = (flags & (FIRST | LOST)) != 0
        begins |= (at == 0) & ~index.has_previous[piece]
        begins[1:] |= (flags[:-1] & CUT) != 0
        begins[0] |= self._cut
        edges = np.flatnonzero(begins)
        if not begins[0]:
            edges = np.append(0, edges)
        first = (flags[edges] & FIRST) != 0
        over = np.add.reduceat(ended, edges) > 0
        returns = np.add.reduceat(reward * step, edges)
        lengths = np.add.reduceat(step, edges, dtype=np.int64)
        if begins[0]:
            self._close()
        else:
            first[0], over[0] = self._first, over[0] or self._ended
            returns[0], lengths[0] = returns[0] + self._return, lengths[0] + self._length
        whole = (first & over)[:-1]
        self._returns.append(returns[:-1][whole])
        self._lengths.append(lengths[:-1][whole])
        self._first, self._ended = bool(first[-1]), bool(over[-1])
        self._return, self._length = float(returns[-1]), int(lengths[-1])
        self._cut = bool(flags[-1] & CUT)

    def _close(self) -> None:
        if self._first and self._ended:
            self._returns.append(np.array([self._return]))
            self._lengths.append(np.array([self._length]))
        self._first = False

    def episodes(self) -> EpisodeCounts:
        self._close()
        returns = np.concatenate([np.zeros(0), *self._returns])
        lengths = np.concatenate([np.zeros(0), *self._lengths])
        return EpisodeCounts(
            self.finished,
            self.terminated,
            self.truncated,
            len(returns),
            _range(returns),
            _range(lengths),
        )


def _range(values: np.ndarray) -> Range:
    if not len(values):
        return Range(0.0, 0.0, 0.0)
    return Range(float(values.mean()), float(values.min()), float(values.max()))


def _parts(reader: Reader) -> tuple[ColumnSize, ...]:
    """The size of every column over all segments."""
    parts: list[ColumnSize] = []
    for column in reader.columns.all:
        raw = disk = index = dictionary = 0
        kinds: set[str] = set()
        identities: set[int] = set()
        for segment in reader.seated.values():
            stored, rows = segment.meta.columns[column.name], int(segment.meta.count.sum())
            raw += rows * column.width
            if rows:
                kinds.add(stored.codec)
            if stored.codec == "raw":
                disk += _pages_of(segment, column.width) * PAGE
                continue
            disk += stored.data.size
            index += stored.offsets.size if stored.offsets else 0
            if stored.dictionary is not None:
                dictionary += stored.dictionary.size
                identities.add(stored.dictionary_sum)
        kind = " and ".join(sorted(kinds)) or "raw"
        parts.append(ColumnSize(column.name, kind, raw, disk, index, len(identities), dictionary))
    return tuple(parts)


def _pages_of(segment: MappedSegment, width: int) -> int:
    """How many pages of a raw column hold rows."""
    pieces = segment.meta.pieces()
    start = pieces.slot * width
    stop = start + pieces.rows * width
    pages = int(stop.max(initial=0) // PAGE + 1)
    return int(pages_of(start, stop, pages).sum())


def _written(path: Path) -> list[float]:
    """When a file was last written; empty if it was sealed or dropped meanwhile."""
    try:
        return [os.stat(path).st_mtime]
    except FileNotFoundError:
        return []


def _groups(lake: Lake) -> tuple[GroupSurvey, ...]:
    found: list[GroupSurvey] = []
    for group in lake.reader.groups:
        seated = [s for s in lake.reader.seated.values() if s.group.index == group.index]
        streams = [s for s in lake.streams if s.group == group.name and s.stop > s.first]
        times = [time for s in seated for time in _written(s.path)]
        aside = [
            p for ps in set_aside_files(lake.path / "groups" / group.name).values() for p in ps
        ]
        sealed = sum(s.meta.kind == SEALED for s in seated)
        found.append(
            GroupSurvey(
                name=group.name,
                streams=group.streams,
                rows=sum(int(s.meta.count.sum()) for s in seated),
                sealed=sealed,
                open=len(seated) - sealed,
                oldest=min((s.first for s in streams), default=-1),
                newest=max((s.stop for s in streams), default=0) - 1,
                first_time=min(times, default=0.0),
                last_time=max(times, default=0.0),
                damaged_files=len(aside),
                damaged_bytes=sum(os.stat(p).st_blocks * 512 for p in aside),
            )
        )
    return tuple(found)
