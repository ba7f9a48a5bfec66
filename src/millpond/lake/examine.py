"""Examines one segment: compares everything its committed rows depend on with its checksums.

A row is damaged if a page with bytes of it, of its index entry or of its compressed frame is; if
its frame does not decode; or if its flags contradict the row before it. Nothing is changed, and
all damage is reported, not only the first.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import LakeDamaged, LakeRefused
from ..rows import CUT
from .codec import Codec
from .columns import RECORD, Columns, LakeColumn
from .damage import Continuity, Damage, Examined, intact_rows, report_broken
from .dictionaries import Dictionaries
from .examine_open import examine_open
from .files import PAGE, opened
from .manifest import GroupInfo, LakeInfo
from .mark import mark_of
from .recovery import read_journal
from .sealed_file import SealedFile, runs, undecodable
from .segment import OPEN, SEALED, Meta, path_of, read_meta


def examine(
    folder: Path,
    group: GroupInfo,
    number: int,
    kind: str,
    info: LakeInfo,
    continuity: Continuity,
    dictionaries: Dictionaries,
    threads: int = 1,
) -> Examined:
    """Examine one segment. FileNotFoundError if it was sealed or dropped meanwhile."""
    columns = Columns(info.spec)
    path = path_of(folder, number, ".seg" if kind == SEALED else ".open")
    with opened(path) as fd:
        size = os.fstat(fd).st_blocks * 512
        none = np.zeros(group.streams, np.int64)
        found = Examined(path, group, number, kind, size, None, none, none.copy())
        mark = mark_of(fd) if kind == OPEN else None  # first: the journal may still grow
        found.promised = kind == SEALED or (mark is not None and mark.promised > 0)
        journal = b"" if kind == SEALED else _journal(path_of(folder, number, ".journal"))
        if kind == OPEN and not journal and (mark is None or not mark.promised):
            return found  # nothing in it was ever committed
        try:
            meta = read_meta(fd, path, columns, info, group)
            _check_ids(meta, continuity)
        except LakeDamaged as error:
            found.damages.append(Damage(path, error.start, error.stop, error.why, None))
        except (LakeRefused, ValueError) as error:
            why = str(error).removeprefix(f"{path}: ")
            found.damages.append(Damage(path, 0, PAGE, why, None))
        else:
            found.meta = meta
            if kind == SEALED:
                file = SealedFile(fd, path, meta, columns)
                _SealedExamination(found, file, columns, dictionaries, threads).run(continuity)
            else:
                examine_open(found, mark, journal, meta, columns, continuity)
        return found


def _journal(path: Path) -> bytes:
    """A journal's bytes; empty if there is no such file."""
    try:
        return read_journal(path)
    except FileNotFoundError:
        if path.with_suffix(".open").exists():
            return b""
        raise  # just sealed or dropped


def _check_ids(meta: Meta, continuity: Continuity) -> None:
    """Raise ValueError if the segment's row ids overlap those of an older one."""
    if ((meta.first < continuity.end) & (meta.count > 0)).any():
        raise ValueError("it holds row ids that an older segment holds too")


