"""`Gather`: long stretches of many streams at once, for filling Ponds, on any number of threads.

Rows of one stream lie side by side in a segment, so a run is a few stretches: moved or decoded
each at once. Nothing here is done row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ..rows import CONTEXT, CUT, LIFE_LOST, TERMINATED, TRUNCATED, Rows
from .columns import LOST, RECORD
from .reader import Reader

_FLAGS = 15  # the bits of a stored byte that Rows.flags holds
_DECODED = 512  # frames decoded by one call


class Stretch(NamedTuple):
    """Rows `begin ... begin + rows - 1` of a run, at neighbouring slots."""

    run: int
    begin: int
    slot: int
    rows: int


class Gather:
    """Rows [n, length] of `n` runs; what is not stored is zeros with CONTEXT and CUT."""

    def __init__(self, reader: Reader, threads: int) -> None:
        self.reader, self.threads = reader, threads
        self._pool = ThreadPoolExecutor(threads, "lake-gather") if threads > 1 else None
        self._widths = {column.name: column.width for column in reader.columns.all}

    def __call__(
        self,
        stream: np.ndarray,
        start: np.ndarray,
        length: int,
        anchor: np.ndarray,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> Rows:
        """Rows start[i] ... start[i] + length - 1 of stream[i]; row anchor[i] of it is stored.

        `out` may hold uint8[n, length, width] per observation path, to be filled in place.
        """
        reader, columns, lead = self.reader, self.reader.columns, (len(stream), length)
        piece, at = reader.index.find(stream, anchor)
        found = reader.index.stretches(piece, at + (start - anchor), length)
        stretches = [Stretch(*part) for part in zip(*(c.tolist() for c in found), strict=True)]
        reader.check_records(found[2])
        raw = {
            path: out[path] if out else np.empty((*lead, self._widths[path]), np.uint8)
            for path in columns.obs
        }
        for path in columns.obs:
            self._check(path, found[2], found[3])
        records = np.zeros(lead, columns.record)
        stored = np.zeros(lead, bool)
        self._move(stretches, records, stored, raw)
        if not stored.all():
            for block in raw.values():
                block[~stored] = 0
        return self._rows(records, stored, raw)

    def _check(self, path: str, slots: np.ndarray, rows: np.ndarray) -> None:
        """See that every stretch's bytes are what was written, those read before excepted."""
        reader, width = self.reader, self._widths[path]
        seats = slots >> reader.shift
        if not reader.must_look(path, slots):
            return
        fresh = np.flatnonzero(~reader.pages[path].whole[seats])
        codecs = reader.codec_of.get(path)
        packed = np.zeros(len(fresh), bool) if codecs is None else codecs[seats[fresh]] >= 0
        plain = fresh[~packed]
        reader.ready(path, slots[plain] * width, (slots[plain] + rows[plain]) * width)
        for one in fresh[packed]:
            first, last = reader.frames(path, slots[one] + np.array([0, rows[one] - 1]))
            reader.ready(path, first[:1], last[1:])

    def _move(
        self,
        stretches: list[Stretch],
        records: np.ndarray,
        stored: np.ndarray,
        raw: Mapping[str, np.ndarray],
    ) -> None:
        """All stretches, shared among the threads."""
        if self._pool is None or len(stretches) < 2:
            self._move_some(stretches, records, stored, raw)
            return
        number = min(len(stretches), 4 * self.threads)
        done = [
            self._pool.submit(self._move_some, stretches[i::number], records, stored, raw)
            for i in range(number)
        ]
        for one in done:
            one.result()

    def _move_some(
        self,
        stretches: list[Stretch],
        records: np.ndarray,
        stored: np.ndarray,
        raw: Mapping[str, np.ndarray],
    ) -> None:
        reader = self.reader
        small = reader.pages[RECORD].sheet.flat.view(reader.columns.record)
        for run, begin, slot, rows in stretches:
            records[run, begin : begin + rows] = small[slot : slot + rows]
            stored[run, begin : begin + rows] = True
        for path, block in raw.items():
            self._observations(path, stretches, block)

    def _observations(self, path: str, stretches: list[Stretch], block: np.ndarray) -> None:
        """Stored bytes of one field into block[run, time, width]."""
        reader, codecs = self.reader, self.reader.codec_of.get(path)
        plain = reader.pages[path].sheet.flat.reshape(-1, self._widths[path])
        packed: dict[int, list[Stretch]] = {}
        for one in stretches:
            number = -1 if codecs is None else int(codecs[one.slot >> reader.shift])
            if number < 0:
                np.copyto(
                    block[one.run, one.begin : one.begin + one.rows],
                    plain[one.slot : one.slot + one.rows],
                )
                continue
            waiting = packed.setdefault(number, [])
            waiting.append(one)
            if sum(part.rows for part in waiting) >= _DECODED:
                self._decode(path, number, packed.pop(number), block)
        for number, waiting in packed.items():
            self._decode(path, number, waiting, block)

    def _decode(self, path: str, number: int, some: list[Stretch], block: np.ndarray) -> None:
        slots = np.concatenate([np.arange(one.slot, one.slot + one.rows) for one in some])
        outs = [block[one.run, one.begin : one.begin + one.rows] for one in some]
        self.reader.decode(path, slots, number, 1, *outs)

    def _rows(self, records: np.ndarray, stored: np.ndarray, raw: Mapping[str, np.ndarray]) -> Rows:
        columns = self.reader.columns
        byte = records["flags"].copy()
        lost = (byte & LOST) != 0
        byte &= np.uint8(LOST - 1)
        action = columns.small(records, "action")
        if not stored.all():
            byte[~stored] = CONTEXT | CUT
            lost |= ~stored
            action[~stored] = columns.spec.action.lowest()  # zeros may lie outside its bounds
        byte[:, :-1] |= lost[:, 1:] * np.uint8(CUT)
        obs: dict[str, np.ndarray] = {}
        for path, field in columns.obs.items():
            if field.binary:
                obs[path] = np.empty((*byte.shape, *field.shape), field.dtype)
                columns.put_obs(path, raw[path], obs[path])
            else:
                dtype = field.dtype.newbyteorder("<")
                obs[path] = raw[path].view(dtype).reshape(*byte.shape, *field.shape)
        extras = {
            name: (byte & LIFE_LOST) != 0
            if name == "life_lost"
            else columns.small(records, f"extras/{name}")
            for name in columns.spec.extras
        }
        return Rows(
            obs=columns.spec.obs_tree(obs),
            action=action,
            reward=columns.small(records, "reward"),
            terminated=(byte & TERMINATED) != 0,
            truncated=(byte & TRUNCATED) != 0,
            flags=byte & np.uint8(_FLAGS),
            extras=extras,
        )
