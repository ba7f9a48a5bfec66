"""Figures of the replay: policy lag, age, reuse, turnover and fill."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.row_audit import LAG_EDGES
from .history import RunHistory
from .traces import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Figure,
    axes_of,
    layout_of,
    line_of,
    make_figure,
    plain,
    rare_of,
)


def lag(history: RunHistory) -> Figure | None:
    """The number of updates that the acting policy had missed, for all rows and the newest."""
    if history.lag is None or history.last_lag is None:
        return None
    names = _lag_names()
    data: list[Any] = []
    pairs = (("whole run", history.lag, BLUE), ("last round", history.last_lag, ORANGE))
    for name, counts, colour in pairs:
        share = counts / max(1, int(counts.sum()))
        used = dict(type="bar", name=name, x=names[: len(share)], y=plain(share))
        data.append(used | dict(marker=dict(color=colour)))
    layout = layout_of("updates missed by the acting policy", "share of rows")
    layout["xaxis"]["type"] = "category"
    layout["barmode"] = "group"
    return make_figure("lag", "Policy lag", data, layout)


def age(history: RunHistory) -> Figure | None:
    """The age of the rows in the replay, if all are equally likely to be drawn."""
    capacity, per = _capacity(history), _frames_per_step(history)
    if not capacity or not per:
        return None
    x = history.x_values(history.train)
    oldest = np.minimum(history.train.of("steps"), capacity) * per
    data = line_of(x, oldest, "oldest row", GREY) + line_of(x, oldest / 2, "mean row", BLUE)
    return make_figure("age", "Age of the replay", data, axes_of(history, "frames", low=0))


def reuse(history: RunHistory) -> Figure | None:
    """How often each row is drawn."""
    if history.mixture:
        data = rare_of(history, "big", "samples_per_row", "draws per row of BigPond", BLUE)
    elif len(history.health):
        drawn, rows = history.health.of("sampled"), history.health.of("rows")
        share = np.divide(drawn, rows, out=np.full(len(rows), np.nan), where=rows > 0)
        data = line_of(history.x_values(history.health), share, "drawn per row added", BLUE)
    else:
        steps, updates = history.train.of("steps"), history.train.of("updates")
        if not _capacity(history) or len(steps) < 2:
            return None
        new = np.diff(steps, prepend=0)
        share = (
            np.diff(updates, prepend=0)
            * float(history.learns.get("batch") or 0)
            / np.where(new, new, 1)
        )
        data = line_of(history.x_values(history.train), share, "drawn per row added", BLUE)
    if not data:
        return None
    return make_figure("reuse", "Reuse", data, axes_of(history, "draws", low=0))


def turnover(history: RunHistory) -> Figure | None:
    """How often the ring was overwritten, and the share of rows that had never been drawn."""
    capacity = _capacity(history)
    if not capacity:
        return None
    x = history.x_values(history.train)
    data = line_of(x, history.train.of("steps") / capacity, "times the ring was written", BLUE)
    layout = axes_of(history, "times", low=0)
    if len(history.health):
        lost, gone = history.health.of("overwritten_unsampled"), history.health.of("overwritten")
        share = np.divide(lost, gone, out=np.full(len(gone), np.nan), where=gone > 0)
        second = line_of(history.x_values(history.health), share, "overwritten, never drawn", RED)
        data += [one | {"yaxis": "y2"} for one in second]
        if second:
            about = dict(overlaying="y", side="right", rangemode="tozero", showgrid=False)
            layout["yaxis2"] = about | dict(title=dict(text="share"))
    return make_figure("turnover", "Turnover", data, layout)


def fill(history: RunHistory) -> Figure | None:
    """How full Ponds, Lake and BigPond are."""
    train, x = history.train, history.x_values(history.train)
    data = line_of(x, train.of("pond_fill"), "Ponds", BLUE)
    data += line_of(x, train.of("lake_fill"), "Lake", GREEN)
    data += line_of(x, train.of("big_pond_fill"), "BigPond", ORANGE)
    data += rare_of(history, "fill", "big_pond_fill", "BigPond", ORANGE)
    if not data:
        return None
    return make_figure("fill", "Water levels", data, axes_of(history, "share", low=0, high=1))


def _lag_names() -> list[str]:
    """Labels of the bins: 0, 1, 2–3, 4–7, ..., 512+."""
    names = ["0"]
    for low, after in zip(LAG_EDGES, LAG_EDGES[1:], strict=False):
        names.append(f"{low}" if after == low + 1 else f"{low}–{after - 1}")
    return [*names, f"{LAG_EDGES[-1]}+"]


def _capacity(history: RunHistory) -> float:
    """Rows in the ring, per policy; 0 if there is none."""
    if history.mixture or history.offline:
        return 0.0
    return float(history.learns.get("capacity") or 0)


def _frames_per_step(history: RunHistory) -> float:
    steps, frames = history.train.last("steps"), history.train.last("frames")
    return frames / steps if steps and frames else 0.0
