"""Observations of a batch, gathered from raw columns or decoded from compressed ones.

Nearly every window is *regular*: all its rows exist, none is padding, and its return sums n_step
rewards. Regular windows are read as whole stretches, the few irregular ones row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rows import Batch, leaf
from ..sequence import AnyWindow
from ..window import Judgement
from .reader import Reader

_TOGETHER = 128  # windows decoded at a time: more overflow the cache, fewer cost more calls
_RAW_TOGETHER = 8  # windows gathered at a time


class Observations:
    """Fills batch.obs and batch.next_obs for one window."""

    def __init__(self, reader: Reader, window: AnyWindow, threads: int) -> None:
        self.reader, self.threads = reader, threads
        self.window: Any = window
        self.widths = {column.name: column.width for column in reader.columns.all}
        stack, ahead = window.stack, window.n_step
        self.rows = np.union1d(np.arange(stack), np.arange(ahead, ahead + stack))
        self._memory: dict[int, np.ndarray] = {}

    def fill(self, slots: np.ndarray, verdict: Judgement, path: str, batch: Batch) -> None:
        """Fill one field from slots[reach, n] of every window's rows; invalid starts get zeros."""
        outs = leaf(batch.obs, path), leaf(batch.next_obs, path)
        window = self.window
        regular = (
            verdict.valid & (verdict.depth == window.before) & (verdict.steps == window.n_step)
        )
        codecs, codec = self.reader.codec_of.get(path), None
        if codecs is not None:
            codec = codecs[slots >> self.reader.shift]
            regular &= (codec == codec[window.before]).all(axis=0)
            codec = codec[window.before]
        irregular = np.flatnonzero(~regular)
        kinds, counts = np.unique(
            np.full(len(regular), -1) if codec is None else codec, return_counts=True
        )
        # The most frequent kind first: if nearly all windows have it, all are read as if they did.
        for number in kinds[np.argsort(-counts)].tolist():
            mine = regular if codec is None else regular & (codec == number)
            some = np.flatnonzero(mine)
            if not len(some):
                continue
            if len(some) * 4 >= slots.shape[1] * 3:
                # The others read some window of this kind, and are overwritten below. So everything
                # is written in place, without an intermediate copy.
                self._fill_regular(
                    path, np.where(mine, slots, slots[:, some[:1]]), None, number, outs
                )
            else:
                self._fill_regular(path, slots[:, some], some, number, outs)
        if len(irregular):
            self._fill_irregular(path, slots[:, irregular], verdict, irregular, outs)

    def _fill_regular(
        self,
        path: str,
        slots: np.ndarray,
        which: np.ndarray | None,
        number: int,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Fill regular windows of one codec (-1: raw) into places `which` (None: all)."""
        field, n = self.reader.columns.obs[path], slots.shape[1]
        frames = shared_frames(*outs) if which is None and not field.binary else None
        if frames is not None:
            self._fill_shared(path, slots, number, frames)
            return
        if which is None and not field.binary:
            parts = outs
        else:
            parts = self._scratch(path, n, 0), self._scratch(path, n, 1)
        obs, following = (part.reshape(n, -1).view(np.uint8) for part in parts)
        # For all windows at once, so that all disk reads start before the first is waited for.
        self._ready(path, slots[self.rows].ravel(), number)
        if number < 0:
            self._take(path, slots, obs, following)
        else:
            together = _TOGETHER * self.threads
            for at in range(0, n, together):
                some = slice(at, at + together)
                self._windows(path, slots[:, some], number, obs[some], following[some])
        if parts is outs:
            return
        for out, part in zip(outs, parts, strict=True):
            shape = (n, *out.shape[1:])
            if field.binary:
                values = np.empty(shape, out.dtype)
                self.reader.columns.put_obs(path, part.reshape(-1, self.widths[path]), values)
            else:
                values = part.view(field.dtype.newbyteorder("<")).reshape(shape)
            out[slice(None) if which is None else which] = values

    def _fill_shared(self, path: str, slots: np.ndarray, number: int, frames: np.ndarray) -> None:
        """Fill windows of one codec into frames[n, stack + 1], of which both stacks are views."""
        n, width = slots.shape[1], self.widths[path]
        self._ready(path, slots[self.rows].ravel(), number)
        into = frames.reshape(n, -1).view(np.uint8)
        together = _RAW_TOGETHER if number < 0 else _TOGETHER * self.threads
        for at in range(0, n, together):
            where = slots[:, at : at + together][self.rows].T.reshape(-1)
            part = into[at : at + together].reshape(len(where), width)
            if number < 0:
                self._rows_of(path).take(where, 0, part, "clip")
            else:
                self.reader.decode(path, where, number, self.threads, part)

    def _take(self, path: str, slots: np.ndarray, obs: np.ndarray, following: np.ndarray) -> None:
        """Fill both stacks of raw windows, uint8[n, stack * width], a few windows at a time.

        Frames in both stacks are taken twice while they are in the cache, which is cheaper than
        copying them from one stack to the other.
        """
        stack, ahead, rows = self.window.stack, self.window.n_step, self._rows_of(path)
        here = slots[:stack].T.reshape(-1)
        after = slots[ahead : ahead + stack].T.reshape(-1)
        obs, following = obs.reshape(len(here), -1), following.reshape(len(here), -1)
        each = _RAW_TOGETHER * stack
        for at in range(0, len(here), each):
            rows.take(here[at : at + each], 0, obs[at : at + each], "clip")
            rows.take(after[at : at + each], 0, following[at : at + each], "clip")

    def _windows(
        self, path: str, slots: np.ndarray, number: int, obs: np.ndarray, following: np.ndarray
    ) -> None:
        """Fill both stacks of compressed windows; frames in both are decoded once and copied."""
        stack, ahead, n = self.window.stack, self.window.n_step, slots.shape[1]
        width = self.widths[path]
        here = slots[:stack].T.reshape(-1)
        shared = max(0, stack - ahead)
        rest = self._scratch(path, n * (stack - shared), 2)
        last = slots[ahead + shared : ahead + stack].T.reshape(-1)
        where = np.concatenate([here, last])
        outs = obs.reshape(n * stack, width), rest
        self.reader.decode(path, where, number, self.threads, *outs)
        following[:, : shared * width] = obs[:, (stack - shared) * width :]
        following[:, shared * width :] = rest.reshape(n, -1)

    def _scratch(self, path: str, rows: int, number: int) -> np.ndarray:
        """A reused buffer uint8[rows, width] (number 2) or uint8[rows, stack * width]."""
        each = self.widths[path] * (1 if number == 2 else self.window.stack)
        size = rows * each
        if len(self._memory.get(number, ())) < size:
            self._memory[number] = np.empty(size, np.uint8)
        return self._memory[number][:size].reshape(rows, each)

    def _fill_irregular(
        self,
        path: str,
        slots: np.ndarray,
        verdict: Judgement,
        irregular: np.ndarray,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Fill windows with padding, a shorter return, or rows in segments of different codecs."""
        window, here = self.window, self.window.before
        depth, steps = verdict.depth[irregular], verdict.steps[irregular]
        valid = verdict.valid[irregular]
        places: list[np.ndarray] = []  # slots [loud, stack] of both stacks, -1 for zeros
        for ahead in (np.zeros_like(steps), steps):
            back, padded = window.lookback(depth + ahead, np)
            rows = np.take_along_axis(slots.T, here + ahead.reshape(-1, 1) - back, axis=1)
            blank = np.asarray(padded) | ~valid[:, None]
            places.append(np.where(blank, -1, rows))
        both = np.stack(places)
        stored = both >= 0
        needed, inverse = np.unique(both[stored], return_inverse=True)
        filled = np.zeros((*both.shape, *outs[0].shape[2:]), outs[0].dtype)
        if len(needed):
            found = np.empty((len(needed), *filled.shape[3:]), filled.dtype)
            self.reader.columns.put_obs(path, self.fetch(path, needed), found)
            filled[stored] = found[inverse]
        for out, values in zip(outs, filled, strict=True):
            out[irregular] = values

    def spread(self, path: str, slots: np.ndarray, out: np.ndarray) -> None:
        """Read rows at slots[...], which may repeat, into out[..., *shape]; zeros for slot -1.

        Every row is read and decoded once, however often it occurs.
        """
        field, flat = self.reader.columns.obs[path], slots.reshape(-1)
        # Ascending slots do not repeat, so the rows can be read straight into `out`.
        plain = bool((np.diff(slots, axis=-1) > 0).all()) and bool((flat >= 0).all())
        if plain and slots.ndim == 2 and not field.binary and out.flags.c_contiguous:
            into = out.reshape(len(flat), -1).view(np.uint8)
            self.fetch(path, flat, into)
            return
        stored = flat >= 0
        needed, inverse = np.unique(flat[stored], return_inverse=True)
        found = np.zeros((len(needed) + 1, *field.shape), field.dtype)  # the last one for -1
        if len(needed):
            self.reader.columns.put_obs(path, self.fetch(path, needed), found[:-1])
        which = np.full(len(flat), len(needed))
        which[stored] = inverse
        out[...] = found.take(which, axis=0).reshape(out.shape)

    def fetch(self, path: str, slots: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The stored bytes uint8[n, width] of the rows at these slots."""
        out = np.empty((len(slots), self.widths[path]), np.uint8) if out is None else out
        codecs = self.reader.codec_of.get(path)
        numbers = codecs[slots >> self.reader.shift] if codecs is not None else None
        raw = np.arange(len(slots)) if numbers is None else np.flatnonzero(numbers < 0)
        if len(raw) == len(slots):
            self._ready(path, slots, -1)
            self._rows_of(path).take(slots, axis=0, out=out, mode="clip")
        elif len(raw):
            self._ready(path, slots[raw], -1)
            out[raw] = self._rows_of(path).take(slots[raw], axis=0, mode="clip")
        for number in [] if numbers is None else np.unique(numbers[numbers >= 0]):
            which = np.flatnonzero(numbers == number)
            if len(which) == len(slots):
                self._ready(path, slots, int(number))
                self.reader.decode(path, slots, int(number), self.threads, out)
                return out
            found = np.empty((len(which), out.shape[1]), np.uint8)
            self._ready(path, slots[which], int(number))
            self.reader.decode(path, slots[which], int(number), self.threads, found)
            out[which] = found
        return out

    def _rows_of(self, path: str) -> np.ndarray:
        return self.reader.pages[path].column.flat.reshape(-1, self.widths[path])

    def _ready(self, path: str, slots: np.ndarray, number: int) -> None:
        """Make sure that rows of one codec (-1: raw) are loaded and pass their checksums."""
        if not self.reader.needs_check(path, slots):
            return
        if number < 0:
            width = self.widths[path]
            self.reader.ensure_checked(path, slots * width, (slots + 1) * width)
        else:
            self.reader.ensure_checked(path, *self.reader.frames(path, slots))


def shared_frames(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray | None:
    """frames[n, stack + 1, ...] if obs is its [:, :-1] and next_obs its [:, 1:], else None."""
    n, stack = obs.shape[:2]
    frame = obs.strides[1]
    if (
        obs.flags.c_contiguous
        or obs.shape != next_obs.shape
        or obs.strides != next_obs.strides
        or obs.strides[0] != (stack + 1) * frame
        or next_obs.ctypes.data - obs.ctypes.data != frame
    ):
        return None
    frames = np.lib.stride_tricks.as_strided(obs, (n, stack + 1, *obs.shape[2:]))
    return frames if frames.flags.c_contiguous else None
