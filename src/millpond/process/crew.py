"""`ProcessCrew`: a run's actors and learners as processes, for `CrewLoop`."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.crew import SHARES
from ..engine.episode_stats import Sums
from ..engine.learner import Progress
from .supervisor import Supervisor


class ProcessCrew(abc.ABC):
    """What lockstep and free running have in common: reports, parameters, saving."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor, self.settings = supervisor, supervisor.settings

    @property
    def cycle(self) -> int:
        """Cycles that every learner has taken."""
        board, actors = self.supervisor.board, self.settings.actors
        return min(board.line(line).cycle for line in range(actors, board.number))

    def reports(self) -> tuple[list[Sums], list[Progress]]:
        actors = [
            Sums(*(m.arrays[f"sums/{name}"] for name in Sums._fields))
            for m in self.supervisor.ask("actor", "report")
        ]
        said = self.supervisor.ask("learner", "report")
        return actors, [Progress(**values) for m in said for values in m.values["policies"]]

    def params(self) -> list[Any]:
        found = [reader.pull_if_newer() for reader in self.supervisor.readers]
        return [tree for tree, _ in (one for one in found if one is not None)]

    def batch(self) -> Any:
        bad = next(m for m in self.supervisor.ask("learner", "batch") if m.arrays)
        return bad.arrays

    def export(self) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
        self.meet()
        actors = [message.arrays for message in self.supervisor.ask("actor", "export")]
        learners: list[dict[str, np.ndarray]] = [{} for _ in range(self.settings.policies)]
        for message in self.supervisor.ask("learner", "export"):
            for name, array in message.arrays.items():
                policy, _, rest = name.partition("/")
                learners[int(policy)][rest] = array
        return actors, learners

    @abc.abstractmethod
    def meet(self) -> None:
        """Bring all processes to one cycle, with nothing under way."""

    def restore(self, actors: Sequence[Any], learners: Sequence[Any]) -> None:
        cycle = {"cycle": int(learners[0]["cycles"])}
        grouped = [
            {
                f"{policy}/{name}": array
                for policy in group
                for name, array in learners[policy].items()
            }
            for group in self.settings.groups
        ]
        self.supervisor.ask("learner", "restore", cycle, grouped)
        self.supervisor.began(cycle["cycle"])  # an actor that is lost from here on begins there
        for index, message in enumerate(self.supervisor.ask("actor", "restore", cycle, actors)):
            if not message.values["whole"]:
                self.supervisor.tell("learner", "cut", {"actor": index})

    def pace(self) -> dict[str, Any]:
        """How the processes spent their time, and how often one was restarted."""
        board = self.supervisor.board
        shares: dict[str, list[float]] = {}
        for name, child in sorted(self.supervisor.children.items()):
            spent = np.array(board.line(child.line).spent_ns, np.float64)
            shares[f"{name[0]} {name[1]}"] = (spent / max(1.0, spent.sum())).round(4).tolist()
        return {
            "restarts": self.supervisor.restarts,
            "shares": shares,
            "share_names": list(SHARES),
            "weights_torn": sum(one.torn for one in self.supervisor.weights),
        }
