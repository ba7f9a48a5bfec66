"""`Packs`: rows and batches for a learner, fetched from all shards while it learns."""

from __future__ import annotations

import queue
import threading
import time
from typing import NamedTuple

import numpy as np

from ..engine.limiter import Limiter
from ..engine.settings import Settings
from ..engine.shard import Collected, actors_of
from ..engine.sharded import draw_together
from ..engine.trees import joined, part
from ..errors import ChannelClosed
from ..rows import Rows
from ..sequence import Sample
from .links import RaySource
from .ray import Lost

_SLICE_S = 0.5  # how long a shard is asked before it is asked again


class Pack(NamedTuple):
    """Some cycles of all actors, and the batches of the updates that follow them."""

    first: int
    cycles: int
    rows: Rows  # [cycles * turns, policies, env], without what is wide
    cuts: list[tuple[int, int]]  # (cycle, actor)
    batches: dict[int, Sample]  # by the number of the update


class Packs:
    """`packs.take()` is the next pack. With `ahead` a thread fetches that many beforehand.

    Without it nothing is drawn before it is requested, as lockstep needs. A shard that
    stays away for `patience` seconds raises ChannelClosed.
    """

    def __init__(
        self, settings: Settings, policies: range, source: RaySource, first: int, ahead: int
    ) -> None:
        self.settings, self.policies, self.source = settings, policies, source
        self.first = first  # all rows before it were fetched
        self.limiter = Limiter.of(settings)
        self._most = settings.chunk
        # The envs of all actors, in the order in which the shards give them.
        width = settings.envs // settings.actors
        given = [a for shard in range(settings.shards) for a in actors_of(settings, shard)]
        places = np.empty(settings.envs, np.int64)
        for place, actor in enumerate(given):
            there = np.arange(place * width, (place + 1) * width)
            places[actor * width : (actor + 1) * width] = there
        self._order = None if given == sorted(given) else places
        self._queue: queue.Queue[Pack | BaseException] = queue.Queue(maxsize=max(1, ahead))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fetch_all, daemon=True) if ahead else None
        if self._thread:
            self._thread.start()

    def take(self, timeout: float) -> Pack | None:
        """The next pack, or None if there is none yet."""
        if self._thread is None:
            return self._fetch(timeout)
        try:
            found = self._queue.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Stop fetching."""
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=10 * _SLICE_S)

    def _fetch_all(self) -> None:
        while not self._stop.is_set():
            try:
                found: Pack | BaseException | None = self._fetch(_SLICE_S)
            except BaseException as error:
                found = error
            while found is not None and not self._stop.is_set():
                try:
                    self._queue.put(found, timeout=_SLICE_S)
                except queue.Full:
                    continue
                if isinstance(found, BaseException):
                    return
                break

    def _fetch(self, timeout: float) -> Pack | None:
        """Rows first, then the batches of the updates that they call for."""
        patience = time.monotonic() + self.settings.crew.start_s
        while not self._stop.is_set():
            try:
                found = self.source.collect(self.first, self._most, timeout)
                if found is None:
                    return None
                cycles = min(one.cycles for one in found)
                batches = self._draw(found, self.first, cycles)
            except Lost as lost:
                # The rows were not taken yet: actors send them again to the shard's successor.
                if time.monotonic() > patience:
                    raise ChannelClosed(
                        f"a shard has been away for {self.settings.crew.start_s:g} s ({lost}); "
                        "look at the cluster's nodes, or raise --crew.start-s"
                    ) from lost
                self._stop.wait(0.1)
                continue
            pack = Pack(self.first, cycles, self._rows(found, cycles), _cuts(found), batches)
            self.first += cycles
            if self._thread is None:
                self.source.took(self.first)  # actors wait for it; the next fetch is far
            return pack
        return None

    def _rows(self, found: list[Collected], cycles: int) -> Rows:
        time_ = cycles * self.settings.learns.turns
        rows = joined([part(one.rows, slice(time_)) for one in found], 2)
        return rows if self._order is None else part(rows, np.s_[:, :, self._order])

    def _draw(self, found: list[Collected], first: int, cycles: int) -> dict[int, Sample]:
        """Batches for the updates that are due after these cycles."""
        due = [cycle for cycle in range(first + 1, first + cycles + 1) if self.limiter.due(cycle)]
        if not due:
            return {}
        updates = self.settings.learns.updates
        turn = due[0] * updates
        masses = np.array([one.masses for one in found])

        def ask(counts: np.ndarray) -> list[Sample]:
            return self.source.draw(counts, turn)

        some = draw_together(self.settings, self.policies, masses, turn, updates * len(due), ask)
        return {turn + number: batch for number, batch in enumerate(some)}


def _cuts(found: list[Collected]) -> list[tuple[int, int]]:
    return sorted(cut for one in found for cut in one.cuts)
