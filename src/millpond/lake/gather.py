"""`Gather`: long stretches of many streams at once, for filling Ponds, on any number of threads.

Rows of one stream lie side by side in a segment, so a run is a few stretches of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from ..rows import CONTEXT, CUT, Rows
from .columns import LOST, Columns
from .reader import Reader

# Frames decoded by one call, for every thread there is. Few stay in a core's cache, but the more
# threads there are that wait for the interpreter between two calls, the longer they wait.
_DECODED = 144
_LEAST = 1024  # and at least so many: each call has a price
_JOB = 1 << 20  # bytes of raw rows that are worth a thread's attention


class Found(NamedTuple):
    """Runs of which all is known but their observations."""

    slots: np.ndarray  # int64[n * length]; -1: not stored
    records: np.ndarray  # [n, length]
    raw: Mapping[str, np.ndarray]  # uint8[n, length, width] per observation path, to be filled


class Gather:
    """Rows [n, length] of `n` runs; what is not stored is zeros with CONTEXT and CUT.

    In two steps: `find` looks up and checks, one caller at a time; `move` copies and decodes, and
    several callers may do so at once.
    """

    def __init__(self, reader: Reader, threads: int, packed: bool = False) -> None:
        self.reader, self.threads = reader, threads
        spec = reader.columns.spec
        self._given = Columns(spec.packed) if packed else reader.columns
        self._pool = ThreadPoolExecutor(threads, "lake-gather") if threads > 1 else None
        self._widths = {column.name: column.width for column in reader.columns.all}

    def find(
        self,
        stream: np.ndarray,
        start: np.ndarray,
        length: int,
        anchor: np.ndarray,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> Found:
        """Rows start[i] ... start[i] + length - 1 of stream[i]; row anchor[i] of it is stored.

        `out` may hold uint8[n, length, width] per observation path, to be filled in place.
        """
        reader, columns, lead = self.reader, self.reader.columns, (len(stream), length)
        piece, at = reader.index.find(stream, anchor)
        found = reader.index.stretches(piece, at + (start - anchor), length)
        for path in columns.obs:
            self._check(path, found[2], found[3])
        slots = _every_slot(*found, number=len(stream) * length, length=length)
        raw = {
            path: out[path] if out else np.empty((*lead, self._widths[path]), np.uint8)
            for path in columns.obs
        }
        return Found(slots, reader.records(slots).reshape(lead), raw)

    def move(self, found: Found) -> Rows:
        """The rows, whole. Their segments must stay mapped meanwhile."""
        for path, block in found.raw.items():
            self._move(path, found.slots, block.reshape(len(found.slots), -1))
        stored = (found.slots >= 0).reshape(found.records.shape)
        return self._rows(found.records, stored, found.raw)

    def _check(self, path: str, slots: np.ndarray, rows: np.ndarray) -> None:
        """See that every stretch's bytes are what was written, those read before excepted."""
        reader, width = self.reader, self._widths[path]
        reader.check_records(slots)
        if not reader.must_look(path, slots):
            return
        seats = slots >> reader.shift
        fresh = np.flatnonzero(~reader.pages[path].whole[seats])
        codecs = reader.codec_of.get(path)
        packed = np.zeros(len(fresh), bool) if codecs is None else codecs[seats[fresh]] >= 0
        plain, packed = fresh[~packed], fresh[packed]
        reader.ready(path, slots[plain] * width, (slots[plain] + rows[plain]) * width)
        if len(packed):
            start, _ = reader.frames(path, slots[packed])
            _, stop = reader.frames(path, slots[packed] + rows[packed] - 1)
            reader.ready(path, start, stop)

    def _move(self, path: str, slots: np.ndarray, block: np.ndarray) -> None:
        """Stored bytes of one field into block[row, width], shared among the threads.

        In few, large jobs: a thread that waits for the interpreter waits longer than a copy takes.
        """
        codecs = self.reader.codec_of.get(path)
        kind = np.full(len(slots), -1) if codecs is None else codecs[slots >> self.reader.shift]
        missing = slots < 0
        # What is missing is taken from anywhere, then blanked: so ranges stay long.
        some = int(slots.max())
        kind[missing] = kind[np.argmax(slots)]
        places = np.where(missing, some, slots)
        share = -(-len(slots) // self.threads)
        decoded = min(share, max(_LEAST, _DECODED * self.threads))
        most = dict.fromkeys(np.unique(kind).tolist(), decoded)
        most[-1] = max(share, _JOB // self._widths[path])
        jobs = _jobs(kind, most)

        def do(number: int, parts: list[slice]) -> None:
            if number < 0:
                rows = self.reader.pages[path].sheet.flat.reshape(-1, self._widths[path])
                for part in parts:
                    rows.take(places[part], axis=0, out=block[part], mode="clip")
            else:
                where = np.concatenate([places[part] for part in parts])
                self.reader.decode(path, where, number, 1, *(block[part] for part in parts))
            for part in parts:
                if missing[part].any():
                    block[part][missing[part]] = 0

        if self._pool is None or len(jobs) < 2:
            for job in jobs:
                do(*job)
        else:
            calls = [self._pool.submit(do, *job) for job in jobs]
            try:
                for call in calls:
                    call.result()
            finally:
                wait(calls)  # after an error too: what they read may be unmapped next

    def _rows(self, records: np.ndarray, stored: np.ndarray, raw: Mapping[str, np.ndarray]) -> Rows:
        columns, byte = self._given, records["flags"]  # a copy: ours to change
        lost = (byte & LOST) != 0
        byte &= np.uint8(LOST - 1)
        if not stored.all():
            byte[~stored] = CONTEXT | CUT
            lost |= ~stored
            # Zeros may lie outside the action's bounds.
            records["action"][~stored] = columns.spec.action.lowest()
        byte[:, :-1] |= lost[:, 1:] * np.uint8(CUT)
        return columns.rows(records, raw)


def _jobs(kind: np.ndarray, most: Mapping[int, int]) -> list[tuple[int, list[slice]]]:
    """Rows in jobs of one kind[row] each, of at most most[kind] rows: stretches side by side."""
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    jobs: list[tuple[int, list[slice]]] = []
    room: dict[int, int] = {}  # in the newest job of each kind
    newest: dict[int, list[slice]] = {}
    for begin, end in itertools.pairwise(edges):
        number = int(kind[begin])
        while begin < end:
            if not room.get(number):
                room[number], newest[number] = most[number], []
                jobs.append((number, newest[number]))
            stop = min(end, begin + room[number])
            newest[number].append(slice(begin, stop))
            room[number] -= stop - begin
            begin = stop
    return jobs


def _every_slot(
    run: np.ndarray,
    begin: np.ndarray,
    slot: np.ndarray,
    rows: np.ndarray,
    number: int,
    length: int,
) -> np.ndarray:
    """int64[number]: the slot of every row of runs that are given by stretches; -1: not stored."""
    slots = np.full(number, -1, np.int64)
    first = run * length + begin
    inside = np.arange(int(rows.sum())) - np.repeat(np.cumsum(rows) - rows, rows)
    slots[np.repeat(first, rows) + inside] = np.repeat(slot, rows) + inside
    return slots
