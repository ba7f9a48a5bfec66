"""`LocalCrew`: actors and learners in this process, taking turns (mode `sequential`)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..rows import Rows
from .actor import Actor, make_actor
from .checkpoint import Arrays
from .episode_stats import Sums
from .learner import Learner, Progress
from .settings import Settings
from .trace import Trace, digest
from .trees import joined, part


class LocalCrew:
    """All actors and learners of a run, in this process."""

    def __init__(
        self, actors: Sequence[Actor], learners: Sequence[Learner], trace: Trace | None
    ) -> None:
        self.actors, self.learners, self.trace = actors, learners, trace

    @staticmethod
    @contextlib.contextmanager
    def opened(settings: Settings, folder: Path) -> Generator[LocalCrew]:
        """Make the actors and learners, and close them at the end."""
        with contextlib.ExitStack() as stack:
            learners = [
                stack.enter_context(Learner.opened(settings, policies, folder))
                for policies in settings.groups
            ]
            number = 0 if settings.from_lake else settings.actors
            actors = [make_actor(settings, index) for index in range(number)]
            for actor in actors:
                stack.callback(actor.close)
            trace = Trace(folder) if settings.crew.trace else None
            yield LocalCrew(actors, learners, trace)

    @property
    def cycle(self) -> int:
        return self.learners[0].cycles

    def run(self, cycle: int) -> None:
        while self.cycle < cycle:
            params = tuple(learner.params for learner in self.learners)
            versions = np.concatenate([learner.updates for learner in self.learners])
            blocks = [actor.cycle(params, versions) for actor in self.actors]
            after = [worth for a in self.actors if (worth := a.after(params)) is not None]
            for learner in self.learners:
                mine = [rows_of(block, learner.policies) for block in blocks]
                worth = np.concatenate(after, 1)[np.asarray(learner.policies)] if after else None
                learner.cycle(joined(mine, 2) if mine else None, worth)
            if self.trace:
                self.trace.write(
                    self.cycle,
                    [digest(block) for block in blocks],
                    [traced for learner in self.learners for traced in learner.traced()],
                )
            if any(learner.bad for learner in self.learners):
                return

    def reports(self) -> tuple[list[Sums], list[Progress]]:
        actors = [actor.report() for actor in self.actors]
        return actors, [learner.report() for learner in self.learners]

    def pace(self) -> dict[str, Any]:
        return {}

    def params(self) -> list[Any]:
        return [learner.params for learner in self.learners]

    def batch(self) -> Any:
        return next((learner.batch for learner in self.learners if learner.bad), None)

    def export(self) -> tuple[list[Arrays], list[Arrays]]:
        learners = [policy for learner in self.learners for policy in learner.export()]
        return [actor.export() for actor in self.actors], learners

    def restore(self, actors: Sequence[Arrays], learners: Sequence[Arrays]) -> None:
        for learner in self.learners:
            learner.restore([learners[policy] for policy in learner.policies])
        for index, (actor, arrays) in enumerate(zip(self.actors, actors, strict=True)):
            if not actor.restore(arrays):
                for learner in self.learners:
                    learner.cut(index)
        if self.trace:
            self.trace.cut(self.cycle)


def rows_of(rows: Rows, policies: range) -> Rows:
    """Select the rows [time, policies, env] of some policies from those of all."""
    if rows.reward.shape[1] == len(policies):
        return rows
    return part(rows, np.s_[:, policies.start : policies.stop])
