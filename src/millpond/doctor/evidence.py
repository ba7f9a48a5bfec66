"""`Evidence`: what a run wrote of itself, as the checks read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.events import Events
from ..metrics import read_metrics
from ..train import Run, Settings

Line = dict[str, Any]
KINDS = ("train", "health", "eval", "diverged")


@dataclass
class Evidence:
    """Lines by kind, oldest first: `Evidence.of(run)`, or made up in a test.

    `chance` is what a random policy scores, if somebody has played it. `status` is what the run
    said last of itself. `whole` is false if the lines do not go back to the run's beginning.
    """

    settings: Settings
    status: Line = field(default_factory=lambda: {"state": "running", "steps": 0, "why": ""})
    train: list[Line] = field(default_factory=list)
    health: list[Line] = field(default_factory=list)
    eval: list[Line] = field(default_factory=list)
    diverged: list[Line] = field(default_factory=list)
    speed: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    chance: Line | None = None
    noise: list[float | None] | None = None  # gradient noise scale of each policy, if measured
    whole: bool = True

    @staticmethod
    def of(run: Run) -> Evidence:
        """Everything in a run's folder; the run may be going on."""
        found = Evidence(run.settings, run.status())
        for line in read_metrics(run.metrics):
            if line["kind"] in KINDS:
                getattr(found, line["kind"]).append(line)
        found.speed = list(read_metrics(run.speed))
        found.events = Events(run.path).read()
        return found

    @property
    def learners(self) -> list[list[Line]]:
        """Of every line of health the evidence of each policy: [lines][policies]."""
        return [line["learners"] for line in self.health]

    @property
    def in_processes(self) -> bool:
        """Whether actors and learners are processes of their own."""
        return self.settings.way in ("lockstep", "processes", "ray")

    @property
    def losses(self) -> list[Line]:
        """Every process that was lost."""
        return [event for event in self.events if event["event"] == "lost"]

    def total(self, name: str, last: int | None = None) -> int:
        """A count added up over all policies, in all lines of health or in the last few."""
        lines = self.learners if last is None else self.learners[-last:]
        return sum(one.get(name, 0) for line in lines for one in line)

    def most(self, name: str) -> float:
        """The largest value that any policy reported, or 0."""
        found = [one.get(name) for line in self.learners for one in line]
        return max((value for value in found if value is not None), default=0.0)

    def told(self, name: str) -> bool:
        """Whether an error of that name ended a process or the run."""
        said = [str(event.get("why", "")) for event in self.events]
        return any(name in text for text in [*said, str(self.status.get("why", ""))])
