"""Observations of a batch, gathered from raw columns or decoded from compressed ones.

Nearly every window is *quiet*: all its rows are there, none is padding, and its sum has all its
steps. Quiet windows are moved as whole stretches; the few others row by row.
"""

from __future__ import annotations

import numpy as np

from ..rows import Batch, leaf
from ..window import Verdict, Window
from .reader import Reader


class Observations:
    """Fills batch.obs and batch.next_obs for one window."""

    def __init__(self, reader: Reader, window: Window, threads: int) -> None:
        self.reader, self.window, self.threads = reader, window, threads
        self.widths = {column.name: column.width for column in reader.columns.all}
        stack, ahead = window.stack, window.n_step
        # Rows of a quiet window, and where obs and next_obs begin among them.
        if ahead < stack:
            self.rows, self.next_at = np.arange(stack + ahead), ahead
        else:
            self.rows = np.append(np.arange(stack), np.arange(ahead, ahead + stack))
            self.next_at = stack

    def fill(self, slots: np.ndarray, verdict: Verdict, path: str, batch: Batch) -> None:
        """From slots[reach, n] of every window's rows; masked starts get zeros."""
        outs = leaf(batch.obs, path), leaf(batch.next_obs, path)
        window = self.window
        quiet = verdict.valid & (verdict.depth == window.before) & (verdict.steps == window.n_step)
        codecs, codec = self.reader.codec_of.get(path), None
        if codecs is not None:
            codec = codecs[slots >> self.reader.shift]
            quiet &= (codec == codec[window.before]).all(axis=0)
            codec = codec[window.before]
        loud = np.flatnonzero(~quiet)
        if len(loud):
            self._fill_loud(path, slots[:, loud], verdict, loud, outs)
        if len(loud) == slots.shape[1]:
            return
        which = np.flatnonzero(quiet) if len(loud) else None
        if codec is None:
            self._fill_raw(path, slots, which, outs)
            return
        for number in np.unique(codec[quiet]):
            mine = quiet & (codec == number)
            some = None if mine.all() else np.flatnonzero(mine)
            if number < 0:
                self._fill_raw(path, slots, some, outs)
            else:
                self._fill_decoded(path, slots, some, int(number), outs)

    def _fill_raw(
        self,
        path: str,
        slots: np.ndarray,
        which: np.ndarray | None,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        stack, ahead = self.window.stack, self.window.n_step
        some = slots if which is None else slots[:, which]
        self._ready_rows(path, some[self.rows].ravel())
        for out, begin in zip(outs, (0, ahead), strict=True):
            rows = some[begin : begin + stack].T
            if which is None:
                self._take_raw(path, rows.ravel(), out)
            else:
                buffer = np.empty((len(which), *out.shape[1:]), out.dtype)
                self._take_raw(path, rows.ravel(), buffer)
                out[which] = buffer

    def _fill_decoded(
        self,
        path: str,
        slots: np.ndarray,
        which: np.ndarray | None,
        number: int,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        stack, every = self.window.stack, len(self.rows)
        some = slots if which is None else slots[:, which]
        frames = self.reader.frames(path, some[self.rows].T.reshape(-1))
        self.reader.ready(path, *frames)
        blob = self.reader.pages[path].sheet.flat
        codec = self.reader.codecs[path][number]
        field = self.reader.columns.obs[path]
        for at, found in codec.decode(blob, *frames, every, self.threads):
            begin, end = at // every, (at + len(found)) // every
            to = slice(begin, end) if which is None else which[begin:end]
            if field.binary:
                for out, first in zip(outs, (0, self.next_at), strict=True):
                    rows = found.reshape(end - begin, every, -1)[:, first : first + stack]
                    buffer = np.empty((end - begin, *out.shape[1:]), out.dtype)
                    self.reader.columns.put_obs(path, np.ascontiguousarray(rows), buffer)
                    out[to] = buffer
                continue
            windows = found.view(field.dtype.newbyteorder("<"))
            windows = windows.reshape(end - begin, every, *field.shape)
            for out, first in zip(outs, (0, self.next_at), strict=True):
                out[to] = windows[:, first : first + stack]

    def _fill_loud(
        self,
        path: str,
        slots: np.ndarray,
        verdict: Verdict,
        loud: np.ndarray,
        outs: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Windows with padding, a shorter sum, or rows in differently stored segments."""
        window, here = self.window, self.window.before
        depth, steps = verdict.depth[loud], verdict.steps[loud]
        valid = verdict.valid[loud]
        for out, ahead in zip(outs, (0, steps), strict=True):
            back, padded = window.lookback(depth + ahead, np)
            place = here + np.asarray(ahead).reshape(-1, 1) - back
            rows = np.take_along_axis(slots.T, place, axis=1)
            padded = padded | ~valid[:, None] | (rows < 0)
            buffer = np.zeros((len(loud), *out.shape[1:]), out.dtype)
            needed, inverse = np.unique(rows[~padded], return_inverse=True)
            if len(needed):
                found = np.empty((len(needed), *out.shape[2:]), out.dtype)
                self.reader.columns.put_obs(path, self.fetch(path, needed), found)
                buffer[~padded] = found[inverse]
            out[loud] = buffer

    def fetch(self, path: str, slots: np.ndarray) -> np.ndarray:
        """Stored bytes uint8[n, width] of rows at any slots."""
        out = np.empty((len(slots), self.widths[path]), np.uint8)
        codecs = self.reader.codec_of.get(path)
        numbers = codecs[slots >> self.reader.shift] if codecs is not None else None
        raw = np.arange(len(slots)) if numbers is None else np.flatnonzero(numbers < 0)
        if len(raw):
            self._ready_rows(path, slots[raw])
            out[raw] = self._rows_of(path).take(slots[raw], axis=0, mode="clip")
        for number in [] if numbers is None else np.unique(numbers[numbers >= 0]):
            which = np.flatnonzero(numbers == number)
            frames = self.reader.frames(path, slots[which])
            self.reader.ready(path, *frames)
            blob = self.reader.pages[path].sheet.flat
            codec = self.reader.codecs[path][int(number)]
            for at, found in codec.decode(blob, *frames, 1, self.threads):
                out[which[at : at + len(found)]] = found
        return out

    def _rows_of(self, path: str) -> np.ndarray:
        return self.reader.pages[path].sheet.flat.reshape(-1, self.widths[path])

    def _ready_rows(self, path: str, slots: np.ndarray) -> None:
        width = self.widths[path]
        self.reader.ready(path, slots * width, (slots + 1) * width)

    def _take_raw(self, path: str, slots: np.ndarray, out: np.ndarray) -> None:
        """Rows at slots into out[..., *shape]."""
        field, rows = self.reader.columns.obs[path], self._rows_of(path)
        if field.binary:
            self.reader.columns.put_obs(path, rows.take(slots, axis=0, mode="clip"), out)
            return
        flat = out.reshape(len(slots), -1).view(np.uint8)
        rows.take(slots, axis=0, out=flat, mode="clip")
