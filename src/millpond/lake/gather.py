"""`Gather`: long stretches of many streams at once, for filling Ponds. One thread per core."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..rows import CONTEXT, CUT, LIFE_LOST, TERMINATED, TRUNCATED, Rows
from .columns import LOST
from .reader import Reader

_FLAGS = 15  # the bits of a stored byte that Rows.flags holds


class Gather:
    """Rows [n, length] of `n` stretches; what is not stored is zeros with CONTEXT and CUT."""

    def __init__(self, reader: Reader, threads: int) -> None:
        self.reader, self.threads = reader, threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._together = 8  # runs decoded by one call
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
        reader, columns = self.reader, self.reader.columns
        piece, at = reader.index.find(stream, anchor)
        slots = reader.index.around(piece, at + (start - anchor), np.arange(length)).T
        records = reader.records(slots)
        missing = slots < 0
        byte = records["flags"].copy()
        byte[missing] = CONTEXT | CUT
        cut = (byte[:, 1:] & LOST) != 0
        byte[:, :-1] |= (cut | missing[:, 1:]) * np.uint8(CUT)
        obs: dict[str, np.ndarray] = {}
        for path, field in columns.obs.items():
            raw = out[path] if out else np.empty((*slots.shape, self._widths[path]), np.uint8)
            self._fetch(path, slots, missing, raw)
            if field.binary:
                obs[path] = np.empty((*slots.shape, *field.shape), field.dtype)
                columns.put_obs(path, raw, obs[path])
            else:
                dtype = field.dtype.newbyteorder("<")
                obs[path] = raw.view(dtype).reshape(*slots.shape, *field.shape)
        extras = {
            name: (byte & LIFE_LOST) != 0
            if name == "life_lost"
            else columns.small(records, f"extras/{name}")
            for name in columns.spec.extras
        }
        return Rows(
            obs=columns.spec.obs_tree(obs),
            action=self._action(records, missing),
            reward=columns.small(records, "reward"),
            terminated=(byte & TERMINATED) != 0,
            truncated=(byte & TRUNCATED) != 0,
            flags=byte & np.uint8(_FLAGS),
            extras=extras,
        )

    def _action(self, records: np.ndarray, missing: np.ndarray) -> np.ndarray:
        action = self.reader.columns.small(records, "action")
        if missing.any():  # zeros may lie outside the action's bounds
            action[missing] = self.reader.info.spec.action.lowest()
        return action

    def _fetch(self, path: str, slots: np.ndarray, missing: np.ndarray, out: np.ndarray) -> None:
        """Stored bytes of one observation field into out[n, length, width]."""
        reader, (number, length) = self.reader, slots.shape
        codecs = reader.codec_of.get(path)
        codec = np.full(slots.shape, -1) if codecs is None else codecs[slots >> reader.shift]
        codec = np.where(missing, -2, codec)
        whole = (codec == codec[:, :1]).all(axis=1) & ~missing[:, 0]
        straight = whole & (slots[:, -1] - slots[:, 0] == length - 1)
        raw = np.flatnonzero(straight & (codec[:, 0] == -1))
        packed = np.flatnonzero(whole & (codec[:, 0] >= 0))
        other = np.ones(number, bool)
        other[raw] = other[packed] = False
        if len(raw):
            first = slots[raw, 0]
            width = self._widths[path]
            reader.ready(path, first * width, (first + length) * width)
            self._spread(self._copy, raw, path, slots, out)
        for one in np.unique(codec[packed, 0]):
            mine = packed[codec[packed, 0] == one]
            frames = reader.frames(path, slots[mine].reshape(-1))
            reader.ready(path, *frames)
            start, stop = (part.reshape(len(mine), length) for part in frames)
            self._spread(self._decode, np.arange(len(mine)), path, (mine, start, stop, one), out)
        for i in np.flatnonzero(other):
            self._piecemeal(path, slots[i], codec[i], out[i])

    def _spread(self, work: Any, items: np.ndarray, *args: Any) -> None:
        """Run `work(items, *args)` on every thread with a share of the items."""
        if self._pool is None or len(items) < 2:
            work(items, *args)
            return
        shares = np.array_split(items, min(len(items), self.threads * 2))
        for done in [self._pool.submit(work, share, *args) for share in shares]:
            done.result()

    def _copy(self, which: np.ndarray, path: str, slots: np.ndarray, out: np.ndarray) -> None:
        rows = self.reader.pages[path].sheet.flat.reshape(-1, self._widths[path])
        length = slots.shape[1]
        for i in which:
            first = int(slots[i, 0])
            np.copyto(out[i], rows[first : first + length])

    def _decode(self, which: np.ndarray, path: str, plan: Any, out: np.ndarray) -> None:
        mine, start, stop, number = plan
        blob = self.reader.pages[path].sheet.flat
        codec = self.reader.codecs[path][int(number)]
        for begin in range(0, len(which), self._together):
            some = which[begin : begin + self._together]
            runs = [out[i] for i in mine[some]]
            codec.decode(blob, start[some].reshape(-1), stop[some].reshape(-1), 1, *runs)

    def _piecemeal(self, path: str, slots: np.ndarray, codec: np.ndarray, out: np.ndarray) -> None:
        """A stretch that crosses from one kind of segment to another, or has gaps."""
        reader, width = self.reader, self._widths[path]
        out[codec == -2] = 0
        raw = np.flatnonzero(codec == -1)
        if len(raw):
            reader.ready(path, slots[raw] * width, (slots[raw] + 1) * width)
            rows = reader.pages[path].sheet.flat.reshape(-1, width)
            out[raw] = rows.take(slots[raw], axis=0, mode="clip")
        for number in np.unique(codec[codec >= 0]):
            which = np.flatnonzero(codec == number)
            frames = reader.frames(path, slots[which])
            reader.ready(path, *frames)
            found = np.empty((len(which), width), np.uint8)
            blob = reader.pages[path].sheet.flat
            reader.codecs[path][int(number)].decode(blob, *frames, 1, found)
            out[which] = found
