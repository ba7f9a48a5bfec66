"""`RayLearner`: a learner whose rows and batches come from shards elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from ..engine.calls import LearnerCalls
from ..engine.host_updates import Stores
from ..engine.learner import Learner
from ..engine.settings import Settings
from ..engine.sharded import actors_in, apart, together
from ..engine.trees import part
from ..errors import ChannelClosed
from ..rows import Draw, Rows
from ..sequence import Sample
from .links import RaySource, RayWeights
from .member import RayMember
from .packs import Pack, Packs
from .ray import Lost

_SLICE_S = 1.0  # how long a wait may take before parameters are offered again
_AGAIN_S = 0.2  # a shard that was lost is asked again after so long

T = TypeVar("T")


class RemoteShards:
    """`Replay` in shards elsewhere: rows are already stored, batches have come with a pack."""

    def __init__(self, source: RaySource, settings: Settings) -> None:
        self.source, self.settings, self.cycle = source, settings, 0
        self.stores: Stores = [(slice(None), self.store)]
        # Time for a shard that hangs to be ended for it and to come back.
        self._patience = 2 * settings.crew.start_s
        self.batches: dict[int, Sample] = {}

    def store(self, rows: Rows) -> None:
        self.cycle += 1

    def draw(self, turn: int) -> Sample | None:
        return self.batches.pop(turn, None)

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        with contextlib.suppress(Lost):  # rows and priorities went with the shard
            self.source.rank(draw, priority)

    def cut(self, envs: np.ndarray) -> None:
        for actor in actors_in(self.settings, envs):
            self._insist(lambda one=actor: self.source.cut(one, self.cycle))

    def export(self) -> list[dict[str, np.ndarray]]:
        return together(self._insist(self.source.export), self.cycle)

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.cycle, parts = apart(arrays, self.settings.shards)
        self.batches = {}
        self._insist(lambda: self.source.restore(self.cycle, parts))

    def _insist(self, call: Callable[[], T]) -> T:
        """A shard that is lost meanwhile comes back: then it is asked again."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return call()
            except Lost as lost:
                if time.monotonic() > deadline:
                    raise ChannelClosed(
                        f"{lost}: away for {self._patience:g} s; look at the cluster's nodes, or "
                        "raise --crew.start-s"
                    ) from lost
                time.sleep(_AGAIN_S)


class RayLearner(RayMember, LearnerCalls):
    """`member.run(goal)` learns up to a cycle in one thread; the rest may be asked by others."""

    def __init__(
        self, plain: dict[str, Any], index: int, folder: str, shards: list[Any], weights: Any
    ) -> None:
        super().__init__()
        self.settings = settings = Settings.from_json(plain)
        self.index, self.weights = index, RayWeights(weights)
        self.policies = settings.groups[index]
        self.source = RaySource(index, self.policies, shards)
        self.shards = RemoteShards(self.source, settings)
        self._stack = contextlib.ExitStack()
        self.learner = self._stack.enter_context(
            Learner.opened(settings, self.policies, Path(folder), self.shards)
        )
        self._moved = threading.Condition()
        self.goal, self.published = 0, 0
        self.packs: Packs | None = None
        self._publish(again=True)

    @property
    def cycle(self) -> int:
        """Cycles taken."""
        return self.learner.cycles

    def run(self, goal: int) -> tuple[int, list[dict[str, int]]]:
        """Learn until the goal, which may change meanwhile: the cycle, and the trace's hashes."""
        self.goal = goal
        crew = self.settings.crew
        if self.packs is None:
            ahead = 0 if crew.lockstep else crew.prefetch
            self.packs = Packs(self.settings, self.policies, self.source, self.cycle, ahead)
        while self.cycle < self.goal and not self.learner.bad:
            self.watch.now("waiting")
            pack = self.packs.take(_SLICE_S)
            if pack is None:
                self._publish(again=True)  # who keeps them may have been lost, and actors wait
                continue
            for number in range(pack.cycles):
                if self.learner.bad:
                    break
                with self._door.step():
                    self._learn(pack, number)
            self.shards.batches = {}
            self.watch.now("moving")
            self._publish()
            with self._moved:
                self._moved.notify_all()
        self.watch.now("waiting")
        trace = self.settings.crew.trace
        return self.cycle, self.learner.traced() if trace else []

    def _learn(self, pack: Pack, number: int) -> None:
        """One cycle of a pack."""
        turns = self.settings.learns.turns
        self.watch.now("working")
        for cycle, actor in pack.cuts:
            if cycle == pack.first + number:
                self.learner.cut(actor)
        self.shards.batches |= pack.batches
        before = self.learner.version
        self.learner.cycle(part(pack.rows, slice(number * turns, (number + 1) * turns)))
        self.watch.starting &= self.learner.version == before

    def _publish(self, again: bool = False) -> None:
        """Give parameters to the actors, if they are new or may have been lost."""
        version, every = self.learner.version, self.settings.crew.publish_every
        if self.published <= version < self.published + every and not again:
            return
        with contextlib.suppress(Lost):  # offered again as soon as there is time
            self.weights.publish(self.index, version, jax.device_get(self.learner.params))
            self.published = version

    def aim(self, goal: int) -> None:
        """Change the goal of a `run` that is under way."""
        self.goal = goal

    def reach(self, cycle: int, timeout: float) -> tuple[int, bool]:
        """Wait for a cycle, at most that long: where we are, and whether a policy is bad."""
        deadline = time.monotonic() + timeout
        with self._moved:
            while self.cycle < cycle and not self.learner.bad:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._moved.wait(left)
        return self.cycle, self.learner.bad

    def stood(self, actor: int) -> tuple[int, np.ndarray]:
        """The cycle before which all rows are here, and the env steps of an actor up to there."""
        packs = self.packs
        if packs is not None:
            self.reach(packs.first, _SLICE_S * 10)  # what was fetched is learned from first
        with self.between():
            first = packs.first if packs else self.cycle
            return first, self.learner.audit.steps[:, actor].astype(np.uint32)

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        if self.packs is not None:
            self.packs.close()
            self.packs = None
        super().restore(arrays)
        self._publish(again=True)
