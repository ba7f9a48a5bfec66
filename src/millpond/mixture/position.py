"""`Position`: where a mixture stands. It is saved with every state, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ..config import from_plain, to_plain

# agents: they learn and drain; their rows drain into the Lake behind them
# fill: BigPond is filled from the Lake
# big: the BigAgent learns from it; a state is not saved here, a resumed run fills again
# clone: the agents become copies of the BigAgent
Phase = Literal["agents", "fill", "big", "clone", "done"]


@dataclass(frozen=True)
class Position:
    """Cycle k is everything from the k-th clone to the next; cycle 0 begins with fresh agents."""

    phase: Phase = "agents"
    cycle: int = 0
    updates: int = 0  # of the agents in this cycle
    last: bool = False  # the frames are used up: after this BigAgent the mixture is done
    since: int = 0  # frames at the latest reset
    rows: tuple[int, ...] = ()  # per member: rows of each stream of its Lake at that reset
    target: tuple[float, ...] = ()  # per member: the agents' mean return before that clone
    recovered: tuple[int, ...] = ()  # per member: frames until they had it again; -1: not yet
    before: tuple[float, ...] = ()  # the same before the clone to come
    chosen: tuple[int, ...] = ()  # per member: the best agent before the BigAgent begins
    clones: int = 0  # agents that were replaced because they diverged

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` gives this position back."""
        return to_plain(self)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Position:
        """The position that `to_json` described."""
        return from_plain(Position, plain, Position())

    def at(self, **changes: Any) -> Position:
        """The same with changes: `position.at(phase="fill")`."""
        return dataclasses.replace(self, **changes)

    def judge(self, means: list[float], frames: int) -> Position:
        """Note which members have the return back that they had before the latest clone."""
        if not self.target:
            return self
        now = zip(self.recovered, self.target, means, strict=True)
        took = [frames - self.since if r < 0 and m >= t else r for r, t, m in now]
        return self.at(recovered=tuple(took))
