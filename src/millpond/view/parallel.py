"""Parallel coordinates: an axis per setting, and a line per run, coloured by its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .sketch import Sketch, compared
from .traces import Figure, escaped, make_figure

_LOW_TO_HIGH = ("#6c7a9c", "#3c8dbc", "#4f9d69", "#bf9530", "#d9773c")
_TICKS = 8  # most distinct values that are all written next to their axis
_RUNS = 3  # for fewer runs a table says more
_AXES = 12  # most axes that fit side by side

Value = float | str
Row = tuple[str, Sequence[str]]


def parallel(
    names: Sequence[str],
    runs: Sequence[tuple[str, Sequence[Value], float | None]],
    score: str,
) -> Figure | None:
    """`parallel(["dqn.batch"], [("a", [32], 1.5), ("b", [64], 2.0)], "IQM")`; None if too few.

    Runs without a score are left out. An axis with few distinct values is evenly spaced.
    """
    scored = sorted(
        ((name, values, float(s)) for name, values, s in runs if s is not None),
        key=lambda run: run[2],
    )
    if len(scored) < 2 or not names:
        return None
    scores: list[Value] = [s for *_, s in scored]
    columns = [[values[i] for _, values, _ in scored] for i in range(len(names))]
    axes = [*map(_axis, columns), _axis(scores, spread=True)]
    titles = [escaped(name) for name in (*names, score)]
    data: list[Any] = []
    for number, (name, values, s) in enumerate(scored):
        y = [at(value) for (at, _), value in zip(axes, (*values, s), strict=True)]
        place = number / (len(scored) - 1) * (len(_LOW_TO_HIGH) - 1)
        line = dict(color=_LOW_TO_HIGH[round(place)], width=2, dash="solid")
        values_text = ", ".join(f"{n} {_text(v)}" for n, v in zip(names, values, strict=False))
        hover = (
            f"{escaped(name)}<br>{escaped(values_text)}<br>{escaped(score)} {s:.4g}<extra></extra>"
        )
        trace = dict(type="scatter", mode="lines", name=escaped(name), x=titles, y=y, line=line)
        data.append(trace | dict(hovertemplate=hover, showlegend=False))
    ticks = [
        dict(x=title, y=y, text=escaped(text), showarrow=False, xanchor="left", xshift=5)
        for title, (_, marks) in zip(titles, axes, strict=True)
        for text, y in marks
    ]
    layout = {
        "xaxis": {"title": {"text": ""}, "type": "category", "showgrid": True},
        "yaxis": {"title": {"text": ""}, "range": [-0.1, 1.1], "visible": False},
        "annotations": ticks,
        "hovermode": "closest",
    }
    note = f"One line per run, from orange for the highest {score} to grey-blue for the lowest."
    return make_figure("parallel", "Settings and score", data, layout, note) | {"apart": True}


def settings_and_score(runs: Sequence[tuple[str, Sketch]], rows: Sequence[Row]) -> list[Figure]:
    """Parallel coordinates of runs: the settings in which they differ, and the greedy return.

    `rows` holds those settings with every run's value, as `differences` returns them.
    """
    rows = _independent([row for row in rows if row[0] not in ("seed", "members")])
    if len(rows) > _AXES:  # too many axes to read
        return []
    lines = [
        (name, [_value(values[i]) for _, values in rows], sketch.score)
        for i, (name, sketch) in enumerate(runs)
    ]
    if sum(score is not None for *_, score in lines) < _RUNS:
        return []
    figure = parallel([name for name, _ in rows], lines, "greedy return")
    return [figure] if figure else []


def comparison(
    runs: Sequence[tuple[str, Sketch]], rows: Sequence[Row], wanted: Sequence[str] | None = None
) -> list[Figure]:
    """All figures of several runs: the first curves, the settings, then the other curves."""
    figures = compared(runs, wanted)
    return [*figures[:1], *settings_and_score(runs, rows), *figures[1:]]


def _independent(rows: Sequence[Row]) -> list[Row]:
    """Leave out settings that are determined by another one, as presets are by the env."""
    found: list[Row] = []
    for name, values in sorted(rows, key=lambda row: row[0] not in ("env", "agent")):
        follows = any(
            len(set(zip(kept, values, strict=True))) == len(set(kept)) for _, kept in found
        )
        if not follows:
            found.append((name, values))
    return found


def _value(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


def _axis(values: Sequence[Value], spread: bool = False) -> tuple[Any, list[tuple[str, float]]]:
    """A function from values to heights in [0, 1], and the labels of the axis."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    different: list[Any] = sorted(set(numbers)) if len(numbers) == len(values) else []
    if different and (spread or len(different) > _TICKS):
        low, high = different[0], different[-1]
        marks = [(f"{low:.4g}", 0.0), (f"{high:.4g}", 1.0)] if high > low else [(f"{low:.4g}", 0.5)]
        return (lambda value: (value - low) / (high - low) if high > low else 0.5), marks
    order = different or sorted(set(values), key=str)
    place = {
        value: i / (len(order) - 1) if len(order) > 1 else 0.5 for i, value in enumerate(order)
    }
    shown = order if len(order) <= _TICKS else [order[0], order[-1]]
    return place.__getitem__, [(_text(value), place[value]) for value in shown]


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
