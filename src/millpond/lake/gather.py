"""`Gather`: reads long runs of rows from many streams at once, with threads, to fill Ponds.

The rows of a stream are contiguous within a segment, so a run consists of a few stretches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from ..errors import SpecMismatch
from ..rows import CONTEXT, CUT, Rows
from .codec import check_within
from .columns import LOST, RECORD, Columns
from .layout import index_ranges
from .reader import Reader

_DECODED = 32 << 20  # bytes that one call decodes, at most
_JOB = 1 << 20  # bytes of raw rows that are worth a job of their own

Jobs = list[tuple[int, list[slice]]]  # a codec's number (-1: raw) and slices of the stretches


class LocatedRows(NamedTuple):
    """Runs that are located and checked, with everything but their observations.

    Rows are numbered across all runs. They are stored in stretches of neighbouring slots.
    """

    row: np.ndarray  # int64[stretch]: its first row, ascending
    slot: np.ndarray  # int64[stretch]: its first slot
    rows: np.ndarray  # int64[stretch]: how many rows
    slots: np.ndarray  # int64[n * length]: every row's slot; -1: not stored
    records: np.ndarray  # [n, length]
    raw: Mapping[str, np.ndarray]  # uint8[n, length, width] per observation path, to be filled


class Gather:
    """Reads rows [n, length] of `n` runs; rows that are not stored are blank, with CONTEXT and CUT.

    In two steps: `find` locates and checks rows, one caller at a time; `move` copies and decodes
    observations, for several callers at once.
    """

    def __init__(self, reader: Reader, threads: int, packed: bool = False) -> None:
        self.reader, self.threads = reader, threads
        spec = reader.columns.spec
        self._given = Columns(spec.packed) if packed else reader.columns
        self._pool = ThreadPoolExecutor(threads, "lake-gather") if threads > 1 else None
        self._widths = {column.name: column.width for column in reader.columns.all}
        self._blank = reader.columns.blank(CONTEXT | CUT)

    def find(
        self,
        stream: np.ndarray,
        start: np.ndarray,
        length: int,
        anchor: np.ndarray,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> LocatedRows:
        """Locate rows start[i] ... start[i] + length - 1 of stream[i]; anchor[i] must be stored.

        `out` may hold uint8[n, length, width] per observation path, to be filled in place.
        """
        reader, columns, lead = self.reader, self.reader.columns, (len(stream), length)
        if out is not None:
            self._check_out(out, lead)
        piece, at = reader.index.find(stream, anchor)
        run, begin, slot, rows = reader.index.stretches(piece, at + (start - anchor), length)
        row = run * length + begin
        for path in columns.obs:
            self._check(path, slot, rows)
        slots = _every_slot(row, slot, rows, len(stream) * length)
        raw = {
            path: out[path] if out else np.empty((*lead, self._widths[path]), np.uint8)
            for path in columns.obs
        }
        return LocatedRows(row, slot, rows, slots, reader.records(slots).reshape(lead), raw)

    def _check_out(self, out: Mapping[str, np.ndarray], lead: tuple[int, int]) -> None:
        if not isinstance(out, Mapping):
            got = type(out).__name__
            raise SpecMismatch(f"gather: out must be a dict of arrays by path, got {got}")
        for path in self.reader.columns.obs:
            wanted, given = (*lead, self._widths[path]), out.get(path)
            if not isinstance(given, np.ndarray):
                got = type(given).__name__
            elif (given.shape, given.dtype) != (wanted, np.uint8) or not given.flags.carray:
                got = f"{given.dtype} {given.shape}"
            else:
                continue
            raise SpecMismatch(
                f"gather: out['{path}'] must be a contiguous, writable array uint8 {wanted}, "
                f"got {got}"
            )

    def move(self, found: LocatedRows) -> Rows:
        """The complete rows. Their segments must stay mapped until this returns."""
        for path, block in found.raw.items() if len(found.slots) else ():
            self._move(path, found, block.reshape(len(found.slots), -1))
        stored = (found.slots >= 0).reshape(found.records.shape)
        return self._rows(found.records, stored, found.raw)

    def _check(self, path: str, slots: np.ndarray, rows: np.ndarray) -> None:
        """Check the pages of every stretch that have not been checked before, or LakeDamaged."""
        reader, width = self.reader, self._widths[path]
        reader.check_records(slots)
        if not reader.needs_check(path, slots):
            return
        seats = slots >> reader.shift
        fresh = np.flatnonzero(~reader.pages[path].whole[seats])
        codecs = reader.codec_of.get(path)
        packed = np.zeros(len(fresh), bool) if codecs is None else codecs[seats[fresh]] >= 0
        plain, packed = fresh[~packed], fresh[packed]
        reader.ensure_checked(path, slots[plain] * width, (slots[plain] + rows[plain]) * width)
        if len(packed):
            start, _ = reader.frames(path, slots[packed])
            _, stop = reader.frames(path, slots[packed] + rows[packed] - 1)
            reader.ensure_checked(path, start, stop)

    def _move(self, path: str, found: LocatedRows, block: np.ndarray) -> None:
        """Copy or decode the stored bytes of one field into block[row, width], using all threads.

        In few, large jobs, with all offsets looked up beforehand, so that threads rarely need the
        interpreter lock: while waiting for it, one could have decoded a hundred frames.
        """
        reader, width = self.reader, self._widths[path]
        flat = reader.pages[path].column.flat
        share = -(-len(block) // self.threads)
        raw_share = max(share, _JOB // width)
        share = min(share, max(1, _DECODED // width))
        missing, longest = found.slots < 0, np.argmax(found.rows)
        row, slot, rows = _shorter(*_without_gaps(found, longest), share)
        codecs = reader.codec_of.get(path)
        kind = np.full(len(slot), -1) if codecs is None else codecs[slot >> reader.shift]
        start, stop = np.zeros((2, len(slot)), np.int64)
        packed = np.flatnonzero(kind >= 0)
        if len(packed):
            start[packed], _ = reader.frames(path, slot[packed])
            _, stop[packed] = reader.frames(path, (slot + rows - 1)[packed])
            check_within(flat, start, stop)
        slots = np.where(missing, found.slot[longest], found.slots)
        starts, stops = start.tolist(), stop.tolist()
        begins, ends = row.tolist(), (row + rows).tolist()
        raw = flat.reshape(-1, width)

        def do(number: int, parts: list[slice]) -> None:
            for part in parts:
                here = slice(begins[part.start], ends[part.stop - 1])
                if number < 0:
                    raw.take(slots[here], axis=0, out=block[here], mode="clip")
                else:
                    codec = reader.codecs[path][number]
                    codec.decode_some(flat, (starts[part], stops[part]), block[here])

        jobs = _jobs(kind, row, rows, raw_share, share)
        if self._pool is None or len(jobs) < 2:
            for job in jobs:
                do(*job)
        else:
            calls = [self._pool.submit(do, *job) for job in jobs]
            try:
                for call in calls:
                    call.result()
            finally:
                wait(calls)  # after an error too: the caller may unmap what they read
        if missing.any():
            block[missing] = self._blank[path]

    def _rows(self, records: np.ndarray, stored: np.ndarray, raw: Mapping[str, np.ndarray]) -> Rows:
        byte = records["flags"]  # of a copy, so it may be changed
        lost = (byte & LOST) != 0
        byte &= np.uint8(LOST - 1)
        if not stored.all():
            records[~stored] = self._blank[RECORD].view(records.dtype)
            lost |= ~stored
        byte[:, :-1] |= lost[:, 1:] * np.uint8(CUT)
        return self._given.rows(records, raw)


def _jobs(kind: np.ndarray, row: np.ndarray, rows: np.ndarray, raw: int, packed: int) -> Jobs:
    """Group stretches into jobs of one kind (codec) each, of about `raw` or `packed` rows."""
    new = np.append(True, (np.diff(kind) != 0) | (np.diff(row) != rows[:-1]))
    edges = [*np.flatnonzero(new).tolist(), len(kind)]
    before = np.append(0, np.cumsum(rows))
    jobs: Jobs = []
    room: dict[int, int] = {}  # in the newest job of each kind
    newest: dict[int, list[slice]] = {}
    for begin, end in itertools.pairwise(edges):
        number = int(kind[begin])
        while begin < end:
            if room.get(number, 0) <= 0:
                room[number], newest[number] = raw if number < 0 else packed, []
                jobs.append((number, newest[number]))
            full = int(np.searchsorted(before, before[begin] + room[number]))
            stop = min(end, max(begin + 1, full))
            newest[number].append(slice(begin, stop))
            room[number] -= int(before[stop] - before[begin])
            begin = stop
    return jobs


def _without_gaps(
    found: LocatedRows, longest: np.intp
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First row, first slot and rows of all stretches, with the gaps between them filled.

    Gaps repeat the longest stretch, to be blanked later: so one call decodes long stretches.
    """
    row, slot, rows = found.row, found.slot, found.rows
    ends = np.append(0, row + rows)
    gap = np.append(row, len(found.slots)) - ends
    where = np.flatnonzero(gap > 0)
    if not len(where):
        return row, slot, rows
    number = -(-gap[where] // rows[longest])
    inside = rows[longest] * index_ranges(number)
    where = np.repeat(where, number)
    return (
        np.insert(row, where, ends[where] + inside),
        np.insert(slot, where, slot[longest]),
        np.insert(rows, where, np.minimum(gap[where] - inside, rows[longest])),
    )


def _shorter(
    row: np.ndarray, slot: np.ndarray, rows: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same stretches, split so that none has more than `most` rows."""
    if rows.max() <= most:
        return row, slot, rows
    number = -(-rows // most)
    inside = most * index_ranges(number)
    rows = np.minimum(np.repeat(rows, number) - inside, most)
    return np.repeat(row, number) + inside, np.repeat(slot, number) + inside, rows


def _every_slot(row: np.ndarray, slot: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
    """int64[number]: the slot of every row; -1 for rows in no stretch, which are not stored."""
    slots = np.full(number, -1, np.int64)
    inside = index_ranges(rows)
    slots[np.repeat(row, rows) + inside] = np.repeat(slot, rows) + inside
    return slots
