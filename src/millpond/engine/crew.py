"""`CrewLoop`: actors and learners, wherever they are, as the loop of a session.

In a cycle every actor acts with the parameters of the cycle before; then every learner takes the
rows of all actors and learns. `LocalCrew` does so in this process (mode `sequential`) and a crew of
processes does exactly the same (mode `lockstep`), so the two can be compared bit by bit.
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
    """What a session needs of the agents, [policies]: the part of an `AgentState` that is shown."""

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
    """Runs a crew in rounds, with the methods of `DeviceLoop`, for a session to drive."""

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
        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(progress, name) for progress in learners])

        sums, reports = no_sums(self.settings.policies), self.settings.reports
        for part in actors:
            sums = Sums(*(mine + other for mine, other in zip(sums, part, strict=True)))
        taken, found = joined("taken"), joined("found")
        sums = sums._replace(updates=taken, found=found.astype(np.float32))
        updates, synced = joined("updates"), joined("synced")
        means = found / np.maximum(taken, 1)[:, None]
        evidence = [line for progress in learners for line in progress.evidence]
        self.evidence = [
            {
                **line,
                "updates": int(updates[i]),
                "target_updates": int(synced[i]),
                **{name: float(means[i, k]) for k, name in enumerate(reports) if name != "loss"},
            }
            for i, line in enumerate(evidence)
        ]
        params = [jax.device_get(one) for one in self.crew.params()]
        agent = AgentView(
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *params),
            updates.astype(np.uint32),
            synced,
            joined("bad"),
        )
        batch = self.crew.batch() if agent.bad.any() else None
        cycle = min(progress.cycles for progress in learners)
        return CrewState(agent, joined("steps").astype(np.uint32), cycle, batch), sums

    def check(self, state: CrewState) -> None:
        """Nothing to do: actors check every row that their envs give."""

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
