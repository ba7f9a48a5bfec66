"""`Watch`: the doctor beside a run that is going on; it speaks when a check gets worse."""

from __future__ import annotations

from typing import Any

from ..engine.events import Events
from ..train import Run
from .evidence import KINDS, Evidence
from .examine import examine
from .random_player import known_chance
from .verdict import Verdict

_LINES = 50  # of each kind that are kept: what was found before has been said


class Watch:
    """`for verdict in watch(line): ...` with every line that a training session reports."""

    def __init__(self, run: Run) -> None:
        self.run, self.evidence = run, Evidence.of(run)
        self.evidence.chance = known_chance(run)
        self.evidence.status = {"state": "running", "steps": 0}  # whatever it was before
        self._said: set[tuple[str, str]] = set()
        self._trim()

    def __call__(self, line: dict[str, Any]) -> list[Verdict]:
        """What has turned yellow or red with this line, once each."""
        evidence = self.evidence
        if line["kind"] in KINDS:
            lines = getattr(evidence, line["kind"])
            while lines and lines[-1]["steps"] >= line["steps"]:  # a learner was lost: once more
                lines.pop()
            lines.append(line)
        if line["kind"] != "train":  # a round's last line
            return []
        evidence.speed.append(line)
        evidence.events = Events(self.run.path).read()
        self._trim()
        return self.look()

    def look(self) -> list[Verdict]:
        """What is yellow or red and was not said yet."""
        found = [one for one in examine(self.evidence) if one.fired]
        new = [one for one in found if (one.name, one.state) not in self._said]
        self._said |= {(one.name, one.state) for one in new}
        return new

    def _trim(self) -> None:
        for kind in (*KINDS, "speed"):
            lines = getattr(self.evidence, kind)
            if len(lines) > _LINES:
                del lines[:-_LINES]
                self.evidence.whole = False
