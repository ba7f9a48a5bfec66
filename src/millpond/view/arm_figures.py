"""Figures of a comparison's arms: sweep, curves, scores with intervals, resets."""

from __future__ import annotations

from typing import Any

import numpy as np

from .parallel import parallel
from .traces import (
    GREY,
    Figure,
    band_of,
    colour_of,
    escaped,
    layout_of,
    level_at,
    line_of,
    make_figure,
)
from .x_values import XValues

RELATIVE = "return minus return before the reset"
_CURVES = 16  # most arms whose curves are drawn; of more, the best ones

Plain = dict[str, Any]


def arm_figures(results: Plain, unit: str) -> list[Figure]:
    """All figures; `unit` is the unit of a score."""
    found = [sweep(results), curves(results, unit), scores(results, unit), *resets(results)]
    return [{**figure, "apart": True} for figure in found if figure is not None]


def band(curve: list[Any]) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Frames, and the mean, lower and upper quartile over seeds."""
    values = np.array([by_seed for _, by_seed in curve], np.float64)
    low, high = np.percentile(values, [25, 75], axis=1)
    return [frames for frames, _ in curve], values.mean(1), low, high


def relative(reset: Plain) -> tuple[list[float], list[float]]:
    """Frames since a reset, and mean return minus the mean return before it."""
    target = float(np.mean(reset["target"]))
    points = reset["points"]
    return [x for x, _ in points], [float(np.mean(ys)) - target for _, ys in points]


def sweep(results: Plain) -> Figure | None:
    """Parallel coordinates of a grid: a line per arm, coloured by its IQM."""
    arms = [arm for arm in results["arms"] if arm.get("values")]
    keys = list(dict.fromkeys(key for arm in arms for key in arm["values"]))
    rows = [
        (arm["name"], [_plain(arm["values"].get(key, "-")) for key in keys], arm["iqm"])
        for arm in arms
    ]
    return parallel(keys, rows, "IQM")


def curves(results: Plain, unit: str) -> Figure:
    """Greedy returns by frames, mean over seeds; also of the BigAgents."""
    arms = list(enumerate(results["arms"]))
    note = "Bands: the middle half of the seeds."
    if len(arms) > _CURVES:
        arms = sorted(arms, key=lambda one: -one[1]["iqm"])[:_CURVES]
        note += f" The {_CURVES} best of {len(results['arms'])} arms are drawn."
    data: list[Any] = []
    for number, arm in arms:
        colour, dash = colour_of(number)
        x, middle, low, high = band(arm["curve"])
        places = XValues(np.asarray(x, np.float64))
        data += band_of(places, low, high, colour)
        data += line_of(places, middle, escaped(arm["name"]), colour, True, dash=dash)
        if "big_curve" in arm:
            x, middle, _, _ = band(arm["big_curve"])
            name = f"{escaped(arm['name'])}: BigAgent"
            data += line_of(XValues(np.asarray(x, np.float64)), middle, name, colour, dash="dot")
    layout = layout_of("frames of one seed", unit)
    return make_figure("arms-curves", "Greedy play, mean over seeds", data, layout, note)


def scores(results: Plain, unit: str) -> Figure:
    """For each arm a line with the IQM, its 95% interval and all seeds."""
    data: list[Any] = []
    for number, arm in enumerate(results["arms"]):
        low, high = arm["interval"]
        colour, name = colour_of(number)[0], escaped(arm["name"])
        reach = {"type": "data", "array": [high - arm["iqm"]], "arrayminus": [arm["iqm"] - low]}
        each = dict(type="scatter", mode="markers", x=arm["scores"], y=[name] * len(arm["scores"]))
        mark = dict(color=GREY, size=5, opacity=0.6)
        data.append(each | dict(name=f"{name}: seeds", marker=mark, showlegend=False))
        middle = dict(type="scatter", mode="markers", x=[arm["iqm"]], y=[name], error_x=reach)
        mark = dict(color=colour, size=10)
        data.append(middle | dict(name=name, marker=mark, showlegend=False))
    layout = layout_of(unit, "")
    layout["yaxis"] |= {"type": "category", "automargin": True, "autorange": "reversed"}
    layout["hovermode"] = "closest"
    title = "Final score: IQM, 95% interval, every seed"
    figure = make_figure("arms-scores", title, data, layout)
    return {**figure, "height": max(256, 80 + 24 * len(results["arms"]))}


def resets(results: Plain) -> list[Figure]:
    """For each arm of mixtures, the returns after every reset."""
    found: list[Figure] = []
    for number, arm in enumerate(arm for arm in results["arms"] if arm.get("resets")):
        data: list[Any] = []
        for place, reset in enumerate(arm["resets"]):
            x, y = relative(reset)
            places = XValues(np.asarray(x, np.float64))
            data += line_of(places, y, f"reset {reset['cycle']}", colour_of(place)[0], True)
        layout = layout_of("frames since", RELATIVE)
        layout["shapes"] = [level_at(0)]
        title = f"{arm['name']}: recovery after every reset"
        found.append(make_figure(f"arms-resets-{number}", title, data, layout))
    return found


def _plain(value: Any) -> float | str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number else str(value)
