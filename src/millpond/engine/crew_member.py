"""The methods of an actor or a learner that a crew may call, wherever it works.

In a process they are called between two cycles anyway. On Ray, where one thread works and others
answer, `between()` waits for the end of a cycle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..rows import Rows
from .actor import make_actor
from .checkpoint import Arrays, named_leaves
from .episode_stats import Sums
from .learner import Learner, Progress
from .settings import Settings
from .trace import digest


class CrewMember:
    """`with self.between():` around what must not happen during a cycle."""

    def between(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class ActorMember(CrewMember):
    """An `actor` with the newest parameters of every learner, and what may be called of it."""

    settings: Settings
    index: int
    incarnation: int
    cycle: int
    watch: Any  # a Stopwatch

    def make(self, steps: np.ndarray) -> None:
        """Make the actor; it has no parameters yet."""
        groups = self.settings.groups
        self.actor = make_actor(self.settings, self.index, self.incarnation, self.cycle, steps)
        self.params: list[Any] = [None] * len(groups)  # one tree for each learner
        self.versions = np.full(len(groups), -1, np.int64)
        self._sizes = [len(group) for group in groups]
        self.rows = 0  # hash of the newest rows, if the run keeps a trace

    def act(self) -> Rows:
        """One cycle with the parameters at hand."""
        rows = self.actor.cycle(tuple(self.params), np.repeat(self.versions, self._sizes))
        if self.settings.crew.trace:
            self.rows = digest(rows)
        self.watch.starting = False
        return rows

    def report(self) -> Sums:
        with self.between():
            return self.actor.report()

    def export(self) -> Arrays:
        with self.between():
            return self.actor.export()

    def restore(self, cycle: int, arrays: Arrays) -> bool:
        """Continue at `cycle` from an exported state; False if the envs had to begin again."""
        with self.between():
            self.cycle = cycle
            return self.actor.restore(arrays)


class LearnerMember(CrewMember):
    """What may be called of a `learner`."""

    learner: Learner

    def report(self) -> Progress:
        with self.between():
            return self.learner.report()

    def params(self) -> Any:
        """The parameters, [policies], on the host."""
        with self.between():
            return jax.device_get(self.learner.params)

    def batch(self) -> dict[str, np.ndarray]:
        """The batch of the first update that was not finite; empty if all were."""
        return {name: np.asarray(leaf) for name, leaf in named_leaves(self.learner.batch)}

    def cut(self, actor: int) -> None:
        with self.between():
            self.learner.cut(actor)

    def export(self) -> list[Arrays]:
        with self.between():
            return self.learner.export()

    def restore(self, arrays: Sequence[Arrays]) -> None:
        with self.between():
            self.learner.restore(arrays)
