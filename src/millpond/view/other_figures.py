"""Figures of all remaining numbers in a run's metrics, some of which depend on agent and env."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import MetricColumns
from .history import RunHistory
from .traces import (
    BLUE,
    Figure,
    axes_of,
    band_of,
    escaped,
    line_of,
    make_figure,
    mean_of,
    rare_of,
    title_of,
)

PLACES = ("kind", "steps", "frames", "cycle")
# Columns that dedicated figures show already.
SHOWN = {
    "train": {
        *("return", "returns.mean", "epsilon.mean", "q", "big_q.mean"),
        *("loss", "gradient", "change", "big_loss.mean"),
        *("pond_fill", "lake_fill", "big_pond_fill"),
    },
    "eval": {"return", "returns.mean", "big_return", "errors.mean", "interval", "after"},
}
_MOST = 60  # most figures of one kind of line
# Kinds of lines that have dedicated figures, or that hold no numbers worth a figure.
_KINDS = {"reset", "recovery", "fill", "big", "measure", "recloned", "diverged"}


def other_figures(history: RunHistory) -> list[Figure]:
    """A figure for each number in `train` and `eval` lines that no other figure shows.

    They are listed under "More metrics", except for a run of a user's own loop.
    """
    found: list[Figure | None] = []
    for kind in ("train", "eval"):
        columns: MetricColumns = getattr(history, kind)
        found += [_one(history, columns, kind, name) for name in other_names(columns, kind)]
    for kind in history.rare.keys() - _KINDS:
        found += _rare(history, kind)
    more = {} if history.logged else {"more": True}
    return [{**figure, **more} for figure in found if figure is not None]


def other_names(columns: MetricColumns, kind: str) -> list[str]:
    """Names of columns that no other figure shows; for lists only the mean."""
    known = {*PLACES, *SHOWN[kind]}
    names = [name for name in columns.names if not name.endswith((".low", ".high"))]
    return [name for name in names if name not in known][:_MOST]


def _one(history: RunHistory, columns: MetricColumns, kind: str, name: str) -> Figure | None:
    base, places = name.removesuffix(".mean"), history.x_values(columns)
    data: list[Any] = []
    note = ""
    if base != name:
        low, high = columns.of(f"{base}.low"), columns.of(f"{base}.high")
        if not np.array_equal(low, high, equal_nan=True):
            data += band_of(places, low, high, BLUE)
            note = "Band: lowest to highest agent."
    said = base if history.logged else title_of(name)  # a user's own names stay as they are
    data += line_of(places, columns.of(name), escaped(said), BLUE, marks=kind == "eval")
    if not data:
        return None
    title = f"{said}, greedy" if kind == "eval" else said
    layout = axes_of(history, escaped(said if history.logged else said.lower()))
    return make_figure(f"{kind}-{base}", title, data, layout, note)


def _rare(history: RunHistory, kind: str) -> list[Figure | None]:
    """Figures of the numbers in lines of an unknown kind."""
    lines = history.rare[kind]
    keys = dict.fromkeys(key for line in lines for key in line if key not in PLACES)
    found: list[Figure | None] = []
    for key in keys:
        if not any(mean_of(line.get(key)) is not None for line in lines):
            continue
        data = rare_of(history, kind, key, escaped(title_of(key)), BLUE)
        layout = axes_of(history, escaped(title_of(key).lower()))
        title = f"{title_of(key)} ({title_of(kind).lower()})"
        found.append(make_figure(f"{kind}-{key}", title, data, layout))
    return found
