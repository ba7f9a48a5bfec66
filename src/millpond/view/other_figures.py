"""Figures of all other numbers that a run writes: every agent and env has some of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import Columns
from .history import History
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
# What the figures with a form of their own show already, or what is made of it.
SHOWN = {
    "train": {
        *("return", "returns", "epsilon", "q", "big_q", "loss", "gradient", "change", "big_loss"),
        *("pond_fill", "lake_fill", "big_pond_fill"),
    },
    "eval": {"return", "returns", "big_return", "errors", "interval", "after"},
}
# Kinds of lines that have such figures, or that only say that something happened.
_KINDS = {"reset", "recovery", "fill", "big", "measure", "recloned", "diverged"}


def other_figures(history: History) -> list[Figure]:
    """One figure for each number of lines of training and evaluation that no other figure shows."""
    found: list[Figure | None] = []
    for kind in ("train", "eval"):
        columns: Columns = getattr(history, kind)
        found += [_one(history, columns, kind, name) for name in other_names(columns, kind)]
    for kind in history.rare.keys() - _KINDS:
        found += _rare(history, kind)
    return [{**figure, "more": True} for figure in found if figure is not None]


def other_names(columns: Columns, kind: str) -> list[str]:
    """Names of columns that no figure shows; of lists the mean alone."""
    known = {*PLACES, *SHOWN[kind]}
    names = [name for name in columns.names if not name.endswith((".low", ".high"))]
    return [name for name in names if name.removesuffix(".mean") not in known]


def _one(history: History, columns: Columns, kind: str, name: str) -> Figure | None:
    base, places = name.removesuffix(".mean"), history.places(columns)
    data: list[Any] = []
    note = ""
    if base != name:
        low, high = columns.of(f"{base}.low"), columns.of(f"{base}.high")
        if not np.array_equal(low, high, equal_nan=True):
            data += band_of(places, low, high, BLUE)
            note = "Band: lowest to highest agent."
    data += line_of(places, columns.of(name), words(spoken(name)), BLUE, marks=kind == "eval")
    if not data:
        return None
    title = f"{spoken(name)}, greedy" if kind == "eval" else spoken(name)
    layout = axes_of(history, words(spoken(name).lower()))
    return make_figure(f"{kind}-{base}", title, data, layout, note)


def _rare(history: History, kind: str) -> list[Figure | None]:
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
