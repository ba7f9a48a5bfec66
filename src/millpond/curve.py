"""A learning curve as text for the terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .extras import require

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille: 2 columns of 4 dots


def terminal_curve(
    x: Sequence[float], y: Sequence[float], title: str, columns: int = 80, height: int = 12
) -> str:
    """The curve and its axes as text, at most `columns` wide.

    `print(terminal_curve(steps, returns, "return"))`.
    """
    if len(x) == 0:
        return f"{title}: no points yet"
    if len(x) == 1:
        return f"{title}: {y[0]:g} at {_short(x[0])}, one point so far"
    low, high = min(y), max(y)
    height = height if high > low else 1  # a level line needs no axis
    label = max(len(f"{high:g}"), len(f"{low:g}"))
    width = max(8, columns - label - 2)
    grid = np.zeros((height, width), np.int64)
    span, reach = (high - low) or 1.0, (x[-1] - x[0]) or 1.0
    values = np.interp(np.linspace(x[0], x[-1], 2 * width), x, y)
    rows = np.rint((high - values) / span * (4 * height - 1)).astype(int)
    for column, row in enumerate(rows):
        before = rows[max(column - 1, 0)]
        for dot in range(min(row, before), max(row, before) + 1):  # no gaps, however steep
            grid[dot // 4, column // 2] |= _DOTS[column % 2][dot % 4]
    lines = ["".join(chr(0x2800 + int(cell)) for cell in row) for row in grid]
    edges = {height - 1: f"{low:g}", 0: f"{high:g}"}
    body = [f"{edges.get(i, ''):>{label}} ┤{line}" for i, line in enumerate(lines)]
    start, end = _short(x[0]), _short(x[0] + reach)
    foot = " " * (label + 2) + start + end.rjust(width - len(start))
    return "\n".join([title, *body, foot])


def save_curve(
    path: str | Path, x: Sequence[float], y: Sequence[float], title: str, x_label: str, y_label: str
) -> None:
    """Save the curve as an image: `save_curve("curve.png", steps, returns, ...)`."""
    require("a picture of the curve", "view", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(x, y, color="#1f6f8b", linewidth=2, marker="o", markersize=3)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _short(number: float) -> str:
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:g}{unit}"
    return f"{number:g}"
