"""`Lake`: crash-safe replay on disk, sampled in place as if it were in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from ..arguments import checked_sampler, checked_window, whole_numbers
from ..errors import BadConfig, BadState, LakeFailed, LakeRefused, RowsGone
from ..host_random import HostRandom
from ..rows import CUT, Batch, Rows
from ..samplers import Sampler
from ..sequence import AnyWindow, Sequence, SequenceBatch
from ..spec import Field, Spec
from ..window import Window
from .batches import Batches
from .columns import LOST, Columns
from .create import create
from .files import Files, translated_errors, translated_read_errors
from .forks import pause_at_fork
from .gather import Gather, LocatedRows
from .groups import group_for
from .manifest import (
    Capacity,
    LakeInfo,
    check_lake,
    check_same,
    load_lake,
    rows_per_segment,
)
from .reader import Reader
from .segment import SEALED
from .shuffle import Shuffle
from .writer import Writer

_LOOK = 1 << 16  # rows judged at a time when iterating
_STILL = 10.0  # seconds that a fork waits for calls in other threads to end
_PATIENCE = 600.0  # seconds after which threads waiting for each other raise an error


@dataclass(frozen=True)
class Stream:
    """One stream of a Lake: its rows `first ... stop - 1` are stored; both are 0 if none is.

    `lake.read(stream.number, stream.first, stream.stop)` for `stream` in `lake.streams`.
    """

    number: int
    group: str
    env: int
    first: int
    stop: int


@dataclass(frozen=True)
class Stats:
    """How much a Lake holds, and its size on disk: `lake.stats().rows`."""

    rows: int
    streams: int
    groups: int
    segments: int
    sealed: int
    bytes_on_disk: int
    bytes_raw: int  # the same rows uncompressed


class Lake:
    """A folder of committed rows, for any number of readers and one writer per group.

        lake = Lake.create("runs/lake", spec, capacity=10_000_000)      # or capacity="40GB"
        with lake.writer("agent-0", streams=8) as writer:
            writer.append(rows)
            writer.commit()
        lake.refresh()                                                  # see what was committed
        batch = lake.sample(rng, 512, Window(stack=4, n_step=3))

    A reader sees the rows that were committed at its last `refresh` (or when it was opened); rows
    evicted since stay readable until the next. Row ids are counted per stream and never reused.

    Copying a Lake, or sending it to another process, opens it again there.
    """

    def __init__(self, path: str | Path, mode: str, files: Files | None = None) -> None:
        # Resolved now: the working directory or a link may change later.
        self.path, self.mode = Path(path).resolve(), mode
        self._files = files or Files()
        with translated_read_errors(self.path):
            self.info = load_lake(self.path)
        self.spec = self.info.spec
        self._reader: Reader | None = None
        self._batches: dict[tuple[AnyWindow, int], Batches] = {}
        self._gathers: dict[tuple[int, bool], Gather] = {}
        self._using = threading.RLock()  # refresh() unmaps what sample() may be reading
        # gather() copies without the lock, so refresh() waits for it to end, and it for refresh().
        self._moving = self._refreshing = 0
        self._changed = threading.Condition(self._using)
        self._still = False
        pause_at_fork(self)

    @staticmethod
    def create(
        path: str | Path,
        spec: Spec,
        capacity: int | str,
        groups: int = 1,
        segment_rows: int | None = None,
        files: Files | None = None,
    ) -> Lake:
        """Make a new Lake in a new or empty folder.

        `capacity` is a number of rows, or a size such as "40GB", divided evenly among `groups`
        writers. A group that exceeds its share drops its oldest segment.
        """
        folder, files = Path(path), files or Files()
        columns, limit = Columns(spec), Capacity.parse(capacity)
        if not isinstance(groups, int) or groups < 1:
            raise BadConfig(f"Lake: groups must be a whole number >= 1, got {groups!r}")
        slots = segment_rows or rows_per_segment(columns, limit, groups)
        info = LakeInfo(spec, limit, groups, slots)
        check_lake(info, columns)
        with translated_errors("creating a Lake", folder):
            create(files, folder, info)
        return Lake(folder, "a", files)

    @staticmethod
    def open(
        path: str | Path,
        mode: Literal["r", "a"] = "r",
        spec: Spec | None = None,
        files: Files | None = None,
    ) -> Lake:
        """Open a Lake for reading, or with mode "a" also for writing.

        If a `spec` is given, the Lake must have been created with an equal one.
        """
        if mode not in ("r", "a"):
            raise BadConfig(f"Lake.open: mode must be 'r' or 'a', got {mode!r}")
        lake = Lake(path, mode, files)
        if spec is not None and spec.fingerprint() != lake.info.fingerprint:
            raise LakeRefused(_other_spec(lake, spec))
        return lake

    def writer(self, group: str, streams: int, continues: bool = False, threads: int = 1) -> Writer:
        """Open the writer of a group, which is created if new; one process at a time may have it.

        A cut separates new rows from those of earlier sessions, because envs begin new episodes;
        with `continues` there is none, unless `cut` was called after the stored rows. Full segments
        are compressed in the background, by `threads` threads.
        """
        if self.mode != "a":
            raise BadConfig("Lake: opened read-only; use Lake.open(path, mode='a') to write")
        with translated_errors("opening a writer", self.path):
            info = group_for(self._files, self.path, self.info, group, streams)
            folder = self.path / "groups" / group
            return Writer(self._files, folder, self.info, info, continues, threads)

    @property
    def reader(self) -> Reader:
        """The reader of the mapped segments, created when it is first needed."""
        with self._using:
            if self._reader is None:
                self._reader = Reader(self.path, self.info)
            return self._reader

    def refresh(self) -> None:
        """Make rows committed since the last refresh readable, and drop evicted ones."""
        with self._using:
            self._refreshing += 1
            try:
                self._wait(lambda: self._moving == 0)
                self.reader.refresh()
            finally:
                self._refreshing -= 1
                self._changed.notify_all()

    def _wait(self, over: Callable[[], bool]) -> None:
        if not self._changed.wait_for(over, _PATIENCE):
            raise LakeFailed(
                f"{self.path}: refresh() and gather() in different threads have waited "
                f"{_PATIENCE:.0f} s for each other; check whether the disk responds"
            )

    def __len__(self) -> int:
        """The number of committed rows."""
        return self.reader.index.total

    @property
    def streams(self) -> list[Stream]:
        """Every stream, numbered as in `batch.draw.stream`."""
        with self._using:
            index = self.reader.index
            first = np.zeros(index.streams, np.int64)
            stop = np.zeros(index.streams, np.int64)
            first[index.stream[::-1]] = index.first[::-1]
            stop[index.stream] = index.first + index.count
            spans = list(zip(first.tolist(), stop.tolist(), strict=True))
            return [
                Stream(group.base + env, group.name, env, *spans[group.base + env])
                for group in self.reader.groups
                for env in range(group.streams)
            ]

    def stats(self) -> Stats:
        """Row counts and sizes; fast, since no rows are read."""
        with self._using:
            reader = self.reader
            segments = list(reader.seated.values())
            return Stats(
                rows=reader.index.total,
                streams=reader.index.streams,
                groups=len(reader.groups),
                segments=len(segments),
                sealed=sum(s.meta.kind == SEALED for s in segments),
                bytes_on_disk=sum(s.size for s in segments),
                bytes_raw=reader.index.total * reader.columns.row_bytes,
            )

    @overload
    def sample(
        self,
        rng: np.random.Generator,
        batch: int,
        window: Window | None = None,
        sampler: Sampler | None = None,
        out: Batch | None = None,
        threads: int = 1,
    ) -> Batch: ...

    @overload
    def sample(
        self,
        rng: np.random.Generator,
        batch: int,
        window: Sequence,
        sampler: Sampler | None = None,
        out: SequenceBatch | None = None,
        threads: int = 1,
    ) -> SequenceBatch: ...

    def sample(
        self,
        rng: np.random.Generator,
        batch: int,
        window: AnyWindow | None = None,
        sampler: Sampler | None = None,
        out: Any = None,
        threads: int = 1,
    ) -> Any:
        """Draw a batch of transitions or sequences; NotEnoughData if no start is valid.

        Pass the last batch as `out` to reuse its arrays.
        """
        _at_least("sample: batch", batch, 1)
        sampler = checked_sampler("Lake.sample", sampler)
        with self._using:
            batches = self._batches_for(window, threads)
            try:
                return batches.sample(HostRandom(rng), batch, sampler, out)
            finally:
                batches.reader.check_maps()

    @overload
    def iterate(
        self,
        batch: int,
        window: Window | None = None,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        threads: int = 1,
    ) -> Iterator[Batch]: ...

    @overload
    def iterate(
        self,
        batch: int,
        window: Sequence,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        threads: int = 1,
    ) -> Iterator[SequenceBatch]: ...

    def iterate(
        self,
        batch: int,
        window: AnyWindow | None = None,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        threads: int = 1,
    ) -> Iterator[Any]:
        """Yield batches with every valid start once per epoch; the last batch may be smaller.

        Covers the rows committed when it begins; calling refresh() in between raises BadState.
        """
        _at_least("iterate: batch", batch, 1)
        _at_least("iterate: epochs", epochs, 0)
        batches, index = self._batches_for(window, threads), self.reader.index

        def same() -> None:
            if self.reader.index is not index:
                raise BadState(
                    "Lake.iterate: the Lake was refreshed during the iteration, which renumbers "
                    "its rows; refresh() before iterating, or iterate over a separate Lake"
                )

        for epoch in range(epochs):
            order = Shuffle(index.total, seed, epoch) if shuffle else None
            left = np.zeros(0, np.int64)
            for start in range(0, index.total, _LOOK):
                rows = np.arange(start, min(start + _LOOK, index.total))
                rows = rows if order is None else order(rows)
                with self._using:
                    same()
                    with self._checking_maps():
                        left = np.append(left, rows[batches.judge_rows(rows).verdict.valid])
                last = start + _LOOK >= index.total
                while len(left) >= batch or (last and len(left)):
                    with self._using:
                        same()
                        with self._checking_maps():
                            found = batches.batch_of(left[:batch])
                    yield found  # without the lock, as the caller may take long
                    left = left[batch:]

    def read(self, stream: int, start: int, stop: int) -> Rows:
        """Rows `start ... stop - 1` of a stream, [time], as they were appended.

        A cut between sessions shows as the flag CUT on the row before it.
        """
        for name, number in (("stream", stream), ("start", start), ("stop", stop)):
            if not isinstance(number, (int, np.integer)) or isinstance(number, bool):
                raise BadConfig(f"Lake.read: {name} must be a whole number, got {number!r}")
        with self._using, self._checking_maps():
            batches = self._batches_for(None, 1)
            index = self.reader.index
            if not 0 <= stream < index.streams or not 0 <= start <= stop:
                raise BadConfig(
                    f"Lake.read: stream must lie in [0, {index.streams - 1}] and 0 <= start <= "
                    f"stop, got stream {stream}, rows {start} to {stop}"
                )
            held = self.streams[stream]
            inside = start == stop or held.first <= start < stop <= held.stop
            # Check before allocating anything of that size.
            ids = np.arange(start, stop + 1) if inside else np.zeros(0, np.int64)
            piece, at = index.find(np.full(len(ids), stream), ids)
            if not inside or (at[:-1] < 0).any():
                raise RowsGone(
                    f"Lake.read: rows {start} to {stop - 1} of stream {stream} are not all stored; "
                    f"it holds {held.first} to {held.stop - 1}: older ones were evicted, newer "
                    "ones not committed at the last refresh()"
                )
            slots = np.where(at >= 0, index.slot[piece] + at, -1)
            records = self.reader.records(slots)
            cut = (records["flags"][1:] & LOST) != 0
            records = records[:-1]
            records["flags"] = (records["flags"] & 127) | cut * np.uint8(CUT)
            raw = {path: batches.fetch(path, slots[:-1]) for path in self.reader.columns.obs}
            return self.reader.columns.rows(records, raw)

    def starts(self, window: AnyWindow | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Every valid start: streams int32[n] and row ids int64[n], to pass to `take`.

        `stream, row = lake.starts(Window(n_step=3)); lake.take(stream[:256], row[:256])`.
        """
        with self._using, self._checking_maps():
            batches, index = self._batches_for(window, 1), self.reader.index
            rows = np.concatenate([np.zeros(0, np.int64), *batches.valid_rows()])
            if not len(rows):
                return rows.astype(np.int32), rows
            piece, at = batches.pieces_of(rows)
            return index.stream[piece].astype(np.int32), index.first[piece] + at

    @overload
    def take(
        self, stream: Any, row: Any, window: Window | None = None, out: Batch | None = None
    ) -> Batch: ...

    @overload
    def take(
        self, stream: Any, row: Any, window: Sequence, out: SequenceBatch | None = None
    ) -> SequenceBatch: ...

    def take(self, stream: Any, row: Any, window: AnyWindow | None = None, out: Any = None) -> Any:
        """What starts at row ids row[batch] of stream[batch]; where nothing does, it is masked.

        `out`: a batch to fill, as in `sample`. For a window with n_step=1, its `obs` and `next_obs`
        may be `frames[:, :-1]` and `frames[:, 1:]` of one array: each frame is then written once.
        """
        with self._using, self._checking_maps():
            batches = self._batches_for(window, 1)
            stream = whole_numbers("Lake.take: streams", stream)
            row = whole_numbers("Lake.take: row ids", row)
            if stream.ndim != 1 or stream.shape != row.shape:
                raise BadConfig(
                    "Lake.take: streams and row ids must be two lists of the same length, got "
                    f"shapes {stream.shape} and {row.shape}"
                )
            piece, at = self.reader.index.find(stream, row)
            if not (self.reader.index.total and len(row)):
                return batches.all_masked(stream, row)
            batch = batches.take(piece, np.maximum(at, 0), out)
            batch.draw.stream[:], batch.draw.row[:] = stream, row
            batch.mask[at < 0] = False
            return batch

    def gather(
        self,
        stream: np.ndarray,
        start: np.ndarray,
        length: int,
        anchor: np.ndarray | None = None,
        out: Mapping[str, np.ndarray] | None = None,
        threads: int = 1,
        packed: bool = False,
    ) -> Rows:
        """Rows [n, length]: row ids start[i] ... start[i] + length - 1 of stream[i], for all i.

        Row anchor[i] (default: start[i]) must be stored. Other rows that are not stored come back
        blank (zeros, or the nearest value within the field's bounds), with the flags CONTEXT and
        CUT. `packed`: binary observations as bytes, for `pond.packed`. `Fill` reads with it;
        several threads may call it at once.
        """
        moving = False
        try:
            with self._using:
                self._wait(lambda: not self._refreshing)
                gather, found = self._find(stream, start, length, anchor, out, threads, packed)
                self._moving += 1
                moving = True  # no call in between: refresh() waits until the count is back at 0
            return gather.move(found)
        finally:
            if moving:
                with self._using:
                    self._moving -= 1
                    self._changed.notify_all()
                    self.reader.check_maps()

    def _find(
        self,
        stream: Any,
        start: Any,
        length: int,
        anchor: Any,
        out: Mapping[str, np.ndarray] | None,
        threads: int,
        packed: bool,
    ) -> tuple[Gather, LocatedRows]:
        """The first half of gather(): check the arguments, locate the rows."""
        stream = whole_numbers("Lake.gather: streams", stream)
        start = whole_numbers("Lake.gather: starts", start)
        anchor = start if anchor is None else whole_numbers("Lake.gather: anchors", anchor)
        _at_least("gather: length", length, 1)
        _at_least("gather: threads", threads, 1)
        if stream.ndim != 1 or not stream.shape == start.shape == anchor.shape:
            raise BadConfig(
                "Lake.gather: stream, start and anchor must be lists of the same length, got "
                f"shapes {stream.shape}, {start.shape} and {anchor.shape}"
            )
        if (self.reader.index.find(stream, anchor)[1] < 0).any():
            raise RowsGone(
                "Lake.gather: a requested row is not stored; it was evicted, or not committed at "
                "the last refresh()"
            )
        if (threads, packed) not in self._gathers:
            self._gathers[threads, packed] = Gather(self.reader, threads, packed)
        gather = self._gathers[threads, packed]
        return gather, gather.find(stream, start, length, anchor, out)

    def before_fork(self) -> None:
        """Wait for calls in other threads to end: those threads do not exist in the child."""
        self._still = self._using.acquire(timeout=_STILL)

    def after_fork(self, child: bool) -> None:
        """Release the lock; in the child, replace it and drop what the parent's threads own."""
        still, self._still = self._still, False
        if not child:
            if still:
                self._using.release()
            return
        self._using = threading.RLock()
        self._changed = threading.Condition(self._using)
        self._moving = self._refreshing = 0
        self._gathers = {}  # their threads exist in the parent only
        if not still:
            self._reader, self._batches = None, {}  # a call may have been changing them: map again

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.mode, self.info.fingerprint, self._files)

    @contextmanager
    def _checking_maps(self) -> Generator[None]:
        """Raise LakeDamaged at the end of the block if the disk failed to deliver mapped bytes."""
        try:
            yield
        finally:
            self.reader.check_maps()

    def _batches_for(self, window: AnyWindow | None, threads: int) -> Batches:
        window = checked_window("Lake", window)
        _at_least("sample, iterate: threads", threads, 1)
        key = (window, threads)
        if key not in self._batches:
            self._batches[key] = Batches(self.reader, window, threads)
        return self._batches[key]


