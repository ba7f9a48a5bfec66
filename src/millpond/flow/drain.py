"""`drain`: writes the rows that a Pond receives into a Lake, in the background."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig, RowsGone
from ..lake import Writer
from ..replay import HostPond, Pond, PondState
from ..rows import CUT, Rows
from .worker import Worker

_BLOCK = 64 << 20  # bytes moved at a time


class Drain:
    """Copies the rows of a Pond to a Lake's writer, in order, each once. Call it as the Pond fills.

        with Drain(pond, writer) as drain:
            ...
            drain(state)          # takes new rows and returns; they are written in the background
        # here everything drained is committed

    New rows are copied on the device before the call returns, so `state` may be donated at once.
    An error in the background is raised by the next call. Rows must be drained before the ring
    overwrites them, at least once per `pond.length` steps; otherwise RowsGone is raised.
    """

    def __init__(self, pond: Pond | HostPond, writer: Writer, sync: bool = False) -> None:
        if pond.layout.whole:
            raise BadConfig(
                "drain: layout 'shared' holds transitions in no order, and a Lake holds streams of "
                "rows; use layout 'stream' or 'per_env'"
            )
        if writer.streams != pond.streams:
            raise BadConfig(
                f"drain: the pond has {pond.streams} envs, the writer {writer.streams} streams; "
                f"open a group with {pond.streams} streams"
            )
        self.pond, self.writer, self.sync = pond, writer, sync
        self._done = np.zeros(pond.streams, np.int64)  # rows of each stream drained so far
        self._worker = Worker("drain", depth=2)
        row = sum(field.nbytes for field in pond.spec.columns.values()) + 1
        self._steps = max(1, min(pond.length, _BLOCK // (row * pond.streams)))
        if isinstance(pond, Pond):
            self._copy = jax.jit(self._copy_out)

    def __call__(self, state: PondState | None = None) -> None:
        """Drain every row added since the last call."""
        pond, added = self.pond, self._added(state)
        self._worker.check()
        lost = added - pond.length - self._done
        if (lost > 0).any():
            worst = int(np.argmax(lost))
            begin, self._done = self._done, np.maximum(self._done, added - pond.length)
            self._worker.put(lambda: [self.writer.cut(int(e)) for e in np.flatnonzero(lost > 0)])
            raise RowsGone(
                f"drain: rows {begin[worst]} to {self._done[worst] - 1} of stream {worst} were "
                f"overwritten before they were drained; drain at least every {pond.length} steps. "
                "The next call continues after the gap, with a cut"
            )
        while (self._done < added).any():
            number = np.minimum(added - self._done, self._steps)
            rows = self._take(state, self._done.copy(), number)
            self._worker.put(lambda rows=rows, number=number: self._write(rows, number))
            self._done = self._done + number
        self._worker.put(lambda: self.writer.commit(sync=self.sync))

    def _added(self, state: PondState | None) -> np.ndarray:
        """int64[streams]: rows ever added to the Pond."""
        if isinstance(self.pond, HostPond):
            return self.pond.added
        if state is None:
            raise BadConfig("drain: pass the Pond's state")
        return self.pond.added(state)

    def skip_old(self, state: PondState | None = None) -> None:
        """Start with the oldest row the Pond holds; rows already overwritten are no error."""
        self._done = np.maximum(0, self._added(state) - self.pond.length)

    def finish(self) -> None:
        """Return once everything drained so far is committed."""
        self._worker.finish()

    def close(self) -> None:
        """Finish the work in the background and end its thread."""
        self._worker.close()
        self._worker.check()

    def __enter__(self) -> Drain:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self._worker.close()

    def _take(self, state: Any, begin: np.ndarray, number: np.ndarray) -> Rows:
        """Rows begin - 1 ... begin + number - 1 of every stream: [time, env].

        Including the row before `begin`, as that may have been cut since it was drained.
        """
        pond = self.pond
        if isinstance(pond, Pond):
            rows = self._copy(state, jnp.asarray(begin % pond.length, np.int32))
            for leaf in jax.tree.leaves(rows):
                leaf.copy_to_host_async()
            return rows
        row = begin - 1 + np.arange(int(number.max()) + 1)[:, None]
        oldest = np.maximum(0, pond.added - pond.length)
        return pond.read(np.arange(pond.streams), np.clip(row, oldest, pond.added - 1))

    def _copy_out(self, state: PondState, position: Any) -> Rows:
        assert isinstance(self.pond, Pond)
        reach = np.arange(-1, self._steps, dtype=np.int32)[:, None]
        streams = np.arange(self.pond.streams)
        return self.pond.packed.read(state, streams, (position + reach) % self.pond.length)

    def _write(self, rows: Rows, number: np.ndarray) -> None:
        rows = jax.tree.map(np.asarray, rows)
        packed = isinstance(self.pond, Pond)
        before = self.writer.next_row > 0
        for env in np.flatnonzero(before & (number > 0) & ((rows.flags[0] & CUT) != 0)):
            self.writer.cut(int(env))
        if (number == number[0]).all():
            some = slice(1, 1 + int(number[0]))
            self.writer.append(jax.tree.map(lambda leaf: leaf[some], rows), packed=packed)
            return
        for env in np.flatnonzero(number):
            some = slice(1, 1 + int(number[env]))
            mine = jax.tree.map(lambda leaf, e=env, s=some: leaf[s, e], rows)
            self.writer.append(mine, env=int(env), packed=packed)


def drain(pond: Pond | HostPond, writer: Writer, state: PondState | None = None) -> None:
    """Write everything a Pond holds and commit it: `drain(pond, writer, state)`."""
    with Drain(pond, writer) as one:
        one.skip_old(state)
        one(state)
