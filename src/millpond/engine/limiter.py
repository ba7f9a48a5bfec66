"""`Limiter`: how many updates are due, which fixes the number of samples per inserted row.

A cycle is some turns of all envs. After every cycle the learner takes the updates that are due
before it takes more rows, so it runs neither ahead of its rows nor behind them. Rows that wait for
it are bounded by the slots of the channels (credits); when these are full, the actors wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..agents import Replayed
from .settings import Settings


@dataclass(frozen=True)
class Limiter:
    """`Limiter.of(settings).due(cycle)` updates follow the rows of cycle 1, 2, ..."""

    rows_per_cycle: int
    updates: int
    begins_at: int  # rows stored
    batch: int  # rows

    @staticmethod
    def of(settings: Settings) -> Limiter:
        """As the agent's settings say; offline, a cycle is one update."""
        learns = settings.learns
        if settings.from_lake:
            return Limiter(1, 1, 0, settings.replayed.batch)
        rows = settings.envs * learns.turns
        if isinstance(learns, Replayed):
            drawn = settings.played_rows * getattr(learns.window, "length", 1)  # rows of sequences
            begins = learns.begins_at(settings.envs)
            return Limiter(rows, learns.updates, begins, drawn)
        return Limiter(rows, learns.updates, 0, rows // learns.parts)

    def due(self, cycle: int) -> int:
        """Updates after the rows of that cycle: none until `begins_at` rows are stored."""
        return self.updates if cycle * self.rows_per_cycle >= self.begins_at else 0

    @property
    def samples_per_insert(self) -> float:
        """Rows sampled for every row stored, once learning has begun."""
        return self.updates * self.batch / self.rows_per_cycle
