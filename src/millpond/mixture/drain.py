"""`MixDrain`: copies new rows from the agents' Ponds to the members' Lakes, in the background.

It is `flow.Drain` for many Ponds at once. A mixture that was killed plays rows again that its Lakes
hold already; these are compared, not written twice.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import RowsGone
from ..flow.worker import Worker
from ..lake import Lake, Writer
from ..lake.files import Files
from ..replay import Pond, PondState
from ..rows import Rows
from .settings import MixSettings


def open_lakes(
    settings: MixSettings, spec: Any, folder: Path, files: Files | None = None
) -> list[Lake]:
    """Open or create one Lake per member; one with another spec raises LakeRefused."""
    lakes: list[Lake] = []
    for member in range(settings.members):
        path = folder / f"member-{member}"
        if (path / "lake.json").exists():
            lakes.append(Lake.open(path, "a", spec, files))
        else:
            capacity, groups = settings.lake.capacity, settings.agents
            lakes.append(Lake.create(path, spec, capacity, groups, files=files))
    return lakes


class MixDrain:
    """Writes the Ponds' rows to group `agent-i` of their member's Lake, each once, in order.

        with MixDrain(settings, pond, lakes, done) as drain:
            drain(ponds)        # takes the new rows and returns; writes in the background

    `done` rows of every stream were taken before. With `repeats`, rows that the Lakes hold beyond
    them are now played again. Leaving the block closes the writers, so that everything is
    committed, sealed and evicted and the Lakes' contents do not depend on timing.
    """

    def __init__(
        self,
        settings: MixSettings,
        pond: Pond,
        lakes: list[Lake],
        done: int,
        repeats: bool = True,
    ) -> None:
        self.pond, self.lakes, self.done, self.repeats = pond, lakes, done, repeats
        self.envs = settings.lake.envs or settings.envs
        self.agents = settings.agents
        self._copy = functools.partial(_copy, pond, self.envs)
        self._stack = ExitStack()
        with ExitStack() as undo:
            self._writers = [
                [
                    undo.enter_context(lake.writer(f"agent-{i}", self.envs, continues=True))
                    for i in range(settings.agents)
                ]
                for lake in lakes
            ]
            self._check_done()
            # A thread for each agent: one alone could not keep up with a GPU.
            self._workers = [
                [Worker(f"drain-{m}-{i}", depth=2) for i in range(settings.agents)]
                for m in range(len(lakes))
            ]
            for worker in self._all_workers():
                undo.callback(worker.close)
            self._stack = undo.pop_all()

    def __call__(self, ponds: PondState) -> None:
        """Take all rows added since the last call; raises errors of the background threads."""
        added = int(self.pond.added(ponds)[0])
        for worker in self._all_workers():
            worker.check()
        if added - self.done > self.pond.length:
            raise RowsGone(
                f"drain: rows {self.done} to {added - self.pond.length - 1} of every stream were "
                f"overwritten before they were taken; call at least every {self.pond.length} turns"
            )
        if added == self.done:
            return
        rows = self._copy(ponds)
        for leaf in jax.tree.leaves(rows):
            leaf.copy_to_host_async()
        begin, self.done = self.done, added
        landed = _once(lambda: jax.tree.map(np.asarray, rows))
        for member, workers in enumerate(self._workers):
            for agent, worker in enumerate(workers):
                worker.put(lambda m=member, i=agent: self._write(m, i, landed(), begin, added))

    def cut(self) -> None:
        """Mark a cut: the next rows do not continue those in the Lakes."""
        for writer in itertools.chain.from_iterable(self._writers):
            writer.cut()

    def finish(self, sync: bool = False) -> None:
        """Wait until everything taken so far is committed; with `sync`, safe from a power loss."""
        if sync:
            for workers, writers in zip(self._workers, self._writers, strict=True):
                for worker, writer in zip(workers, writers, strict=True):
                    worker.put(lambda w=writer: w.commit(sync=True))
        for worker in self._all_workers():
            worker.finish()

    def __enter__(self) -> MixDrain:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None:
            self._stack.__exit__(kind, *error)
            return
        with self._stack:
            self.finish()

    def _check_done(self) -> None:
        for writer in (w for writers in self._writers for w in writers):
            if (writer.next_row < self.done).any():
                raise RowsGone(
                    f"drain: this run had written {self.done} rows of every stream when its state "
                    f"was saved, but the Lake in {self.lakes[0].path.parent} holds "
                    f"{int(writer.next_row.min())}; restore the Lake, or start a new run"
                )

    def _all_workers(self) -> Iterator[Worker]:
        return itertools.chain.from_iterable(self._workers)

    def _write(self, member: int, agent: int, rows: Rows, begin: int, end: int) -> None:
        writer, length = self._writers[member][agent], self.pond.length
        mine = jax.tree.map(lambda leaf: leaf[member * self.agents + agent], rows)
        # The copy holds a whole ring, the newest row last.
        there = int(np.clip(writer.next_row.max(), begin, end)) if self.repeats else begin
        if there > begin:
            self._compare(member, writer, agent, mine, there, end)
        if there < end:
            new = slice(length - (end - there), length)
            writer.append(jax.tree.map(lambda leaf: leaf[new], mine), packed=True)
            writer.commit()

    def _compare(
        self, member: int, writer: Writer, agent: int, rows: Rows, there: int, end: int
    ) -> None:
        """Cut the stream if the newest stored row differs from the one just played again.

        They differ on machines whose results are not reproducible; windows must then not reach
        from the old rows into the new ones.
        """
        if there != int(writer.next_row.max()):
            return  # the Lake holds more than was played again so far
        lake = self.lakes[member]
        lake.refresh()
        at = self.pond.length - (end - there) - 1
        for stream in (s for s in lake.streams if s.group == f"agent-{agent}"):
            old = lake.gather(np.array([stream.number]), np.array([there - 1]), 1, packed=True)
            same = all(
                np.array_equal(np.asarray(a)[0, 0], np.asarray(b)[at, stream.env])
                for a, b in ((old.obs, rows.obs), (old.action, rows.action))
            )
            if not same:
                writer.cut(stream.env)


def _once(make: Callable[[], Rows]) -> Callable[[], Rows]:
    """Call `make` once, in the first thread that asks; the others wait for the same result."""
    made: list[Rows] = []
    lock = threading.Lock()

    def get() -> Rows:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return get


@functools.partial(jax.jit, static_argnums=(0, 1))
def _copy(pond: Pond, envs: int, ponds: PondState) -> Rows:
    """All rows of the first `envs` streams of Ponds [policies]: [policies, time, env].

    Oldest first, binary observations packed; a copy in device memory, because the Ponds' state
    may be donated next.
    """

    def one(state: PondState) -> Rows:
        age = np.arange(pond.length, dtype=np.int32)[:, None]
        return pond.packed.read(state, np.arange(envs), (state.head + age) % pond.length)

    return jax.vmap(one, in_axes=(pond.axes,))(ponds)
