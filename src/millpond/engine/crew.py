"""`CrewLoop`: actors and learners in turn, wherever they are.

One cycle: every actor acts under the parameters of the cycle before; every learner takes the rows
of all actors and learns. `LocalCrew` does it in this process (mode `sequential`), a crew of
processes does the very same (mode `lockstep`), which is how the two can be compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from .episode_stats import Sums, no_sums
from .learner import Progress
from .settings import Settings


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


class Crew(Protocol):
    """Actors and learners that can be driven together."""

    def run(self, cycle: int) -> None:
        """Run until every learner has taken that many cycles, or a policy goes bad."""
        ...

    def reports(self) -> tuple[list[Sums], list[Progress]]:
        """Of every actor its sums, of every policy its progress."""
        ...

    def pace(self) -> dict[str, Any]:
        """How the processes spend their time."""
        ...

    def params(self) -> list[Any]:
        """Every learner's parameters, [its policies]."""
        ...

    def batch(self) -> Any:
        """The batch of the first update that was not finite, or None."""
        ...

    def export(self) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
        """The whole state of every actor and every policy, at one cycle."""
        ...

    def restore(self, actors: Sequence[Any], learners: Sequence[Any]) -> None:
        """Go on from an exported state."""
        ...


class CrewLoop:
    """A crew as the training session drives it; see `Loop`."""

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

    def steps(self, state: CrewState) -> np.ndarray:
        return state.steps

    def bad(self, state: CrewState) -> np.ndarray:
        return state.agent.bad

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
