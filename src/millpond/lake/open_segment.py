"""`OpenSegment`: the segment a writer appends to: raw rows, and a journal that commits them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from ..errors import LakeFailed
from .columns import Columns
from .files import Files, as_bytes, translated_errors
from .journal import Block, pack, unpack
from .layout import LOG, SHARES, index_ranges, slot_owners
from .mark import Mark, mark_of, read_mark, this_boot, write_mark
from .seal import extents, mapped_rows
from .segment import PAGE, Meta, path_of, write_meta


class OpenSegment:
    """Rows are written straight to their final place, and count once the journal commits them.

    Until then they may be overwritten, so any failed step can be repeated.
    """

    def __init__(self, files: Files, folder: Path, columns: Columns, meta: Meta) -> None:
        self.files, self.columns, self.meta = files, columns, meta
        self.path = path_of(folder, meta.number, ".open")
        self.journal_path = path_of(folder, meta.number, ".journal")
        self.count = meta.count.copy()  # committed rows per stream
        self.pending: list[tuple[np.ndarray, int]] = []  # uncommitted blocks: ends, checksum
        slots = meta.columns[columns.all[0].name].data.size // columns.all[0].width
        self._owner = np.empty(slots if meta.layout == LOG else 0, np.int32)  # of written rows
        self.sent = False  # handed to the sealer, which owns it from then on
        self._records = self._journal_size = 0
        self._mark = Mark(0, 0, this_boot())
        self._fd = self._journal = -1
        self._closing = threading.Lock()  # the sealer may close files that the writer is syncing
        self.dirty = self.sync_failed = False  # after a failed sync, rows may not be on disk

    @property
    def written(self) -> np.ndarray:
        """Rows per stream in the file, committed or not."""
        return self.pending[-1][0] if self.pending else self.count

    @property
    def full(self) -> bool:
        """Whether the committed rows leave no room for some stream."""
        used = self.count.max() if self.meta.layout == SHARES else self.count.sum()
        return int(used) == self.meta.length

    def room(self, which: slice, written: np.ndarray) -> int:
        """How many more rows fit for each of the streams `which`, after `written` rows."""
        if self.meta.layout == SHARES:
            return self.meta.length - int(written[which].max())
        return (self.meta.length - int(written.sum())) // (which.stop - which.start)

    def committed(self) -> Meta:
        """The description, including the committed rows."""
        owner = self._owner[: self.count.sum()] if self.meta.layout == LOG else None
        return replace(self.meta, count=self.count, owner=owner)

    def create(self) -> None:
        """Create the file, after removing what a failed attempt left behind."""
        there = read_mark(self.path) if self.path.exists() else None
        if there is not None and there.committed:
            raise LakeFailed(
                f"{self.path}: there are committed rows here already, so no segment is created "
                "in their place; open the writer again: it continues after them"
            )
        with translated_errors("creating a segment", self.path):
            for path in (self.journal_path, self.path):
                if path.exists():
                    self.files.unlink(path)
            self._fd = self.files.create(self.path)
            last = self.meta.columns[self.columns.all[-1].name].data
            self.files.truncate(self._fd, last.offset + last.size)
            write_meta(self.files, self._fd, self.meta, PAGE)
            write_mark(self.files, self._fd, self._mark)
        self.dirty = True

    def create_journal(self) -> None:
        """Create the journal: from then on, rows can be committed."""
        with translated_errors("creating a segment", self.journal_path):
            self._journal = self.files.create(self.journal_path)
        self.dirty = True

    def resume(self, blocks: list[Block]) -> None:
        """Continue after the verified blocks, truncating the journal after them."""
        self._records = len(blocks)
        self._journal_size = blocks[-1].bytes_to_here if blocks else 0
        self.count = blocks[-1].end.copy() if blocks else self.count
        if self.meta.layout == LOG:
            mine = slot_owners(self.meta.count, [block.end for block in blocks])
            self._owner[: len(mine)] = mine
        self.dirty = True
        try:
            with translated_errors("opening a segment", self.path):
                self._fd = self.files.open(self.path)
                self._journal = self.files.open(self.journal_path)
                old = mark_of(self._fd)
                synced = 0 if old is None else min(old.synced, self._journal_size)
                self._set_mark(Mark(self._journal_size, synced, this_boot()))
                if os.fstat(self._journal).st_size > self._journal_size:
                    self.files.truncate(self._journal, self._journal_size)
                self._rewrite()
        except BaseException:
            self.close()
            raise

    def _rewrite(self) -> None:
        """Write the existing rows and journal again, byte for byte.

        If a previous writer's sync failed, the kernel regards their pages as clean though they
        never reached the disk; another sync would do nothing and report success.
        """
        meta = self.committed()
        rows = mapped_rows(self.path, meta, self.columns)
        for column in self.columns.all:
            begin = meta.columns[column.name].data.offset
            for start, stop in extents(meta, column.width):
                data = rows(column.name, start, stop).copy()
                self.files.pwrite(self._fd, as_bytes(data), begin + start * column.width)
        journal = os.pread(self._journal, self._journal_size, 0)
        self.files.pwrite(self._journal, memoryview(journal), 0)

    def write(
        self,
        rows: Mapping[str, np.ndarray],
        begin: np.ndarray,
        number: np.ndarray,
        base: int = 0,
    ) -> tuple[np.ndarray, int]:
        """Write rows[stream - base, :number[stream], width] after `begin`; return ends, checksum.

        `begin` and `number` are for all streams of the group, `rows` for those that have new ones.
        """
        sums = xxhash.xxh3_64()
        steps = rows[self.columns.all[0].name].shape[1]
        which = np.flatnonzero(number)
        some, place = number[which], (which - base) * steps
        order: np.ndarray | None = None  # for rows that are not contiguous in memory
        if self.meta.layout == SHARES:
            runs = _runs(place, some, which * self.meta.length + begin[which])
        else:
            used, total = int(begin.sum()), int(some.sum())
            self._owner[used : used + total] = np.repeat(which, some)
            runs = [(int(place[0]), total, used)] if total else []
            if len(which) > 1:
                runs = [(0, total, used)]
                order = np.repeat(place, some) + index_ranges(some)
        with translated_errors("appending rows", self.path):
            for column in self.columns.all:
                start, width = self.meta.columns[column.name].data.offset, column.width
                data = rows[column.name]
                block = as_bytes(data if order is None else data.reshape(-1, width)[order])
                for place, some, slot in runs:
                    data = block[place * width : (place + some) * width]
                    self.files.pwrite(self._fd, data, start + slot * width)
                    sums.update(data)
        self.dirty = True
        return begin + number, sums.intdigest()

    def commit(self) -> None:
        """Commit everything written; it then survives the end of this process."""
        if not self.pending:
            return
        records = b"".join(
            pack(
                self._records + i,
                self.meta.number,
                end,
                rows_sum,
                commit=i == len(self.pending) - 1,
                seed=seed_of(self.meta),
            )
            for i, (end, rows_sum) in enumerate(self.pending)
        )
        with translated_errors("committing rows", self.journal_path):
            self.files.pwrite(self._journal, memoryview(records), self._journal_size)
        size, number, end = len(records), len(self.pending), self.pending[-1][0]
        # No call in between, so that no signal handler sees one change without the others.
        self.dirty = True
        self._journal_size += size
        self._records += number
        self.count = end
        self.pending = []
        with translated_errors("committing rows", self.path):
            self._set_mark(self._mark._replace(committed=self._journal_size))

    def _set_mark(self, mark: Mark) -> None:
        write_mark(self.files, self._fd, mark)
        self._mark = mark

    def mark_synced(self) -> None:
        """Record that everything committed is synced, including the folder's entries."""
        with self._closing:
            if self._fd >= 0 and self._mark.synced != self._journal_size:
                with translated_errors("committing rows", self.path):
                    self._set_mark(self._mark._replace(synced=self._journal_size))

    def sync(self) -> None:
        """Make everything committed survive a power loss; once sealed, it already does."""
        with self._closing:
            if self.dirty and self._fd >= 0:
                with translated_errors("syncing a segment", self.path, again=False):
                    self._sync(self._fd)
                    if self._journal >= 0:
                        self.files.sync(self._journal)
                self.dirty = False

    def sync_rows(self, fd: int) -> None:
        """Sync for the sealer. Refused after a failed sync: the kernel then regards pages it never
        wrote as clean, so a success would mean nothing."""
        with self._closing:
            self.check_no_failed_sync()
            self._sync(fd)

    def check_no_failed_sync(self) -> None:
        if self.sync_failed:
            raise LakeFailed(
                f"{self.path}: not sealed, because syncing it failed before; open the writer "
                "again, which writes its rows again"
            )

    def _sync(self, fd: int) -> None:
        try:
            self.files.sync(fd)
        except BaseException:
            self.sync_failed = True
            raise

    def close(self) -> None:
        with (
            self._closing,
            translated_errors("closing a segment", self.path),
            ExitStack() as both,
        ):
            for fd in (self._fd, self._journal):
                if fd >= 0:
                    both.callback(self.files.close, fd)
            self._fd = self._journal = -1

    def remove(self) -> None:
        """Delete the files, the rows first: a journal without rows is ignored."""
        self.close()
        with translated_errors("removing a segment", self.path):
            for path in (self.path, self.journal_path):
                if path.exists():
                    self.files.unlink(path)


