"""`Packs`: rows and batches for a learner, fetched from all shards while it learns."""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np

from ..engine.limiter import Limiter
from ..engine.settings import Settings
from ..engine.shard import Collected, actors_of
from ..engine.sharded import draw_together
from ..engine.trees import joined, part
from ..rows import Rows
from ..sequence import Sample
from .ray import until_back
from .shards import RemoteShards

_SLICE_S = 0.5  # how long shards are asked for rows before they are asked again


class Pack(NamedTuple):
    """Some cycles of all actors, and the batches of the updates that follow them."""

    first: int
    cycles: int
    rows: Rows  # [cycles * turns, policies, env], without observations and actions
    cuts: list[tuple[int, int]]  # (cycle, actor)
    batches: dict[int, Sample]  # by the number of the update


class Packs:
    """`packs.take(timeout)` is the next pack. With `ahead`, a thread fetches that many beforehand.

    Without it nothing is drawn before it is requested, as lockstep needs. A shard that
    stays away for `start_s` seconds raises ChannelClosed.
    """

    def __init__(
        self, settings: Settings, policies: range, shards: RemoteShards, first: int, ahead: int
    ) -> None:
        self.settings, self.policies, self.shards = settings, policies, shards
        self.first = first  # all rows before this cycle were fetched
        self.limiter = Limiter.of(settings)
        # The envs of all actors, in the order in which the shards give them.
        width = settings.envs // settings.actors
        given = [a for shard in range(settings.shards) for a in actors_of(settings, shard)]
        places = np.empty(settings.envs, np.int64)
        for place, actor in enumerate(given):
            there = np.arange(place * width, (place + 1) * width)
            places[actor * width : (actor + 1) * width] = there
        self._order = None if given == sorted(given) else places
        self._stop = threading.Event()
        self._fetched: deque[Future[Pack | None]] = deque()  # or asked for
        self._asked: queue.SimpleQueue[Future[Pack | None] | None] = queue.SimpleQueue()
        # A daemon, unlike the threads of an executor: it must not keep a process from ending.
        self._thread = threading.Thread(target=self._fetch_all, daemon=True) if ahead else None
        if self._thread:
            self._thread.start()
            for _ in range(ahead + 1):  # one more than wait, which is being fetched
                self._ask()

    def _ask(self) -> None:
        """Have the thread fetch another pack."""
        self._fetched.append(Future())
        self._asked.put(self._fetched[-1])

    def _fetch_all(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                asked.set_result(self._fetch_one())
            except BaseException as error:
                asked.set_exception(error)

    def take(self, timeout: float) -> Pack | None:
        """The next pack, or None if there is none yet."""
        if self._thread is None:
            return self._fetch(timeout)
        if not wait([self._fetched[0]], timeout).done:
            return None
        self._ask()
        return self._fetched.popleft().result()

    def close(self) -> None:
        """Stop fetching; whatever was fetched is dropped."""
        self._stop.set()
        if self._thread:
            self._asked.put(None)
            self._thread.join()

    def _fetch_one(self) -> Pack | None:
        """A pack, however long it takes; None once `close` was called."""
        while not self._stop.is_set():
            if pack := self._fetch(_SLICE_S):
                return pack
        return None

    def _fetch(self, timeout: float) -> Pack | None:
        """The next rows and the batches of the updates that they call for; None if none came."""

        def ask() -> tuple[list[Collected], int, dict[int, Sample]] | None:
            if self._stop.is_set():
                return None
            found = self.shards.collect(self.first, self.settings.chunk, timeout)
            if found is None:
                return None
            cycles = min(one.cycles for one in found)
            return found, cycles, self._draw(found, cycles)

        # A shard that is lost had not given its rows yet: actors send them to its successor.
        answer = until_back(ask, self.settings.crew.start_s)
        if answer is None:
            return None
        found, cycles, batches = answer
        cuts = sorted(cut for one in found for cut in one.cuts)
        pack = Pack(self.first, cycles, self._rows(found, cycles), cuts, batches)
        self.first += cycles
        if self._thread is None:
            self.shards.took(self.first)  # actors wait for it, and the next fetch is far away
        return pack

    def _rows(self, found: list[Collected], cycles: int) -> Rows:
        time = cycles * self.settings.learns.turns
        rows = joined([part(one.rows, slice(time)) for one in found], 2)
        return rows if self._order is None else part(rows, np.s_[:, :, self._order])

    def _draw(self, found: list[Collected], cycles: int) -> dict[int, Sample]:
        """Batches for the updates that are due after these cycles."""
        numbers = range(self.first + 1, self.first + cycles + 1)
        due = [cycle for cycle in numbers if self.limiter.due(cycle)]
        if not due:
            return {}
        turn = due[0] * self.settings.learns.updates
        number = len(due) * self.settings.learns.updates
        masses = np.array([one.masses for one in found])

        def ask(counts: np.ndarray) -> list[Sample]:
            return self.shards.draw_from_each(counts, turn)

        batches = draw_together(self.settings, self.policies, masses, turn, number, ask)
        return dict(enumerate(batches, turn))
