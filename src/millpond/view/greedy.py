"""`Greedy`: only the evaluations of a run, so that hundreds of runs can be read quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .columns import MetricColumns
from .decimate import kept_of
from .tail import Tail
from .traces import plain
from .x_values import XValues

_POINTS = 100  # most points of a curve in the overview
_EVAL = b'"kind": "eval"'


class Greedy:
    """`Greedy(folder).curve(offline)`: the greedy returns so far."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path / "metrics.jsonl", _EVAL)
        self._columns = self._empty()

    def curve(self, offline: bool) -> dict[str, Any]:
        """The keys `x`, `at` and `y` of a trace."""
        self._look()
        columns = self._columns
        steps, frames, y = (columns.of(name) for name in ("steps", "frames", "return"))
        kept = kept_of(y, _POINTS)
        places = XValues(steps if offline else frames, steps)
        return {**places.take(kept).to_json(), "y": plain(y[kept])}

    def _look(self) -> None:
        while True:
            news = self._tail.read()
            if news.truncated:
                self._columns = self._empty()
            self._columns.extend([line for line in news.lines if line.get("kind") == "eval"])
            if not news.lines:
                return

    @staticmethod
    def _empty() -> MetricColumns:
        return MetricColumns(("steps", "frames", "return"))