def _runs(place: np.ndarray, some: np.ndarray, slot: np.ndarray) -> list[tuple[int, int, int]]:
    """Merge copies of some[i] rows from place[i] in memory to slot[i] into the fewest stretches.

    Returns (first row in memory, rows, first slot) of each. Streams that fill their share of a
    segment are adjacent in both, so one write replaces hundreds.
    """
    apart = (place[1:] != place[:-1] + some[:-1]) | (slot[1:] != slot[:-1] + some[:-1])
    first = np.append(0, np.flatnonzero(apart) + 1) if len(some) else place
    rows = np.add.reduceat(some, first) if len(some) else some
    return list(zip(place[first].tolist(), rows.tolist(), slot[first].tolist(), strict=True))


def seed_of(meta: Meta) -> int:
    """A checksum seed that ties journal records to their Lake and group."""
    return int(meta.fingerprint, 16) ^ meta.group


def verified(
    journal: bytes,
    meta: Meta,
    columns: Columns,
    data: Mapping[str, np.ndarray],
    sequence: int = 0,
    begin: np.ndarray | None = None,
) -> list[Block]:
    """The committed records of the journal, up to the first whose rows fail their checksum.

    data[column] is uint8[slots, width]. `journal` may be the part from record `sequence` on, after
    the first `begin` rows of every stream.
    """
    blocks = unpack(journal, meta.number, meta.streams, seed_of(meta), sequence=sequence)
    begin = np.zeros(meta.streams, np.int64) if begin is None else begin
    good = 0
    for block in blocks:
        grows = bool((block.end >= begin).all()) and meta.can_have(block.end)
        if not grows or rows_sum(columns, meta, data, begin, block.end) != block.digest:
            break
        good += 1
        begin = block.end
    while good and not blocks[good - 1].commit:
        good -= 1
    return blocks[:good]


def rows_sum(
    columns: Columns, meta: Meta, data: Mapping[str, np.ndarray], begin: np.ndarray, end: np.ndarray
) -> int:
    """The checksum of rows begin ... end - 1 of every stream, column by column."""
    sums = xxhash.xxh3_64()
    for column in columns.all:
        if meta.layout == LOG:
            rows = data[column.name][int(begin.sum()) : int(end.sum())]
            sums.update(as_bytes(rows))
            continue
        for stream in range(meta.streams):
            if end[stream] > begin[stream]:
                slot = stream * meta.length
                rows = data[column.name][slot + int(begin[stream]) : slot + int(end[stream])]
                sums.update(as_bytes(rows))
    return sums.intdigest()