class _SealedExamination:
    """Examines a sealed segment, column by column."""

    def __init__(
        self,
        found: Examined,
        file: SealedFile,
        columns: Columns,
        dictionaries: Dictionaries,
        threads: int,
    ) -> None:
        self.found, self.file, self.columns = found, file, columns
        self.dictionaries, self.threads = dictionaries, threads
        meta = file.meta
        self.slots = meta.columns[RECORD].data.size // columns.all[0].width
        self.bad = np.zeros(self.slots, bool)
        self.rows = meta.slots()  # slots that hold rows, ascending
        self.flags = np.zeros(self.slots, np.uint8)

    def run(self, continuity: Continuity) -> None:
        found, meta = self.found, self.file.meta
        found.count = meta.count
        sums = self.file.sums()
        if sums is None:
            self._report(
                meta.sums.offset,
                meta.sums.size,
                "the table of checksums: its own checksum differs",
                len(self.rows),
            )
            found.damaged_rows = len(self.rows)
            continuity.end = np.where(meta.count > 0, meta.first + meta.count, continuity.end)
            continuity.flags[meta.count > 0] = CUT
            return
        for column in self.columns.all:
            if meta.columns[column.name].codec == "raw":
                self._raw(column, sums)
            else:
                self._compressed(column, sums)
        bad = self.bad[self.rows]
        broken = continuity.broken(meta, meta.count, self.flags[self.rows], bad)
        offset = meta.columns[RECORD].data.offset
        report_broken(found, broken, meta.first, self.rows, offset, self.columns.all[0].width)
        bad |= broken
        found.keep = intact_rows(meta.count, bad)
        found.damaged_rows = int(bad.sum())

    def _raw(self, column: LakeColumn, sums: np.ndarray) -> None:
        region, width = self.file.meta.columns[column.name].data, column.width
        start = self.rows * width
        wanted = sums[region.sums // 8 : region.sums // 8 + region.pages] != 0
        wanted |= pages_of(start, start + width, region.pages)
        take = self._take_flags if column.name == RECORD else None
        bad = self.file.bad_pages(region, sums, wanted, take)
        self._in_bad_pages(
            self.rows, start, start + width, bad, region.offset, region.size, column.name
        )

    def _take_flags(self, offset: int, data: np.ndarray) -> None:
        width = self.columns.all[0].width
        first = -(-offset // width)
        flags = data[first * width - offset :: width]
        self.flags[first : first + len(flags)] = flags

    def _compressed(self, column: LakeColumn, sums: np.ndarray) -> None:
        name, stored = column.name, self.file.meta.columns[column.name]
        data, index, all_rows = stored.data, stored.offsets, self.rows
        assert index is not None
        bad = self.file.bad_pages(index, sums, np.ones(index.pages, bool))
        place = all_rows * 8
        lost = self._in_bad_pages(
            all_rows, place, place + 16, bad, index.offset, index.size, f"{name}'s index"
        )
        table = self.file.offsets(name)
        rows = all_rows[~lost]
        start, stop = table[rows], table[rows + 1]
        wrong = (start >= stop) | (stop > data.size)
        wrong |= np.concatenate([[False], start[1:] < stop[:-1]])
        if wrong.any():
            at = index.offset + 8 * int(rows[wrong][0])
            self.bad[rows[wrong]] = True
            number = int(wrong.sum())
            self._report(at, 16, f"{name}'s index: offsets decrease or leave the column", number)
            rows, start, stop = rows[~wrong], start[~wrong], stop[~wrong]
        bad = self.file.bad_pages(data, sums, np.ones(data.pages, bool))
        lost = self._in_bad_pages(rows, start, stop, bad, data.offset, data.size, name)
        codec = self._codec(column)
        if codec is not None:
            self._decode(name, codec, rows[~lost])

    def _codec(self, column: LakeColumn) -> Codec | None:
        """The column's codec; None, with all its rows marked as bad, if the dictionary is lost."""
        stored = self.file.meta.columns[column.name]
        dictionary = self.file.dictionary(stored)
        codec = self.dictionaries.codec(column, stored.dictionary_sum, dictionary)
        if dictionary is None:
            region = stored.dictionary
            offset, size = (region.offset, region.size) if region else (0, PAGE)
            rows = len(self.rows) if codec is None else 0
            also = "no other segment has it" if codec is None else "another segment has a copy"
            self._report(
                offset, size, f"{column.name}'s dictionary: checksum differs; {also}", rows
            )
        if codec is None:
            self.bad[self.rows] = True
        else:
            self.found.codecs[column.name] = codec
        return codec

    def _decode(self, name: str, codec: Codec, rows: np.ndarray) -> None:
        offset, table = self.file.meta.columns[name].data.offset, self.file.offsets(name)
        for part, frames in self.file.frames(name, rows):
            bad = undecodable(codec, frames, self.threads)
            for first, last in runs(bad):
                some = rows[part][first:last]
                self.bad[some] = True
                start, stop = int(table[some[0]]), int(table[some[-1] + 1])
                self._report(
                    offset + start,
                    stop - start,
                    f"{name}: frames do not decode to a row",
                    len(some),
                )

    def _in_bad_pages(
        self,
        rows: np.ndarray,
        start: np.ndarray,
        stop: np.ndarray,
        bad: np.ndarray,
        offset: int,
        size: int,
        what: str,
    ) -> np.ndarray:
        """bool[rows]: which rows, at bytes start[i] ... stop[i] - 1, are in bad pages of a region.

        Marks them as bad and reports every run of bad pages.
        """
        before = np.concatenate([[0], np.cumsum(bad)])
        lost = before[(stop - 1) // PAGE + 1] > before[start // PAGE]
        self.bad[rows[lost]] = True
        for first, last in runs(bad):
            low = np.searchsorted(stop, first * PAGE, side="right")
            high = np.searchsorted(start, last * PAGE, side="left")
            end = min(last * PAGE, size)
            number = int(high - low)
            self._report(
                offset + first * PAGE, end - first * PAGE, f"{what}: checksum differs", number
            )
        return lost

    def _report(self, offset: int, size: int, what: str, rows: int) -> None:
        self.found.damages.append(Damage(self.file.path, offset, offset + size, what, rows))


def pages_of(start: np.ndarray, stop: np.ndarray, pages: int) -> np.ndarray:
    """bool[pages]: which pages contain any of the bytes start[i] ... stop[i] - 1."""
    edges = np.bincount(start // PAGE, minlength=pages + 1).astype(np.int64)
    edges -= np.bincount((stop - 1) // PAGE + 1, minlength=pages + 1)
    return np.cumsum(edges)[:pages] > 0
