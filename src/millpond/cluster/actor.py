"""`RayActor`: an actor that sends its rows in chunks: act some cycles, send, pull parameters."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from ..engine.chunk_dedup import ChunkId
from ..engine.crew_member import ActorMember
from ..engine.settings import Settings
from ..engine.shard_store import Chunk
from ..engine.trees import joined
from ..errors import ChannelClosed
from ..rows import Rows
from .member import RayMember
from .outbox import Outbox, RaySink
from .ray import Lost
from .weights import RayWeights

_SLICE_S = 0.2  # how long one wait may take before a pause is noticed


class RayActor(RayMember, ActorMember):
    """`member.run(goal)` acts up to a cycle in one thread; the rest may be asked by others."""

    def __init__(
        self,
        plain: dict[str, Any],  # settings
        index: int,
        incarnation: int,
        cycle: int,
        steps: np.ndarray,
        shard: Any,
        weights: Any,
    ) -> None:
        super().__init__()
        self.settings = settings = Settings.from_json(plain)
        self.index, self.incarnation = index, incarnation
        self.cycle, self.number = cycle, 0
        self.weights, crew = RayWeights(weights), settings.crew
        self.make(steps)
        self.outbox = Outbox(RaySink(shard), crew.credits, crew.start_s)
        self._hold = False
        self._idle = threading.Condition()
        self._running = False

    def run(self, goal: int) -> tuple[int, int]:
        """Act until `goal`, and until all rows are taken, or until a pause.

        Returns the cycle, and a hash of the newest rows.
        """
        with self._idle:
            self._running, self._hold = True, False
        try:
            while self.cycle < goal and not self._hold:
                if self.outbox.full:
                    self._wait()
                    continue
                with self.step():
                    self._chunk(goal)
            while not self.outbox.empty and not self._hold:
                self._wait()
        finally:
            self.watch.now("waiting")
            with self._idle:
                self._running = False
                self._idle.notify_all()
        return self.cycle, self.rows

    def _wait(self) -> None:
        self.watch.now("waiting")
        self.outbox.tend(_SLICE_S)

    def _chunk(self, goal: int) -> None:
        self.watch.now("moving")
        self.outbox.tend(0.0)
        self._pull()
        if any(params is None for params in self.params):
            return  # a pause came before the first parameters did
        self.watch.now("working")
        blocks: list[Rows] = []
        most, began = min(self.settings.chunk, goal - self.cycle), time.monotonic()
        while len(blocks) < most and not (blocks and self._over(began)):
            blocks.append(self.act())
            self.watch.now("working")
        rows = joined(blocks)
        self.watch.now("moving")
        id_ = ChunkId(self.index, self.incarnation, self.number)
        oldest, steps = self.outbox.oldest(self.number), np.array(self.actor.steps)
        self.outbox.put(Chunk(id_, oldest, self.cycle, len(blocks), steps, rows))
        self.number += 1
        self.cycle += len(blocks)

    def _over(self, began: float) -> bool:
        return self._hold or time.monotonic() - began > self.settings.crew.ship_s

    def _pull(self) -> None:
        deadline = time.monotonic() + self.settings.crew.start_s
        while True:
            try:
                for learner, found in enumerate(self.weights.pull(self.versions.tolist())):
                    if found is not None:
                        self.versions[learner], self.params[learner] = found
            except Lost:
                pass  # they come back; until then it acts with the parameters it has
            if self._hold or all(params is not None for params in self.params):
                return
            if time.monotonic() > deadline:
                raise ChannelClosed(
                    f"actor {self.index}: no learner has published parameters within "
                    f"{self.settings.crew.start_s:g} s; see why it does not start, or raise "
                    "--crew.start-s"
                )
            self.watch.now("waiting")
            time.sleep(0.05)

    def pause(self, timeout: float) -> int:
        """Stop after the cycle that is under way; returns that cycle."""
        with self._idle:
            self._hold = True
            if not self._idle.wait_for(lambda: not self._running, timeout):
                raise ChannelClosed(f"actor {self.index}: it did not pause within {timeout:g} s")
        return self.cycle
