"""The parts of which figures are made: curves, bands, axes, colours that do on light and dark."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from .decimate import POINTS, thin, thin_band
from .history import History

Figure = dict[str, Any]
BLUE, ORANGE, GREEN, VIOLET, GOLD, GREY, RED = COLOURS = (
    "#3c8dbc",
    "#d9773c",
    "#4f9d69",
    "#9673c4",
    "#bf9530",
    "#87919d",
    "#cc5350",
)


def make_figure(name: str, title: str, data: list[Any], layout: Any, note: str = "") -> Figure:
    return {"name": name, "title": title, "note": note, "data": data, "layout": layout}


def words(name: str) -> str:
    """A name from a run's files as text: Plotly would read tags in it, a link among them."""
    return html.escape(str(name), quote=False)


def layout_of(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def axes_of(
    history: History, y: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    layout = layout_of(history.unit, y)
    if low is not None and high is not None:
        layout["yaxis"]["range"] = [low, high]
    elif low == 0:
        layout["yaxis"]["rangemode"] = "tozero"
    return layout


def plain(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows."""
    array = np.asarray(values, np.float64).tolist()
    return [float(f"{value:.6g}") if value == value else None for value in array]


def line_of(
    x: Any,
    y: Any,
    name: str,
    colour: str,
    marks: bool = False,
    width: float = 2,
    dash: str = "solid",
    points: int = POINTS,
) -> list[Any]:
    """One curve, or none if there is nothing to show."""
    x, y = thin(x, y, points)
    if not len(x):
        return []
    few = len(x) <= 60
    mode = "lines+markers" if (marks and few) or len(x) == 1 else "lines"
    trace: dict[str, Any] = dict(type="scatter", mode=mode, name=name)
    trace |= dict(x=np.round(x).astype(np.int64).tolist(), y=plain(y))
    trace["line"] = dict(color=colour, width=width, dash=dash)
    trace["marker"] = dict(color=colour, size=5)
    return [trace]


def band_of(x: Any, low: Any, high: Any, colour: str) -> list[Any]:
    x, low, high = thin_band(x, low, high)
    if not len(x):
        return []
    around = [*x.tolist(), *x[::-1].tolist()]
    border = [*plain(high), *plain(low[::-1])]
    look = dict(fill="toself", fillcolor=colour, opacity=0.18, line=dict(width=0, color=colour))
    quiet = dict(mode="lines", hoverinfo="skip", showlegend=False, name="band")
    return [dict(type="scatter", x=around, y=border, **look, **quiet)]


def rare_of(history: History, kind: str, key: str, name: str, colour: str) -> list[Any]:
    """Points of lines that come now and then, such as one per cycle."""
    lines = [(history.at(line), mean_of(line.get(key))) for line in history.rare.get(kind, [])]
    there = [(x, y) for x, y in lines if y is not None]
    if not there:
        return []
    return line_of([x for x, _ in there], [y for _, y in there], name, colour, True, dash="dot")


def mean_of(value: Any) -> float | None:
    """Of a number, or of a list of them, however deep."""
    try:
        found = np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        return None
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else None


def level_at(y: float) -> dict[str, Any]:
    look = dict(color=GREY, width=1, dash="dot")
    return dict(type="line", x0=0, x1=1, xref="paper", y0=y, y1=y, line=look)
