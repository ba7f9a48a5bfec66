"""`Position`: how far a mixture has got. It is saved with every state, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ..config import from_plain, to_plain

# agents: they learn, while their rows are drained into the Lake
# fill: BigPond is filled from the Lake
# big: the BigAgent learns from BigPond; no state is saved here, so a resumed run fills again
# clone: the agents become copies of the BigAgent
Phase = Literal["agents", "fill", "big", "clone", "done"]


@dataclass(frozen=True)
class Position:
    """Cycle k is everything from the k-th reset to the next; cycle 0 begins with new agents."""

    phase: Phase = "agents"
    cycle: int = 0
    updates: int = 0  # of the agents in this cycle
    last: bool = False  # the frames are used up: the mixture ends after this BigAgent phase
    since: int = 0  # frames at the latest reset
    rows: tuple[int, ...] = ()  # per member: rows of each stream of its Lake at that reset
    target: tuple[float, ...] = ()  # per member: the agents' mean return before that reset
    recovered: tuple[int, ...] = ()  # per member: frames until it was back there; -1: not yet
    before: tuple[float, ...] = ()  # per member: the same before the reset to come
    chosen: tuple[int, ...] = ()  # per member: the candidate that the BigAgent begins as
    clones: int = 0  # agents that were replaced because they diverged

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` gives this position back."""
        return to_plain(self)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Position:
        """The position that `to_json` described."""
        return from_plain(Position, plain, Position())

    def replace(self, **changes: Any) -> Position:
        """A copy with changes: `position.replace(phase="fill")`."""
        return dataclasses.replace(self, **changes)

    def judge(self, means: list[float], frames: int) -> Position:
        """Record which members are back at their return from before the latest reset."""
        if not self.target:
            return self
        now = zip(self.recovered, self.target, means, strict=True)
        took = [frames - self.since if r < 0 and m >= t else r for r, t, m in now]
        return self.replace(recovered=tuple(took))