def _reopen(path: str, mode: str, fingerprint: str, files: Files) -> Lake:
    """Unpickle a Lake: open it again, and check that it has the same spec."""
    lake = Lake(path, mode, files)
    check_same(lake.path, lake.info, fingerprint)
    return lake


def _at_least(what: str, number: Any, least: int) -> None:
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < least:
        raise BadConfig(f"Lake.{what} must be a whole number >= {least}, got {number!r}")


def _other_spec(lake: Lake, spec: Spec) -> str:
    ours, theirs = lake.spec.columns, spec.columns
    for path in sorted(set(ours) | set(theirs)):
        held, given = _described(ours.get(path)), _described(theirs.get(path))
        if held != given:
            # Show bounds only where the rest is equal.
            same = held[0] == given[0]
            held, given = (" ".join(said if same else said[:1]) for said in (held, given))
            return (
                f"{lake.path}: field '{path}': this Lake holds {held}, got {given}; "
                "open it with its own spec, or create another Lake"
            )
    return (
        f"{lake.path}: this Lake was made with spec {lake.info.fingerprint}, got "
        f"{spec.fingerprint()}; create another Lake"
    )


def _described(field: Field | None) -> tuple[str, str]:
    """A field's dtype and shape, and its bounds, in words."""
    if field is None:
        return "nothing", ""
    plain = field.to_json()
    bits = ", one bit each" if field.binary else ""
    return field.describe(), f"from {plain['low']} to {plain['high']}{bits}"
