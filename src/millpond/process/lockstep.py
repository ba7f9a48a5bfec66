"""Mode `lockstep`: the processes of a run, one turn after the other.

Bit for bit what mode `sequential` does: the same actors and learners, with channels and Weights
between them instead of a function call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.crew import CrewLoop
from ..engine.settings import Settings
from ..engine.trace import Trace
from .crew import ProcessCrew
from .supervisor import Supervisor


class LockstepCrew(ProcessCrew):
    """Everybody stands still but those whose turn it is."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self.trace = Trace(supervisor.folder) if self.settings.crew.trace else None

    def run(self, cycle: int) -> None:
        supervisor = self.supervisor
        while self.cycle < cycle:
            goal = {"cycle": self.cycle + 1, "tell": True}
            acted = supervisor.ask("actor", "goal", goal, reply="at")
            learned = supervisor.ask("learner", "goal", goal, reply="at")
            if self.trace:
                rows = [message.values["rows"] for message in acted]
                learners = [one for message in learned for one in message.values["traced"]]
                self.trace.write(goal["cycle"], rows, learners)
            if any(message.kind == "bad" for _, message in supervisor.replies):
                return

    def meet(self) -> None:
        pass  # they always stand at one cycle

    def restore(self, actors: Sequence[Any], learners: Sequence[Any]) -> None:
        super().restore(actors, learners)
        if self.trace:
            self.trace.cut(self.cycle)


@contextlib.contextmanager
def open_loop(
    settings: Settings, folder: Path, hook: Mapping[str, str] = {}
) -> Generator[CrewLoop]:
    """Start the processes; they are gone at the end."""
    with Supervisor(settings, folder, hook) as supervisor:
        yield CrewLoop(settings, LockstepCrew(supervisor))
