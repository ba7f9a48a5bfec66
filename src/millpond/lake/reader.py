"""`Reader`: a Lake's committed rows mapped into memory, as they were at the last refresh."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LakeDamaged, LakeFailed
from .codec import Codec
from .columns import RECORD, Columns, LakeColumn
from .files import PAGE, PAGE_BITS, opened, translated_read_errors
from .index import Index, SegmentPieces
from .journal import digest
from .manifest import GroupInfo, LakeInfo, check_same, load_groups, load_lake
from .mapped_column import MappedColumn
from .maps import MapBudget
from .mark import check_all_committed, check_no_journal, read_mark
from .open_segment import seed_of, verified
from .pages import Pages
from .recovery import read_dictionary, read_journal, segment_files, with_blocks
from .segment import SEALED, Meta, Region, damaged, path_of, read_meta
from .sigbus import fault_addresses

_ADDRESSES = 1 << 44  # bytes of address space for all columns, unless the Lake needs more
_ALL_ADDRESSES = 3 << 45  # of the 128 TiB that a process has
_MOST_SEATS = 1 << 16  # segments to reserve room for at most, unless the Lake has more
_SEATS = 1 << 14  # and at least
_TRIES = 20  # a file may be sealed or dropped between listing and opening it
_TOGETHER = 64  # segments whose records and indices are prefetched together
_AHEAD = 64  # batches whose pages are prefetched after one that had to wait for the disk


@dataclass
class MappedSegment:
    """A segment that has a seat in the mapped columns."""

    path: Path
    group: GroupInfo
    meta: Meta
    seat: int
    inode: int
    size: int  # bytes on disk
    records: int = 0  # journal records verified so far, of an open segment
    journal: int = 0  # bytes of these records
    promised: bool = False  # of an open segment: its rows cannot have been lost in a power loss
    maps: int = 0  # memory maps it takes; 0: it was read into memory
    held: int = 0  # bytes of that memory


class Reader:
    """Maps every segment of a Lake, and checks each page when it is read for the first time."""

    def __init__(self, folder: Path, info: LakeInfo) -> None:
        self.folder, self.info = folder, info
        self.columns = Columns(info.spec)
        self.groups: list[GroupInfo] = []
        self.shift = info.slots.bit_length() - 1
        # A page more than `slots` offsets, as the end of the last frame needs one more.
        self._entries = info.slots + PAGE // 8
        seats = self._seats()
        self._free = list(range(seats - 1, -1, -1))
        self._tables = MappedColumn(seats, self._most_sums())
        self.pages = {
            column.name: Pages(MappedColumn(seats, info.slots * column.width), self._tables)
            for column in self.columns.all
        }
        wide = [column.name for column in self.columns.all if column.wide]
        self.offsets = {
            name: Pages(MappedColumn(seats, 8 * self._entries), self._tables) for name in wide
        }
        self.codec_of = {name: np.full(seats, -1) for name in wide}  # per seat; -1: raw
        self.codecs: dict[str, list[Codec]] = {name: [] for name in wide}
        self.maps = MapBudget()
        self.seated: dict[tuple[int, int], MappedSegment] = {}
        self._by_seat: dict[int, MappedSegment] = {}
        self._summed = np.zeros(seats, bool)  # seats whose table of checksums has been checked
        self._checked = np.zeros(seats, bool)  # seats whose records and offsets have been checked
        self._ahead = 0
        self._changed = False
        self.index = Index(0, [])
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.folder.absolute()), self.info.fingerprint)

    def _seats(self) -> int:
        """How many segments to reserve addresses for: many, and at least twice as many as exist."""
        wide = sum(column.wide for column in self.columns.all)
        each = self.info.slots * self.columns.row_bytes + 8 * self._entries * wide
        each += self._most_sums()
        groups = load_groups(self.folder, self.info)
        here = sum(len(segment_files(self.folder / "groups" / group.name)) for group in groups)
        generous = min(self._most_seats(), _MOST_SEATS, _ADDRESSES // each)
        return min(max(generous, 2 * here + 64), _ALL_ADDRESSES // each)

    def _most_seats(self) -> int:
        capacity, slots = self.info.capacity, self.info.slots
        rows = capacity.rows or (capacity.size or 0) // self.columns.record.itemsize
        # Segments with idle streams hold fewer rows, so there may be more segments.
        return max(_SEATS, rows // slots + 8 * self.info.groups)

    def _most_sums(self) -> int:
        """The most bytes, in whole pages, that a sealed segment's checksums can take."""
        slots = self.info.slots
        sizes = [slots * column.width for column in self.columns.all]
        sizes += [8 * (slots + 1) for column in self.columns.all if column.wide]
        table = sum(8 * -(-size // PAGE) for size in sizes)
        return -(-table // PAGE) * PAGE

    def refresh(self) -> None:
        """Pick up what was committed, sealed or dropped since the last refresh."""
        try:
            for _ in range(_TRIES):
                try:
                    with translated_read_errors(self.folder):
                        self._look()
                    self.check_maps()
                    return
                except FileNotFoundError:
                    continue  # just sealed or dropped
            raise LakeFailed(f"{self.folder}: files kept vanishing while they were read; try again")
        finally:
            if self._changed:  # after an error too: the index must not refer to empty seats
                self._build()

    def _look(self) -> None:
        groups = load_groups(self.folder, self.info)
        self._changed |= len(groups) != len(self.groups)
        self.groups = groups
        there: dict[tuple[int, int], tuple[GroupInfo, Path, Path]] = {}
        for group in groups:
            folder = self.folder / "groups" / group.name
            for number, kinds in segment_files(folder).items():
                if "seg" in kinds:
                    path = path_of(folder, number, ".seg")
                elif {"open", "journal"} <= kinds:
                    path = path_of(folder, number, ".open")
                elif "open" in kinds:
                    self._without_journal(folder, number)
                    continue
                else:
                    continue
                there[group.index, number] = (group, path, path_of(folder, number, ".journal"))
        broken = self._broken()
        for key, old in list(self.seated.items()):
            if (
                old.seat in broken
                or key not in there
                or there[key][1] != old.path
                or os.stat(there[key][1]).st_ino != old.inode
            ):
                self._unseat(key)
        # The newest first, so that rows committed meanwhile cannot appear to follow a gap.
        for key in sorted(there, reverse=True):
            group, path, journal = there[key]
            if key not in self.seated:
                if path.suffix == ".open" and not os.stat(journal).st_size:
                    self._without_journal(path.parent, key[1])
                    continue  # its writer may still be creating it; nothing is committed
                self._seat(key, group, path)
            if self.seated[key].meta.kind != SEALED:
                self._advance(self.seated[key], journal)

    def _without_journal(self, folder: Path, number: int) -> None:
        """Raise LakeDamaged if a segment has commits but no journal (unless it just got one)."""
        try:
            check_no_journal(folder, number)
        except LakeDamaged:
            journal = path_of(folder, number, ".journal")
            if journal.exists() and journal.stat().st_size:
                raise FileNotFoundError from None  # look again
            raise

    def _seat(self, key: tuple[int, int], group: GroupInfo, path: Path) -> None:
        with opened(path) as fd:
            meta = read_meta(fd, path, self.columns, self.info, group)
            if not self._free:
                raise LakeFailed(
                    f"{self.folder}: more segments than address space was reserved for when it was "
                    "opened; open it again, and raise segment_rows when creating such a Lake"
                )
            seat = self._free.pop()
            status = os.fstat(fd)
            new = MappedSegment(path, group, meta, seat, status.st_ino, status.st_blocks * 512)
            self.seated[key] = self._by_seat[seat] = new
            self._changed = True
            try:
                self._place(new, fd)
            except BaseException:
                self._unseat(key)
                raise

    def _place(self, segment: MappedSegment, fd: int) -> None:
        """Map a segment; or read it into memory if it is sealed and the maps are used up."""
        meta, seat = segment.meta, segment.seat
        number = 1 + sum(1 + (stored.offsets is not None) for stored in meta.columns.values())
        if self.maps.take(number, always=meta.kind != SEALED):
            segment.maps, spans = number, None
        else:
            spans = {column.name: _spans(meta, column) for column in self.columns.all}
            regions = [meta.sums, *(s.offsets for s in meta.columns.values() if s.offsets)]
            size = sum(stop - start for some in spans.values() for start, stop in some)
            size += sum(region.size for region in regions)
            self.maps.hold(self.folder, size)
            segment.held = size
        for column in self.columns.all:
            stored = meta.columns[column.name]
            packed = stored.offsets is not None
            mine = None if spans is None else spans[column.name]
            self.pages[column.name].seat(seat, fd, stored.data, packed, mine)
            if stored.offsets is not None:
                whole = None if spans is None else [(0, stored.offsets.size)]
                self.offsets[column.name].seat(seat, fd, stored.offsets, spans=whole)
                self.codec_of[column.name][seat] = self._codec(segment.path, meta, column.name)
        if spans is not None:
            self._tables.read_in(seat, fd, meta.sums.offset, [(0, meta.sums.size)])
        elif meta.sums.size:
            self._tables.seat(seat, fd, meta.sums.offset, meta.sums.size)

    def _codec(self, path: Path, meta: Meta, name: str) -> int:
        codecs, identity = self.codecs[name], meta.columns[name].dictionary_sum
        for number, codec in enumerate(codecs):
            if codec.identity == identity:
                return number
        dictionary = read_dictionary(path, meta, name)
        if dictionary is None:
            region = meta.columns[name].dictionary or meta.columns[name].data
            end = region.offset + region.size
            raise damaged(path, region.offset, end, "the dictionary's checksum does not match")
        width = next(c.width for c in self.columns.all if c.name == name)
        codecs.append(Codec(dictionary, width))
        return len(codecs) - 1

    def _unseat(self, key: tuple[int, int]) -> None:
        self._changed = True
        old = self.seated.pop(key)
        del self._by_seat[old.seat]
        self.maps.give_back(old.maps)
        self.maps.release(old.held)
        for pages in [*self.pages.values(), *self.offsets.values()]:
            pages.column.clear(old.seat)
        self._tables.clear(old.seat)
        for codecs in self.codec_of.values():
            codecs[old.seat] = -1
        self._checked[old.seat] = self._summed[old.seat] = False
        self._free.append(old.seat)

    def _advance(self, segment: MappedSegment, journal_path: Path) -> None:
        """Verify what an open segment's journal has committed since the last refresh."""
        meta, seat = segment.meta, segment.seat
        data = {
            column.name: self.pages[column.name]
            .column.bytes(seat, 0, self.info.slots * column.width)
            .reshape(-1, column.width)
            for column in self.columns.all
        }
        mark = read_mark(segment.path)  # first: the journal may still grow
        segment.promised = mark is not None and mark.promised > 0
        # Only what is new: a journal may have hundreds of thousands of records.
        start, sequence = segment.journal, segment.records
        journal = read_journal(journal_path, start)
        blocks = verified(journal, meta, self.columns, data, sequence, meta.count)
        check_all_committed(
            segment.path, mark, journal, meta, seed_of(meta), blocks, start, sequence
        )
        if not blocks:
            return
        self._changed = True
        segment.records += len(blocks)
        segment.journal += blocks[-1].bytes_to_here
        segment.meta = with_blocks(meta, blocks)
        for pages in self.pages.values():
            pages.mark_checked(seat)
        self._checked[seat] = True

    def _build(self) -> None:
        self._changed = False
        parts: list[SegmentPieces] = []
        ends: dict[int, np.ndarray] = {}  # ids after each group's rows so far
        for (group, _), segment in sorted(self.seated.items()):
            meta, base = segment.meta, segment.group.base
            loose = meta.kind != SEALED and not segment.promised
            if loose and (meta.first > ends.get(group, meta.first)).any():
                continue  # a power loss took the rows before these; recovery will remove them
            ends[group] = meta.first + meta.count
            found, slot = meta.pieces(), segment.seat << self.shift
            ids = meta.first[found.stream] + found.time
            parts.append(SegmentPieces(base + found.stream, ids, found.rows, slot + found.slot))
        self.index = Index(sum(group.streams for group in self.groups), parts)

    def check_maps(self) -> None:
        """Raise LakeDamaged if mapped bytes could not be read; refresh() maps them again."""
        if fault_addresses:
            for seat, (start, stop) in self._broken().items():
                why = "the file was truncated while it was read, or the disk could not read it"
                raise damaged(self._by_seat[seat].path, start, stop, why)

    def _broken(self) -> dict[int, tuple[int, int]]:
        """Seats with bytes that could not be read, and where these are in their files."""
        every = [*self.pages.values(), *self.offsets.values()]
        found = {seat: pages.region(seat) for pages in every for seat in list(pages.column.broken)}
        for seat in list(self._tables.broken):
            sums = self._by_seat[seat].meta.sums
            found[seat] = (sums.offset, sums.offset + sums.size)
        return found

    def records(self, slots: np.ndarray) -> np.ndarray:
        """The records [*slots.shape] of rows; zeros for slot -1."""
        flat = slots.reshape(-1)
        missing = flat < 0
        gaps = bool(missing.any())
        if gaps:
            flat = np.where(missing, flat.max(), flat)
            if flat[0] < 0:
                return np.zeros(slots.shape, self.columns.record)
        self.check_records(flat)
        records = self.pages[RECORD].column.flat.view(self.columns.record)
        found = records.take(flat, mode="clip")
        if gaps:
            found[missing] = np.zeros((), self.columns.record)
        return found.reshape(slots.shape)

    def check_records(self, slots: np.ndarray) -> None:
        """Check the records and frame offsets of the segments of these slots, or LakeDamaged."""
        seats = slots >> self.shift
        if self._checked[seats].all():
            return
        new = [self._by_seat[int(s)] for s in np.unique(seats[~self._checked[seats]])]
        for at in range(0, len(new), _TOGETHER):
            for segment in new[at : at + _TOGETHER]:
                self._prefetch_small(segment)
            for segment in new[at : at + _TOGETHER]:
                self._check_small(segment)

    def _small(self, segment: MappedSegment) -> list[tuple[Pages, Region]]:
        """The parts of a segment that are read whole: its records and its indices."""
        columns = segment.meta.columns
        parts = [(self.pages[RECORD], columns[RECORD].data)]
        indices = ((pages, columns[name].offsets) for name, pages in self.offsets.items())
        return parts + [(pages, region) for pages, region in indices if region is not None]

    def _prefetch_small(self, segment: MappedSegment) -> None:
        """Start reading what `_check_small` needs, so that it does not wait page by page."""
        self._tables.prefetch_all(segment.seat, segment.meta.sums.size)
        for pages, region in self._small(segment):
            pages.column.prefetch_all(segment.seat, region.size)

    def _check_small(self, segment: MappedSegment) -> None:
        self._check_sums(segment)
        for pages, _ in self._small(segment):
            self._check_pages(pages, pages.unchecked(segment.seat))
        for name in self.offsets:
            region = segment.meta.columns[name].offsets
            if region is not None:
                self._check_offsets(segment, name, region)
        self._checked[segment.seat] = True

    def _check_offsets(self, segment: MappedSegment, name: str, region: Region) -> None:
        """Check that frames are in order and within the data: reads must not leave the file."""
        ends = self.offsets[name].column.bytes(segment.seat, 0, region.size).view("<u8")
        inside = ends[-1] <= segment.meta.columns[name].data.size
        if not (inside and (ends[1:] >= ends[:-1]).all()):
            end = region.offset + region.size
            raise damaged(segment.path, region.offset, end, "frames lie outside their region")

    def _check_sums(self, segment: MappedSegment) -> None:
        """Check a sealed segment's table of checksums, before any of them is used."""
        meta, seat = segment.meta, segment.seat
        if digest(self._tables.bytes(seat, 0, meta.sums.size)) != meta.sums_sum:
            end = meta.sums.offset + meta.sums.size
            raise damaged(segment.path, meta.sums.offset, end, "the sums' checksum differs")
        self._summed[seat] = True

    def _check_pages(self, pages: Pages, new: np.ndarray) -> None:
        """Check pages of a column against their checksums, or raise LakeDamaged."""
        seats = new // pages.per_seat
        for seat in np.unique(seats[~self._summed[seats]]):
            self._check_sums(self._by_seat[int(seat)])
        wrong = pages.check(new)
        if wrong >= 0:
            seat, start, stop = pages.place(wrong)
            raise damaged(self._by_seat[seat].path, start, stop, "checksum differs")

    def needs_check(self, name: str, slots: np.ndarray) -> bool:
        """Whether `ensure_checked` has anything to do for these rows of a column."""
        return self._ahead > 0 or not self.pages[name].whole[slots >> self.shift].all()

    def ensure_checked(self, name: str, start: np.ndarray, stop: np.ndarray) -> None:
        """Check the pages of bytes start[i] ... stop[i] - 1 of a column, or LakeDamaged.

        Each page is checked once. Pages that must come from disk are requested all at once: waiting
        for one after another would be an order of magnitude slower.
        """
        pages = self.pages[name]
        first, last = start >> PAGE_BITS, (stop - 1) >> PAGE_BITS
        span = int((last - first).max(initial=0)) + 1
        touched = [first if k == 0 else np.minimum(first + k, last) for k in range(span)]
        if self._ahead:
            self._ahead -= 1
            pages.prefetch(np.unique(np.concatenate(touched)))
        new = np.concatenate([page[~pages.good[page]] for page in touched])
        if not len(new):
            return
        new = np.unique(new)
        if not self._ahead:
            pages.prefetch(new)
        self._check_pages(pages, new)

    def note_faults(self, faults_before: int) -> None:
        """After a batch: if it waited for pages one by one, prefetch for the next batches."""
        if self._ahead == 0 and major_faults() - faults_before > 4:
            self._ahead = _AHEAD

    def frames(self, name: str, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, stop): the bytes of the compressed frames at these slots in the column."""
        seat = slots >> self.shift
        offsets = self.offsets[name].column.flat.view("<u8")
        entry = slots + seat * (self._entries - self.info.slots)
        base = seat * self.pages[name].column.stride
        start = offsets.take(entry, mode="clip").astype(np.int64)
        stop = offsets.take(entry + 1, mode="clip").astype(np.int64)
        return start + base, stop + base

    def decode(
        self, name: str, slots: np.ndarray, number: int, threads: int, *outs: np.ndarray
    ) -> None:
        """Decode checked frames of one codec into uint8[some, width] arrays."""
        blob = self.pages[name].column.flat
        self.codecs[name][number].decode(blob, *self.frames(name, slots), threads, *outs)


def _spans(meta: Meta, column: LakeColumn) -> list[tuple[int, int]]:
    """The pages of a column's region that hold rows, as spans of bytes."""
    stored = meta.columns[column.name]
    if stored.codec != "raw":
        return [(0, stored.data.size)]
    pieces, size = meta.pieces(), stored.data.size
    start = pieces.slot * column.width // PAGE * PAGE
    stop = np.minimum(-(-(pieces.slot + pieces.rows) * column.width // PAGE) * PAGE, size)
    stop[:-1] = np.minimum(stop[:-1], start[1:])  # a page shared by two pieces is read once
    return [(a, b) for a, b in zip(start.tolist(), stop.tolist(), strict=True) if a < b]


def _reopen(folder: str, fingerprint: str) -> Reader:
    """Unpickle a reader: map the Lake again, and check that it has the same spec."""
    info = load_lake(Path(folder))
    check_same(Path(folder), info, fingerprint)
    return Reader(Path(folder), info)


def major_faults() -> int:
    """How many page reads from disk this thread has waited for so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
