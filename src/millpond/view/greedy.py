"""`Greedy`: the evaluations of a run and nothing else, so that hundreds of runs are soon read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .columns import MetricColumns
from .decimate import kept_of
from .places import Places
from .tail import Tail
from .traces import plain

_POINTS = 100  # of a curve in the overview
_EVAL = b'"kind": "eval"'


class Greedy:
    """`Greedy(folder).curve(offline)`: greedy returns by where they were measured, up to now."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path / "metrics.jsonl", _EVAL)
        self._columns = self._empty()

    def curve(self, offline: bool) -> dict[str, Any]:
        """`x`, `at` and `y` as a trace has them."""
        self._look()
        columns = self._columns
        steps, frames, y = (columns.of(name) for name in ("steps", "frames", "return"))
        kept = kept_of(y, _POINTS)
        places = Places(steps if offline else frames, steps)
        return {**places.take(kept).to_json(), "y": plain(y[kept])}

    def _look(self) -> None:
        while True:
            news = self._tail.read()
            if news.anew:
                self._columns = self._empty()
            self._columns.extend([line for line in news.lines if line.get("kind") == "eval"])
            if not news.lines:
                return

    @staticmethod
    def _empty() -> MetricColumns:
        return MetricColumns(("steps", "frames", "return"))
