"""`HostPond`: replay in host memory with NumPy, changed in place; for CPU learners and PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, cast, overload

import numpy as np

from ..arguments import check_batch_size, checked_rows, checked_sampler, checked_window
from ..batch_out import check_out
from ..errors import BadConfig, RowsGone
from ..host_random import HostRandom
from ..rows import Batch, Draw, Rows, Tree, unpack_rows
from ..samplers import Prioritized, Sampler
from ..sequence import AnyBatch, AnyWindow, Sequence, SequenceBatch, blank_batch
from ..spec import Spec
from ..window import Window
from . import snapshot
from .fork_lock import fork_lock
from .host_batches import HostBatches
from .host_gate import HostGate
from .host_ranks import HostRanks
from .host_ring import HostRing
from .host_sequences import HostSequences
from .host_starts import HostStarts
from .layouts import LayoutName, make_layout, which_envs
from .packed_step import PackedStep
from .short_draw import ShortDraw


class HostPond(Generic[AnyBatch]):
    """A ring of exactly `capacity` rows in host memory, with its own random generator.

    Bad input raises and changes nothing. Batches never share memory with the ring; pass the last
    one as `out` to reuse its arrays. Calls are atomic, from any number of threads. A copy is a
    separate pond. Layouts: see docs/replay.md.

        pond = HostPond(spec, capacity=100_000, num_envs=8, window=Window(stack=4), seed=1)
        pond.add(rows)                    # [env] or [time, env]
        pond.add(row, env=3)              # one row of one env, or [time] rows of it
        batch = pond.sample(256)

    With `window=Sequence(...)`, `sample` returns a `SequenceBatch`.
    """

    @overload
    def __init__(
        self: HostPond[Batch],
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: Window | None = None,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
        seed: int = 0,
    ) -> None: ...

    @overload
    def __init__(
        self: HostPond[SequenceBatch],
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        *,
        window: Sequence,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
        seed: int = 0,
    ) -> None: ...

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: AnyWindow | None = None,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
        seed: int = 0,
    ) -> None:
        self.spec, self.num_envs, self.capacity = spec, num_envs, capacity
        self.window = checked_window("HostPond", window)
        self.sampler = checked_sampler("HostPond", sampler)
        self.layout = make_layout(layout, spec, capacity, num_envs, self.window, "HostPond")
        self.capacity, self.num_envs = self.layout.capacity, int(num_envs)
        self.length, self.streams = self.layout.length, self.layout.streams
        self._lock = fork_lock()
        self._random = HostRandom(seed)
        self._accepted: Any = None  # the last `out` that was checked, usually passed again
        self._ring = HostRing(spec, self.layout, stretched=isinstance(self.window, Sequence))
        self._gate = HostGate(spec, self._ring)
        ranked = isinstance(self.sampler, Prioritized)
        judging = self.window.ranked if ranked else self.window
        self._starts = HostStarts(judging, self._ring, self.num_envs)
        if isinstance(judging, Sequence):
            self._batches: Any = HostSequences(spec, judging, self._ring)
        else:
            self._batches = HostBatches(spec, judging, self._starts)
        self._ranks = self._short = None
        if isinstance(self.sampler, Prioritized):
            self._ranks = HostRanks(self.sampler, self._starts)
        elif isinstance(self._batches, HostBatches):
            self._short = ShortDraw.of(self.sampler, self._starts, self._batches)

    def add(
        self,
        rows: Rows,
        next_obs: Tree | None = None,
        env: int | None = None,
        mask: np.ndarray | None = None,
        final_obs: Tree | None = None,
    ) -> None:
        """Append rows [env] or [time, env]; with `env`, one row [] or rows [time] of that env.

        Layout `shared` takes rows [batch] (or one row) with their `next_obs`; layout `per_env`
        accepts a `mask` of the rows to add. `final_obs`, shaped like the observations, is for envs
        that reset in the same step: the true final observations of the rows that ended an episode.
        """
        with self._lock:
            if self._ranks is None:
                self._gate.add(rows, next_obs, env, mask, final_obs)
                return
            before = self._ranks.mark()
            self._gate.add(rows, next_obs, env, mask, final_obs)
            self._ranks.follow(before)

    def add_packed(self, step: PackedStep) -> bool:
        """Append a step of all envs given as bytes; returns False, unchanged, if it is declined.

        A few microseconds faster than `add`, for callers that have the bytes anyway. It declines
        steps that are invalid or cannot be checked quickly: pass these to `add`, which raises or
        takes them.
        """
        with self._lock:
            if self._ranks is None:
                return self._gate.add_packed(step)
            before = self._ranks.mark()
            taken = self._gate.add_packed(step)
            self._ranks.follow(before)
            return taken

    def cut(self, envs: int | np.ndarray | None = None) -> None:
        """Cut the streams of `envs` (an index, bool[env], or all) after their newest rows."""
        which = which_envs(envs, self.num_envs, np)
        with self._lock:
            if not self.layout.whole:
                self._ring.cut(np.flatnonzero(which))

    @property
    def size(self) -> int:
        """Rows stored, over all streams."""
        with self._lock:
            return int(np.minimum(self._ring.added, self.length).sum())

    @property
    def mass(self) -> float:
        """The sum of priorities, or the number of rows; 0 while nothing can be sampled.

        For sampling from several ponds in proportion to their masses.
        """
        with self._lock:
            if not self.can_sample():
                return 0.0
            return self._ranks.tree.total if self._ranks else float(self.size)

    @property
    def nbytes(self) -> int:
        """Bytes used by the ring and, if prioritised, its sum tree."""
        return self._ring.nbytes + (self._ranks.tree.nbytes if self._ranks else 0)

    def can_sample(self) -> bool:
        """Whether the ring holds a valid start, so that `sample` returns a batch."""
        with self._lock:
            if self._ranks:
                return self._ranks.tree.total > 0
            return self._starts.any_valid()

    def check(self) -> None:
        """Raise BadState if the ring's internal records disagree, which bad input cannot cause."""
        with self._lock:
            self._ring.check()

    def sample(self, batch_size: int, out: AnyBatch | None = None) -> AnyBatch:
        """Draw `batch_size` transitions or sequences; NotEnoughData if no start is valid."""
        check_batch_size(batch_size)
        ranked = self._ranks is not None
        batch: Any = self._blank(batch_size, out, ranked)
        if out is not None and out is not self._accepted:
            blank = self._blank(batch_size, ranked=ranked)
            check_out(f"HostPond with {self.window}", blank, out)
            self._accepted = out
        with self._lock:
            if isinstance(self.sampler, Prioritized):
                assert self._ranks
                slots, verdict = self._ranks.draw(self._random, batch)
                self._batches.fill(slots, verdict, batch)
            elif not (self._short and self._short.fill(self._random, batch)):
                slots, verdict = self._starts.draw(self.sampler, self._random, batch.draw)
                self._batches.fill(slots, verdict, batch)
        if not ranked:
            batch.weight.fill(1)
        if isinstance(batch, Batch):
            batch.mask.fill(True)
        return cast(AnyBatch, batch)

    def _blank(self, number: int, out: Any = None, ranked: bool = False) -> Batch | SequenceBatch:
        """An empty batch, or `out`."""
        return blank_batch(self.spec, self.window, number, out, ranked)

    def update_priorities(self, draw: Draw, priorities: np.ndarray) -> None:
        """Set new priorities[batch] for drawn rows; rows overwritten since are ignored."""
        if self._ranks is None:
            raise BadConfig("HostPond: update_priorities needs sampler=prioritized()")
        with self._lock:
            self._ranks.update(draw, priorities)

    def take(self, stream: np.ndarray, row: np.ndarray) -> AnyBatch:
        """What starts at row ids row[batch] of stream[batch]; masked where nothing does."""
        stream, row = checked_rows("HostPond.take", stream, row, self.streams)
        if row.ndim != 1 or stream.shape != row.shape:
            raise BadConfig(
                "HostPond.take: streams and row ids must be two lists of the same length, got "
                f"shapes {stream.shape} and {row.shape}"
            )
        batch: Any = self._blank(len(row))
        if not len(row):
            return batch
        slots = self._starts.slots(stream, row)
        batch.draw.stream[:], batch.draw.row[:] = stream, row
        batch.weight.fill(1)
        with self._lock:
            verdict = self._starts.judge(slots)
            self._batches.fill(slots, verdict, batch)
            valid = verdict.valid & self._starts.here(stream, row)
        if isinstance(batch, Batch):
            batch.mask[:] = valid
        else:
            batch.mask[~valid] = False
        return cast(AnyBatch, batch)

    def read(self, stream: np.ndarray, row: np.ndarray) -> Rows:
        """The rows with these ids in these streams, of any shape, as they were added."""
        stream, row = checked_rows("HostPond.read", stream, row, self.streams)
        with self._lock:
            return self._read(stream, row)

    def _read(self, stream: np.ndarray, row: np.ndarray) -> Rows:
        added = self._ring.added[stream]
        if ((row < np.maximum(0, added - self.length)) | (row >= added)).any():
            raise RowsGone("HostPond.read: rows that were overwritten, or not added yet")
        slots = self._starts.slots(stream, row)

        def at(path: str) -> np.ndarray:
            field = self.spec.columns[path]
            values = np.empty((*slots.shape, *field.shape), field.dtype)
            self._ring.stores[path].take_around(slots, values)
            return values

        return unpack_rows(self.spec, self._ring.flat_flags[slots], at)

    @property
    def added(self) -> np.ndarray:
        """int64[streams]: rows ever added per stream."""
        with self._lock:
            return self._ring.added.copy()

    def export(self) -> dict[str, np.ndarray]:
        """The ring and its generator as flat arrays, from which `restore` makes an equal pond."""
        with self._lock:
            arrays = snapshot.pack(
                self,
                {path: store.values() for path, store in self._ring.stores.items()},
                self._ring.flags,
                self._ring.added,
                faults=np.zeros((2, self.streams), np.uint32),
                priorities=self._ranks and self._ranks.pack(),
            )
            return arrays | {"rng": self._random.pack()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what a HostPond, or a Pond of the same shape, exported."""
        saved = snapshot.unpack(self, arrays)
        with self._lock:
            if "rng" in arrays:
                self._random.unpack(arrays["rng"])  # raises before anything has changed
            self._ring.restore(saved)
            self._starts.forget()
            if self._ranks:
                self._ranks.unpack(saved.priorities)

    def __reduce__(self) -> Any:
        """Copied and pickled as constructor arguments and content.

        Not attribute by attribute: views into the ring's arrays would become separate arrays, which
        later additions would not change.
        """
        how = (self.spec, self.capacity, self.num_envs, self.window, self.sampler)
        return _rebuilt, (type(self), (*how, self.layout.name), self.export())


def _rebuilt(kind: type[HostPond], how: tuple[Any, ...], arrays: dict[str, np.ndarray]) -> HostPond:
    pond = kind(*how)
    pond.restore(arrays)
    return pond
