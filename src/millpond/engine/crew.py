"""`CrewLoop`: actors and learners in turn, wherever they are.

One cycle: every actor acts under the parameters of the cycle before; every learner takes the rows
of all actors and learns. `LocalCrew` does it in this process (mode `sequential`), a crew of
processes does the very same (mode `lockstep`), which is how the two can be compared bit by bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from .episode_stats import Sums, no_sums
from .learner import Progress
from .sequential import LocalCrew
from .settings import Settings
from .supervised_crew import SupervisedCrew


class AgentView(NamedTuple):
    """What is to be seen of the agents from outside, [policies]."""

    params: Any
    updates: np.ndarray
    synced: np.ndarray
    bad: np.ndarray


class CrewState(NamedTuple):
    """Where a crew stands; its members keep their own state."""

    agent: AgentView
    steps: np.ndarray  # uint32[policies]
    cycle: int
    evidence: Any


Crew = LocalCrew | SupervisedCrew


class CrewLoop:
    """Rounds of a crew, as a session drives them: what `DeviceLoop` is for one program."""

    def __init__(self, settings: Settings, crew: Crew) -> None:
        self.settings, self.crew = settings, crew
        self.evidence: list[dict[str, Any]] = []  # of the last round, per policy

    @property
    def turns_per_cycle(self) -> int:
        return 1 if self.settings.from_lake else self.settings.learns.turns

    def init(self) -> CrewState:
        return self._look(*self.crew.reports())[0]

    def round(self, state: CrewState, cycles: int) -> tuple[CrewState, Sums]:
        self.crew.run(state.cycle + cycles)
        return self._look(*self.crew.reports())

    def _look(self, actors: list[Sums], learners: list[Progress]) -> tuple[CrewState, Sums]:
        sums, reports = no_sums(self.settings.policies), self.settings.reports
        for part in actors:
            sums = Sums(*(mine + other for mine, other in zip(sums, part, strict=True)))
        found = [[progress.learned[name] for name in reports] for progress in learners]
        sums = sums._replace(
            updates=np.asarray([progress.learned["updates"] for progress in learners], np.int32),
            found=np.asarray(found, np.float32),
        )
        self.evidence = [
            {**progress.evidence, **_learning(progress, reports)} for progress in learners
        ]
        agent = AgentView(
            jax.tree.map(
                lambda *leaves: np.concatenate(leaves), *map(jax.device_get, self.crew.params())
            ),
            np.asarray([p.updates for p in learners], np.uint32),
            np.asarray([p.synced for p in learners], np.uint32),
            np.asarray([p.bad for p in learners]),
        )
        steps = np.asarray([p.steps for p in learners], np.uint32)
        batch = self.crew.batch() if agent.bad.any() else None
        return CrewState(agent, steps, min(p.cycles for p in learners), batch), sums

    def check(self, state: CrewState) -> None:
        """Actors look at what their envs give, row by row."""

    def health(self) -> dict[str, Any]:
        """Evidence of the last round, for the doctor."""
        return {"learners": self.evidence}

    def pace(self) -> dict[str, Any]:
        """What depends on the clock."""
        return self.crew.pace()

    def pack(self, state: CrewState) -> Any:
        actors, learners = self.crew.export()
        return {"actors": actors, "learners": learners}

    def like(self) -> Any:
        return self.pack(self.init())

    def unpack(self, tree: Any) -> CrewState:
        self.crew.restore(tree["actors"], tree["learners"])
        return self.init()


def _learning(progress: Progress, reports: tuple[str, ...]) -> dict[str, Any]:
    """How one policy learned, as evidence: means over the updates of the round."""
    number = max(1, progress.learned["updates"])
    means = {name: progress.learned[name] / number for name in reports if name != "loss"}
    return {"updates": progress.updates, "target_updates": progress.synced, **means}
