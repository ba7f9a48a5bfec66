"""Figures of all other numbers that a run writes: every agent and env has some of its own."""

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
    line_of,
    make_figure,
    mean_of,
    rare_of,
    spoken,
    words,
)

PLACES = ("kind", "steps", "frames", "cycle")
# Columns that the figures with a form of their own show already, and what is made of them.
SHOWN = {
    "train": {
        *("return", "returns.mean", "epsilon.mean", "q", "big_q.mean"),
        *("loss", "gradient", "change", "big_loss.mean"),
        *("pond_fill", "lake_fill", "big_pond_fill"),
    },
    "eval": {"return", "returns.mean", "big_return", "errors.mean", "interval", "after"},
}
_MOST = 60  # figures of one kind of line
# Kinds of lines that have such figures, or that only say that something happened.
_KINDS = {"reset", "recovery", "fill", "big", "measure", "recloned", "diverged"}


def other_figures(history: RunHistory) -> list[Figure]:
    """One figure for each number of lines of training and evaluation that no other figure shows.

    Of a run that a user's own loop logs they are what there is to see, so none is put aside.
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
    """Names of columns that no figure shows; of lists the mean alone."""
    known = {*PLACES, *SHOWN[kind]}
    names = [name for name in columns.names if not name.endswith((".low", ".high"))]
    return [name for name in names if name not in known][:_MOST]


def _one(history: RunHistory, columns: MetricColumns, kind: str, name: str) -> Figure | None:
    base, places = name.removesuffix(".mean"), history.places(columns)
    data: list[Any] = []
    note = ""
    if base != name:
        low, high = columns.of(f"{base}.low"), columns.of(f"{base}.high")
        if not np.array_equal(low, high, equal_nan=True):
            data += band_of(places, low, high, BLUE)
            note = "Band: lowest to highest agent."
    said = base if history.logged else spoken(name)  # a user's own names stay as they are
    data += line_of(places, columns.of(name), words(said), BLUE, marks=kind == "eval")
    if not data:
        return None
    title = f"{said}, greedy" if kind == "eval" else said
    layout = axes_of(history, words(said if history.logged else said.lower()))
    return make_figure(f"{kind}-{base}", title, data, layout, note)


def _rare(history: RunHistory, kind: str) -> list[Figure | None]:
    """Numbers of lines of a kind that we do not know."""
    lines = history.rare[kind]
    keys = dict.fromkeys(key for line in lines for key in line if key not in PLACES)
    found: list[Figure | None] = []
    for key in keys:
        if not any(mean_of(line.get(key)) is not None for line in lines):
            continue
        data = rare_of(history, kind, key, words(spoken(key)), BLUE)
        layout = axes_of(history, words(spoken(key).lower()))
        title = f"{spoken(key)} ({spoken(kind).lower()})"
        found.append(make_figure(f"{kind}-{key}", title, data, layout))
    return found
