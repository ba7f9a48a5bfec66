"""`RayLearner`: a learner whose rows and batches come from shards elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..engine.checkpoint import Arrays
from ..engine.crew_member import LearnerMember
from ..engine.learner import Learner
from ..engine.settings import Settings
from ..engine.trees import part
from .member import RayMember
from .packs import Pack, Packs
from .ray import Lost
from .shards import RemoteShards
from .weights import RayWeights

_SLICE_S = 1.0  # how long a wait may take before parameters are offered again


class RayLearner(RayMember, LearnerMember):
    """`member.run(goal)` learns up to a cycle in one thread; the rest may be asked by others."""

    def __init__(
        self, plain: dict[str, Any], index: int, folder: str, shards: list[Any], weights: Any
    ) -> None:
        super().__init__()
        self.settings = settings = Settings.from_json(plain)
        self.index, self.weights = index, RayWeights(weights)
        self.policies = settings.groups[index]
        self.shards = RemoteShards(settings, index, shards)
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
            self.packs = Packs(self.settings, self.policies, self.shards, self.cycle, ahead)
        while self.cycle < self.goal and not self.learner.bad:
            self.watch.now("waiting")
            pack = self.packs.take(_SLICE_S)
            if pack is None:
                self._publish(again=True)  # the weights may have been lost, and actors wait
                continue
            for number in range(pack.cycles):
                if self.learner.bad:
                    break
                with self.step():
                    self._learn(pack, number)
            self.shards.batches = {}
            self.watch.now("moving")
            self._publish()
            with self._moved:
                self._moved.notify_all()
        self.watch.now("waiting")
        return self.cycle, self.learner.traced() if crew.trace else []

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
        """Send the parameters to the actors if enough is new; `again`: they may have been lost."""
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
        """Wait at most `timeout` seconds for a cycle: where we are, and whether a policy is bad."""
        deadline = time.monotonic() + timeout
        with self._moved:
            while self.cycle < cycle and not self.learner.bad:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._moved.wait(left)
        return self.cycle, self.learner.bad

    def progress(self, actor: int) -> tuple[int, np.ndarray]:
        """The cycle before which all rows are here, and the actor's env steps up to there."""
        packs = self.packs
        if packs is not None:
            self.reach(packs.first, _SLICE_S * 10)  # what was fetched is learned from first
        with self.between():
            first = packs.first if packs else self.cycle
            return first, self.learner.audit.steps[:, actor].astype(np.uint32)

    def restore(self, arrays: Sequence[Arrays]) -> None:
        if self.packs is not None:
            self.packs.close()
            self.packs = None
        super().restore(arrays)
        self._publish(again=True)
