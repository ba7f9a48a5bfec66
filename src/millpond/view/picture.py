"""Draw a figure of the page as a PNG with Matplotlib: curves, bands, bars and marks."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from ..extras import require

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def save_figure(path: Path, figure: dict[str, Any]) -> None:
    """Write a figure as a PNG: `save_figure(Path("returns.png"), returns(history))`."""
    require("a picture", "view", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    picture = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    axes: Any = picture.add_subplot()
    layout = figure["layout"]
    second: Any = axes.twinx() if "yaxis2" in layout else None
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    for trace in figure["data"]:
        if trace["type"] == "scatter":
            _scatter(second if trace.get("yaxis") == "y2" else axes, trace)
    if bars:
        _bars(axes, bars, layout.get("barmode") == "stack")
    else:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _dress(axes, layout)
    if second is not None:
        second.set_ylabel(layout["yaxis2"]["title"]["text"])
    shown = [handle for place in (axes, second) if place for handle in _labelled(place)]
    if len(shown) > 1:
        axes.legend(*zip(*shown, strict=True), fontsize=8)
    axes.set_title(figure["title"], loc="left", fontsize=11)
    if figure["note"]:
        picture.supxlabel(figure["note"], fontsize=8, color="#566875")
    picture.savefig(path, dpi=110)


def _scatter(axes: Any, trace: dict[str, Any]) -> None:
    line = trace["line"]
    y = [float("nan") if value is None else value for value in trace["y"]]
    if trace.get("fill") == "toself":
        axes.fill(trace["x"], y, color=trace["fillcolor"], alpha=trace["opacity"], linewidth=0)
        return
    marker = "o" if "markers" in trace["mode"] else None
    look = dict(color=line["color"], linewidth=line["width"], linestyle=_DASHES[line["dash"]])
    axes.plot(trace["x"], y, label=_plain(trace["name"]), marker=marker, markersize=4, **look)


def _bars(axes: Any, bars: list[dict[str, Any]], stacked: bool) -> None:
    """Draw bars: horizontal if stacked, else vertical, as in all figures of the page."""
    if stacked:
        left = [0.0] * len(bars[0]["y"])
        for trace in bars:
            axes.barh(
                [_plain(name) for name in trace["y"]],
                trace["x"],
                left=left,
                color=trace["marker"]["color"],
            )
            axes.plot(
                [], [], color=trace["marker"]["color"], linewidth=6, label=_plain(trace["name"])
            )
            left = [a + b for a, b in zip(left, trace["x"], strict=True)]
        return
    width = 0.8 / len(bars)
    for number, trace in enumerate(bars):
        at = [place + number * width for place in range(len(trace["x"]))]
        axes.bar(at, trace["y"], width, color=trace["marker"]["color"], label=_plain(trace["name"]))
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(bars[0]["x"]))])
    axes.set_xticklabels(bars[0]["x"], fontsize=8)


def _plain(name: str) -> str:
    """The name without Plotly's escapes, and without Matplotlib's formulas."""
    return html.unescape(name).replace("$", r"\$")


def _dress(axes: Any, layout: dict[str, Any]) -> None:
    axes.set(xlabel=layout["xaxis"]["title"]["text"], ylabel=layout["yaxis"]["title"]["text"])
    axes.grid(alpha=0.25)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    if layout["yaxis"].get("type") == "log":
        axes.set_yscale("log")
    if "range" in layout["yaxis"]:
        axes.set_ylim(*layout["yaxis"]["range"])
    elif layout["yaxis"].get("rangemode") == "tozero":
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for shape in layout.get("shapes", []):
        look = dict(color=shape["line"]["color"], linewidth=1, linestyle=":")
        if shape.get("yref") == "paper":
            axes.axvline(shape["x0"], **look)
        else:
            axes.axhline(shape["y0"], **look)
    for words in layout.get("annotations", []):
        place = axes.get_xaxis_transform()
        axes.text(words["x"], 1.0, words["text"], transform=place, fontsize=8, va="top")


def _labelled(axes: Any) -> list[tuple[Any, str]]:
    return list(zip(*axes.get_legend_handles_labels(), strict=True))
