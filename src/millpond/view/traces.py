"""The parts of figures: curves, bands, axes, colours."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from .decimate import POINTS, kept_of, thin_band
from .history import RunHistory
from .x_values import XValues

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
    """A figure for the page and reports.

    Callers may add `apart=True` (its x axis is not the run's, so it does not zoom with the others)
    and `more=True` (it is listed under "More metrics").
    """
    return {"name": name, "title": title, "note": note, "data": data, "layout": layout}


def title_of(name: str) -> str:
    """The title for a column: "Critic loss" for `critic_loss.mean`."""
    text = name.removesuffix(".mean").replace("_", " ").replace(".", " ").replace("/", " ")
    return text[:1].upper() + text[1:]


def escaped(name: str) -> str:
    """A name from a run's files, escaped because Plotly interprets tags such as links."""
    return html.escape(str(name), quote=False)


def layout_of(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def axes_of(
    history: RunHistory, y: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    layout = layout_of(history.unit, y)
    if low is not None and high is not None:
        layout["yaxis"]["range"] = [low, high]
    elif low == 0:
        layout["yaxis"]["rangemode"] = "tozero"
    return layout


def plain(values: Any) -> list[float | None]:
    """Values as a list with six digits, which is more than a screen shows; None for NaN."""
    array = np.asarray(values, np.float64).tolist()
    return [float(f"{value:.6g}") if value == value else None for value in array]


def line_of(
    places: XValues,
    y: Any,
    name: str,
    colour: str,
    marks: bool = False,
    width: float = 2,
    dash: str = "solid",
    points: int = POINTS,
) -> list[Any]:
    """A list with the trace of one curve, empty if there is nothing to show."""
    y = np.asarray(y, np.float64)
    kept = kept_of(y, points)
    if not len(kept):
        return []
    few = len(kept) <= 60
    mode = "lines+markers" if (marks and few) or len(kept) == 1 else "lines"
    trace: dict[str, Any] = dict(type="scatter", mode=mode, name=name)
    trace |= places.take(kept).to_json() | dict(y=plain(y[kept]))
    trace["line"] = dict(color=colour, width=width, dash=dash)
    trace["marker"] = dict(color=colour, size=5)
    return [trace]


def band_of(places: XValues, low: Any, high: Any, colour: str) -> list[Any]:
    kept, low, high = thin_band(low, high)
    if not len(kept):
        return []
    around = places.take([*kept, *kept[::-1]]).to_json()
    border = [*plain(high), *plain(low[::-1])]
    look = dict(fill="toself", fillcolor=colour, opacity=0.18, line=dict(width=0, color=colour))
    quiet = dict(mode="lines", hoverinfo="skip", showlegend=False, name="band")
    return [dict(type="scatter", **around, y=border, **look, **quiet)]


def rare_of(history: RunHistory, kind: str, key: str, name: str, colour: str) -> list[Any]:
    """The trace of a number in rare lines, such as one per cycle."""
    lines = history.rare.get(kind, [])
    found = [mean_of(line.get(key)) for line in lines]
    y = [np.nan if value is None else value for value in found]
    return line_of(history.x_values_of(lines), y, name, colour, True, dash="dot")


def mean_of(value: Any) -> float | None:
    """The mean of a number or a nested list; None if there are no finite numbers."""
    try:
        found = np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        return None
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else None


def colour_of(number: int) -> tuple[str, str]:
    """The colour and dash of curve `number`; the first 28 all look different."""
    dashes = ("solid", "dash", "dot", "dashdot")
    return COLOURS[number % len(COLOURS)], dashes[number // len(COLOURS) % len(dashes)]


def level_at(y: float) -> dict[str, Any]:
    look = dict(color=GREY, width=1, dash="dot")
    return dict(type="line", x0=0, x1=1, xref="paper", y0=y, y1=y, line=look)
