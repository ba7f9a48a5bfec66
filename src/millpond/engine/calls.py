"""What a crew may call of an actor or a learner, wherever it works: report, export, restore.

Only a member that works while it answers, as on Ray, has to say when that is possible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .actor import Actor
from .checkpoint import named_leaves
from .episode_stats import Sums
from .learner import Learner, Progress


class Calls:
    """`with self.between():` around what must not meet a cycle that is under way."""

    def between(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


class ActorCalls(Calls):
    """Of an `actor` that is in some `cycle`."""

    actor: Actor
    cycle: int

    def report(self) -> Sums:
        """What happened since the last report."""
        with self.between():
            return self.actor.report()

    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""
        with self.between():
            return self.actor.export()

    def restore(self, cycle: int, arrays: Mapping[str, np.ndarray]) -> bool:
        """Continue from an exported state; False if the envs had to begin again."""
        with self.between():
            self.cycle = cycle
            return self.actor.restore(arrays)


class LearnerCalls(Calls):
    """Of a `learner`."""

    learner: Learner

    def report(self) -> list[Progress]:
        """Of each policy what happened since the last report."""
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
        """An actor's envs begin again."""
        with self.between():
            self.learner.cut(actor)

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole state of each policy."""
        with self.between():
            return self.learner.export()

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Continue from an exported state."""
        with self.between():
            self.learner.restore(arrays)
