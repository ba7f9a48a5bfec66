"""Mode `processes`: actors and learners at the same time, as fast as each can.

An actor may be `crew.credits` cycles ahead of a learner, then it waits. A learner takes the
updates that its rows call for and no others, then it waits. So samples per row are exactly those
of the sequential run, and only the age of the acting parameters differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path

from ..engine.crew import CrewLoop
from ..engine.settings import Settings
from .crew import ProcessCrew
from .supervisor import Supervisor


class FreeCrew(ProcessCrew):
    """Runs towards the last cycle of the run; rounds only look on."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        settings = self.settings
        self._last = -(-settings.steps // (settings.envs * settings.learns.turns))

    def run(self, cycle: int) -> None:
        supervisor = self.supervisor
        self._set_goal(max(cycle, self._last))

        def there() -> bool:
            bad = any(message.kind == "bad" for _, message in supervisor.replies)
            return bad or self.cycle >= cycle

        supervisor.wait(there)

    def _set_goal(self, cycle: int) -> None:
        if cycle != self.supervisor.goal:
            self.supervisor.set_goal(cycle)

    def meet(self) -> None:
        """Actors stop where they are; all go on to where the foremost one stands."""
        self.supervisor.set_goal(0)  # the next round sets it again
        stopped = self.supervisor.ask("actor", "pause", reply="at")
        cycle = max(message.values["cycle"] for message in stopped)
        # An actor that was lost between its pushes to two learners begins where the slower one
        # stands; the other has rows of the cycle after, which must be taken whole.
        cycle = max(cycle, self.supervisor.newest_begun)
        goal = {"cycle": cycle, "tell": True}
        self.supervisor.ask("actor", "goal", goal, reply="at")
        self.supervisor.ask("learner", "goal", goal, reply="at")


@contextlib.contextmanager
def open_loop(
    settings: Settings, folder: Path, hook: Mapping[str, str] = {}
) -> Generator[CrewLoop]:
    """Start the processes; they are gone at the end."""
    with Supervisor(settings, folder, hook) as supervisor:
        yield CrewLoop(settings, FreeCrew(supervisor))
