"""`HostRing`: the memory of a host ring, how many rows each stream has, and writing to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadState
from ..rows import BORDER, CUT, ENDED, FIRST
from ..sequence import AnyWindow
from ..spec import Spec
from .host_store import HostStore
from .layouts import Layout
from .snapshot import Snapshot, newest_flags

# By flags byte: FIRST and BORDER as the next row must have them; after a CUT 255, as no row has.
FOLLOWS = bytes(
    255 if byte & CUT else BORDER if byte & ENDED else FIRST if byte & BORDER else 0
    for byte in range(256)
)
_DUE = [bytes([flags]) for flags in FOLLOWS]  # `due` of a single stream, by its newest flags byte


class HostRing:
    """Columns, flags and row counts of every stream; the caller checks what is written."""

    def __init__(self, spec: Spec, layout: Layout, stretched: bool = False) -> None:
        """`stretched`: in every column, the rows of each stream are contiguous."""
        self.layout = layout
        self.length, self.streams = layout.length, layout.streams
        columns = layout.columns(spec)
        self.stores = {path: HostStore(field, layout, stretched) for path, field in columns.items()}
        self.flags = np.full(layout.lead, CUT, np.uint8)  # CUT where nothing has been written yet
        self.flat_flags = self.flags.reshape(-1)
        self._last = np.full(self.streams, CUT, np.uint8)
        self._due: bytes | None = None  # a cached `due`; None after a write
        self._noted = True  # whether `_last` includes the newest step
        self.flag_grid = self.flags.T if layout.own_heads else self.flags  # [length, streams]
        beside = self.streams == 1 or not layout.own_heads  # a step of all streams is contiguous
        step = np.dtype((np.void, self.streams))
        self._flag_steps = self.flat_flags.view(step) if beside else None
        self._none = bytes(self.streams)
        self._every = np.arange(self.streams)
        self._begin = self._every * self.length  # where streams would begin, stored one by one
        self._added = np.zeros(self.streams, np.int64)  # int32 would wrap in 36 min at 1M steps/s
        self._each = 0  # rows added to each stream, if in lockstep; else -1
        self._ahead = 0  # rows of every stream that `_added` does not include yet
        self._uneven = False  # whether streams are known not to be in lockstep
        # Where every stream's next row goes, and how many rows each can still take before one wraps
        # around; -1: not known.
        self._slots, self._room = self._begin.copy(), -1
        self._spans: dict[Any, tuple[Any, Any]] = {}  # recent results of old_enough, by rows added

    @property
    def last(self) -> np.ndarray:
        """uint8[streams]: the flags of every stream's newest row; CUT where there is none."""
        if not self._noted:
            self._noted = True
            if self._each >= 0:
                self._last[:] = self.flag_grid[(self._each - 1) % self.length]
            else:
                self._last[:] = self.flat_flags[self.newest()]
        return self._last

    @property
    def due(self) -> bytes:
        """FIRST and BORDER as the next row of each stream must have them; 255 after a CUT."""
        if self._due is None:
            self._due = self.last.tobytes().translate(FOLLOWS)
        return self._due

    @property
    def plain(self) -> int:
        """The common head if every next row is known to be an ordinary step; else -1."""
        return self._each % self.length if self._due == self._none and self._each >= 0 else -1

    @property
    def lockstep(self) -> bool:
        """Whether the same number of rows has been added to every stream."""
        return self.each >= 0

    @property
    def each(self) -> int:
        """Rows ever added to each stream if they are in lockstep, else -1."""
        if self._each < 0 and not self._uneven:
            heads = self.added.tobytes()
            self._uneven = heads != heads[:8] * self.streams
            self._each = -1 if self._uneven else int(self._added[0])
        return self._each

    @property
    def added(self) -> np.ndarray:
        """int64[streams]: rows ever added per stream; callers must not change it."""
        if self._each >= 0:  # in lockstep, only this number is kept up to date
            self._added.fill(self._each)
        elif self._ahead:
            self._added += self._ahead
            self._ahead = 0
        return self._added

    def _advance(self, stream: Any, number: Any) -> None:
        """Count rows that were added to some streams."""
        self.added[stream] += number
        self._each, self._uneven, self._due, self._room = -1, False, None, -1

    def write_block(self, values: Mapping[str, np.ndarray], flags: np.ndarray) -> None:
        """Write rows [time, stream] of all streams in lockstep, in one or two stretches."""
        time = len(flags)
        kept = min(time, self.length)
        skip = time - kept
        start = (self.each + skip) % self.length
        upper = min(kept, self.length - start)
        for path, store in self.stores.items():
            rows = store.encode(values[path][skip:] if skip else values[path])
            store.grid[start : start + upper] = rows[:upper]
            if upper < kept:
                store.grid[: kept - upper] = rows[upper:]
        self.flag_grid[start : start + upper] = flags[skip : skip + upper]
        if upper < kept:
            self.flag_grid[: kept - upper] = flags[skip + upper :]
        self.last[:] = flags[-1]
        self._each, self._due, self._room = self._each + time, None, -1

    def stepped(self, flags: np.ndarray, due: bytes | None) -> None:
        """Record the flags of a row of every stream that was written at the common head.

        `due`: the flags due next, if the caller already knows them.
        """
        self.flag_grid[self._each % self.length] = flags
        self._each, self._due, self._noted, self._room = self._each + 1, due, False, -1

    def stepped_plainly(self, at: int) -> None:
        """Record that an ordinary row of every stream was written at the common head."""
        if self._flag_steps is None:
            self.flag_grid[at] = 0
        else:
            self._flag_steps[at] = self._none
        self._each, self._noted, self._room = self._each + 1, False, -1

    def heads(self, stream: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Where the next rows of these streams (None: all) go: slots, and stream-major slots."""
        if self._room < 0:
            position = self.added % self.length
            self._slots, self._room = self._begin + position, self.length - 1 - int(position.max())
        turned = self._slots if stream is None else self._slots.take(stream)
        if self.layout.own_heads:
            return turned, turned
        every, begin = self._every, self._begin
        if stream is not None:
            every, begin = stream, begin.take(stream)
        return self.layout.slot(every, turned - begin), turned

    def stepped_each(
        self, stream: np.ndarray | None, slots: np.ndarray, flags: Any, due: bytes | None = None
    ) -> None:
        """Record the flags of a row of these streams (None: all) that was written at their heads.

        `due`: as in `stepped`.
        """
        self.flat_flags[slots] = flags
        room = self._room - 1
        if stream is None:
            if self._each >= 0:
                self._each += 1
            else:
                self._ahead += 1  # the differences between streams stay the same
            self._due, self._noted = due, due is None
            if self._noted:
                self._last[:] = flags
            self._slots += 1
        else:
            self.last[stream] = flags
            self._advance(stream, 1)
            self._slots[stream] += 1
        self._room = room

    def stepped_one(self, env: int, slot: int, flags: int) -> None:
        """Record the flags of a row of one stream that was written at its head."""
        self.flat_flags[slot] = flags
        if self.streams == 1:
            self._each, self._due, self._noted = self._each + 1, _DUE[flags], False
            self._room = -1
        else:
            room = self._room - 1
            self.last[env] = flags
            self._advance(env, 1)
            self._slots[env] += 1
            self._room = max(room, -1)

    def write_rows(
        self,
        values: Mapping[str, np.ndarray],
        flags: np.ndarray,
        env: int | None,
        keep: np.ndarray | None,
    ) -> None:
        """Write rows [time, stream] of one stream or, of all, those in `keep`, at their heads."""
        if len(flags) == 1:
            self._write_step(values, flags[0], env, keep)
            return
        stream = np.arange(self.streams) if env is None else np.array([env])
        keep = np.ones(flags.shape, bool) if keep is None else keep
        rank = np.cumsum(keep, axis=0) - 1
        number = rank[-1] + 1
        fits = keep & (rank >= number - self.length)  # if more than fit, only the newest
        position = (self.added[stream] + rank) % self.length
        slots = self.layout.slot(stream, position)[fits]
        which = np.flatnonzero(fits)
        for path, store in self.stores.items():
            rows = store.encode(values[path])
            store.put(slots, rows.reshape(-1, rows.shape[-1]).take(which, axis=0))
        self.flat_flags[slots] = flags[fits]
        newest = keep & (rank == number - 1)
        last = np.where(newest, flags, 0).max(axis=0)
        self.last[stream] = np.where(number > 0, last, self.last[stream])
        self._advance(stream, number)

    def _write_step(
        self,
        values: Mapping[str, np.ndarray],
        flags: np.ndarray,
        env: int | None,
        keep: np.ndarray | None,
    ) -> None:
        """`write_rows` for at most one row per stream."""
        stream = np.arange(self.streams) if env is None else np.array([env])
        kept = None if keep is None else keep[0].nonzero()[0]
        if kept is not None:
            stream, flags = stream[kept], flags[kept]
        slots = self.layout.slot(stream, self.added[stream] % self.length)
        for path, store in self.stores.items():
            rows = store.encode(values[path])[0]
            store.put(slots, rows if kept is None else rows.take(kept, axis=0))
        self.flat_flags[slots] = flags
        self.last[stream] = flags
        self._advance(stream, 1)

    def cut(self, streams: np.ndarray) -> None:
        """Set CUT on the newest row of these streams."""
        self.last[streams] |= CUT
        self._due = None
        self.flat_flags[self.newest()[streams]] |= CUT

    def newest(self) -> np.ndarray:
        """The slot of every stream's newest row."""
        return self.layout.slot(np.arange(self.streams), (self.added - 1) % self.length)

    def old_enough(self, window: AnyWindow, added: Any = None) -> tuple[Any, Any]:
        """(low, high): row ids low ... high - 1 are possible starts by age.

        Per stream; scalars when all streams are in lockstep.
        """
        if added is None:
            added = np.int64(self.each) if self.lockstep else self.added
        if np.ndim(added):
            return self._span(window, added)
        if added not in self._spans:  # called several times between adds: keep the last two results
            newest = list(self._spans.items())[-1:]
            self._spans = {**dict(newest), added: self._span(window, added)}
        return self._spans[added]

    def _span(self, window: AnyWindow, added: Any) -> tuple[Any, Any]:
        size = np.minimum(added, self.length)
        first, count = self.layout.eligible(window, size)
        low = added - size + first
        return low, low + count

    def shift(self, slots: np.ndarray, rows: Any) -> np.ndarray:
        """The slots `rows` rows later in the same streams, to be taken modulo the ring's size."""
        if self.layout.own_heads:
            stream, position = self.layout.place(slots)
            return self.layout.slot(stream, (position + rows) % self.length)
        return slots + rows * self.streams

    def ids(self, stream: np.ndarray, position: np.ndarray) -> np.ndarray:
        """The 64-bit ids of the rows at these positions."""
        added: Any = self.each if self.lockstep else self.added[stream]
        row = added - added % self.length + position
        return row - self.length * (row >= added)

    @property
    def nbytes(self) -> int:
        """Bytes of memory used."""
        heads = self.flags.nbytes + self._last.nbytes + self._added.nbytes
        heads += self._every.nbytes + self._begin.nbytes + self._slots.nbytes
        return heads + sum(store.nbytes for store in self.stores.values())

    def check(self) -> None:
        """Raise BadState if flags and counts contradict each other."""
        written = self.added > 0
        if not np.array_equal(self.flat_flags[self.newest()][written], self.last[written]):
            raise BadState(
                "HostPond: the newest rows' flags do not match; was a private array changed?"
            )

    def restore(self, saved: Snapshot) -> None:
        """Restore an exported ring."""
        for path, store in self.stores.items():
            store.restore(saved.columns[path])
        self.flags[...] = saved.flags
        self._added[:] = saved.added
        self._each, self._uneven, self._room, self._ahead = -1, False, -1, 0
        self._due, self._noted = None, True
        self._last[:] = newest_flags(self.layout, saved)
