"""`Sketch`: the part of a run that comparisons need, small enough to keep for hundreds of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .columns import MetricColumns
from .decimate import kept_of
from .groups import group_names, group_of
from .history import RunHistory
from .other_figures import other_names
from .pace import pace
from .summary import summary
from .traces import Figure, colour_of, escaped, layout_of, line_of, make_figure, title_of
from .x_values import XValues

_KEPT = 400  # most points of a curve
_ALL = 24_000  # most points of all curves in a chart
_LEAST = 60  # points of a curve, however many curves there are
# Titles of the curves that come first; others follow.
_TITLES = {
    "greedy": "Greedy return",
    "return": "Return while training",
    "loss": "Loss",
    "q": "Mean Q",
    "gradient": "Gradient norm",
    "epsilon": "Epsilon applied",
    "speed": "Speed",
}
_Y = {"greedy": "return", "return": "return", "q": "Q", "gradient": "norm", "epsilon": "epsilon"}


class Curve(NamedTuple):
    """One number of a run over its x values."""

    places: XValues
    y: np.ndarray
    unit: str = ""  # unit of y, if the name does not say it


class Sketch(NamedTuple):
    """`Sketch.of(history)`; `compared([("a", sketch), ...])` makes figures of several."""

    summary: list[tuple[str, str]]
    settings: dict[str, Any]
    unit: str
    group: str
    score: float | None
    curves: dict[str, Curve]

    @staticmethod
    def of(history: RunHistory) -> Sketch:
        """The sketch of a run, with thinned curves."""
        found: dict[str, Curve] = {}
        for kind, name, key in _names(history):
            columns: MetricColumns = getattr(history, kind)
            _put(found, name, history.x_values(columns), columns.of(key))
        counted, places, rate = pace(history)
        _put(found, "speed", places, rate, f"{counted} per second")
        first = {name: found[name] for name in _TITLES if name in found}
        score = history.eval.last("return")
        about = summary(history), history.settings, history.unit, group_of(history.settings)
        return Sketch(*about, score, first | found)


def _names(history: RunHistory) -> list[tuple[str, str, str]]:
    """The curves of a run: kind of line, name of the curve, name of the column."""
    found = [("eval", "greedy", "return")]
    for name in ("return", "loss", "q", "gradient", "change", "epsilon.mean"):
        found.append(("train", name.removesuffix(".mean"), name))
    for name in other_names(history.train, "train"):
        found.append(("train", name.removesuffix(".mean"), name))
    for name in other_names(history.eval, "eval"):
        found.append(("eval", f"greedy-{name.removesuffix('.mean')}", name))
    return found


def _put(
    found: dict[str, Curve], name: str, places: XValues, y: np.ndarray, unit: str = ""
) -> None:
    kept = kept_of(y, _KEPT)
    if len(kept):
        found[name] = Curve(places.take(kept), y[kept], unit)


def charts_of(sketches: Sequence[Sketch]) -> list[str]:
    """The names of the curves of all runs, the most important first."""
    there = dict.fromkeys(name for sketch in sketches for name in sketch.curves)
    return [name for name in _TITLES if name in there] + [n for n in there if n not in _TITLES]


def compared(
    runs: Sequence[tuple[str, Sketch]], wanted: Sequence[str] | None = None
) -> list[Figure]:
    """A figure of every curve; with `wanted`, other figures come without data.

    Each trace names its `group`, so that the page can draw means over seeds.
    """
    points = max(_LEAST, min(_KEPT, _ALL // max(1, len(runs))))
    groups = group_names((sketch.group, name) for name, sketch in runs)
    order = {key: number for number, key in enumerate(groups)}
    found: list[Figure] = []
    for chart in charts_of([sketch for _, sketch in runs]):
        name, data = f"compare-{chart}", []
        for number, (run, sketch) in enumerate(runs):
            curve = sketch.curves.get(chart)
            if curve is None or (wanted is not None and name not in wanted):
                continue
            colour, dash = colour_of(number)
            marks = chart.startswith("greedy")
            lines = line_of(
                curve.places, curve.y, escaped(run), colour, marks, dash=dash, points=points
            )
            look = dict(zip(("color", "dash"), colour_of(order[sketch.group]), strict=True))
            group = {"name": escaped(groups[sketch.group]), "line": look, "key": sketch.group}
            data += [line | {"group": group} for line in lines]
        unit = next(s.curves[chart].unit for _, s in runs if chart in s.curves)
        title = _TITLES.get(chart) or title_of(chart.replace("greedy-", "greedy "))
        y = unit or _Y.get(chart) or title_of(chart.removeprefix("greedy-")).lower()
        layout = layout_of(runs[0][1].unit, escaped(y))
        if chart == "speed":
            layout["yaxis"]["rangemode"] = "tozero"
        found.append(make_figure(name, title, data, layout))
    return found
