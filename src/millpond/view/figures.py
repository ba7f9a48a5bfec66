"""Figures of a run, as plain dicts in Plotly's form, for the page, the report and PNGs.

Every figure is `{"name", "title", "note", "data", "layout"}`; fonts and colours come later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .history import RunHistory
from .other_figures import other_figures
from .pace import pace
from .replay_figures import age, fill, lag, reuse, turnover
from .traces import (
    BLUE,
    COLOURS,
    GOLD,
    GREEN,
    GREY,
    ORANGE,
    VIOLET,
    Figure,
    axes_of,
    band_of,
    escaped,
    layout_of,
    level_at,
    line_of,
    make_figure,
    mean_of,
    plain,
    rare_of,
)
from .x_values import XValues


def figures_of(history: RunHistory) -> list[Figure]:
    """All figures of a run, the most important first."""
    found = [make(history) for make in FIGURES]
    return [figure for figure in found if figure and figure["data"]] + other_figures(history)


# --- returns -------------------------------------------------------------------------------------


def returns(history: RunHistory) -> Figure | None:
    """Returns while training and greedy returns, with resets."""
    train, judged = history.train, history.eval
    if not len(train) and not len(judged):
        return None
    data: list[Any] = []
    x = history.x_values(judged)
    note = ""
    if "interval" in judged:
        middle, half = judged.of("return"), judged.of("interval")
        data += band_of(x, middle - half, middle + half, BLUE)
        note = "Band: 95% interval of the greedy mean."
    elif "returns.low" in judged and not np.array_equal(
        judged.of("returns.low"), judged.of("returns.high"), equal_nan=True
    ):
        data += band_of(x, judged.of("returns.low"), judged.of("returns.high"), BLUE)
        note = "Band: lowest to highest agent."
    if len(train):
        data += line_of(
            history.x_values(train), train.of("return"), "while training", GREY, width=1
        )
    data += line_of(x, judged.of("return"), "greedy", BLUE, marks=True)
    if "big_return" in judged:
        data += line_of(x, judged.of("big_return"), "BigAgent, greedy", ORANGE, True, dash="dot")
    layout = axes_of(history, "return")
    layout["shapes"], layout["annotations"] = _resets(history)
    return make_figure("returns", "Return", data, layout, note)


def recovery(history: RunHistory) -> Figure | None:
    """Greedy return after every reset, minus the return before it."""
    resets = history.rare.get("reset", [])
    if not resets:
        return None
    x, y, after = (
        history.x_values(history.eval).x,
        history.eval.of("return"),
        history.eval.of("after"),
    )
    data: list[Any] = []
    for number, reset in enumerate(resets, 1):
        chosen = after == number
        target = mean_of(reset.get("target"))
        if target is None or not chosen.any():
            continue
        since, colour = x[chosen] - history.at(reset), COLOURS[(number - 1) % len(COLOURS)]
        name = f"reset {reset.get('cycle')}"
        data += line_of(XValues(since), y[chosen] - target, name, colour, True)
    layout = axes_of(history, "return minus return before")
    layout["xaxis"]["title"]["text"] = f"{history.unit} since the reset"
    layout["shapes"] = [level_at(0)]
    told = [mean_of(line.get("frames_to_recovery")) for line in history.rare.get("recovery", [])]
    note = ", ".join(f"{took:,.0f}" if took is not None else "not reached" for took in told)
    note = f"Frames until the return had recovered: {note}." if told else ""
    return make_figure("recovery", "Resets and recovery", data, layout, note) | {"apart": True}


# --- learning ------------------------------------------------------------------------------------


def epsilon(history: RunHistory) -> Figure | None:
    """The epsilon that was applied."""
    train = history.train
    if "epsilon.mean" not in train:
        return None
    x = history.x_values(train)
    low, high = train.of("epsilon.low"), train.of("epsilon.high")
    spread = not np.array_equal(low, high, equal_nan=True)
    data = band_of(x, low, high, VIOLET) if spread else []
    data += line_of(x, train.of("epsilon.mean"), "applied", VIOLET)
    note = "Band: lowest to highest agent." if spread else ""
    off = history.health.of("epsilon_off")
    if len(off):
        note += f" Rows differ from the schedule by at most {np.nanmax(off):.2g}."
    layout = axes_of(history, "epsilon", low=0)
    return make_figure("epsilon", "Epsilon applied", data, layout, note.strip())


def actions(history: RunHistory) -> Figure | None:
    """For continuous actions: the share at a bound, and the spread over observations."""
    train = history.train
    if "saturated" not in train:
        return None
    x = history.x_values(train)
    data = line_of(x, train.of("saturated"), "share at a bound", ORANGE)
    if "spread" in train:
        data += line_of(x, train.of("spread"), "spread over observations", BLUE)
    return make_figure("actions", "Actions, in [-1, 1]", data, axes_of(history, "", low=0), "")


def temperature(history: RunHistory) -> Figure | None:
    """SAC's temperature, and the policy's entropy."""
    train = history.train
    if "temperature" not in train:
        return None
    x = history.x_values(train)
    data = line_of(x, train.of("temperature"), "temperature", VIOLET)
    data += line_of(x, train.of("entropy"), "entropy", GREEN)
    layout = axes_of(history, "temperature, entropy")
    return make_figure("temperature", "Temperature and entropy", data, layout, "")


def q_values(history: RunHistory) -> Figure | None:
    """Mean Q of the minibatches, and the realised return."""
    train = history.train
    data = line_of(history.x_values(train), train.of("q"), "mean Q", BLUE)
    if "big_q.mean" in train:
        data += line_of(history.x_values(train), train.of("big_q.mean"), "BigAgent", ORANGE)
    for name, kind, key, colour in (
        ("BigAgent", "big", "q", ORANGE),
        ("max Q, before a reset", "measure", "max_q", GREEN),
        ("BigAgent's max Q", "measure", "big_max_q", ORANGE),
        ("realised return", "measure", "realised", GREY),
    ):
        data += rare_of(history, kind, key, name, colour)
    if not data:
        return None
    return make_figure("q", "Q values", data, axes_of(history, "Q"))


def loss(history: RunHistory) -> Figure | None:
    """Loss, gradient norm and relative change of the parameters.

    The axis is logarithmic unless one of them is ever negative.
    """
    train, x = history.train, history.x_values(history.train)
    data: list[Any] = []
    parts = (
        ("loss", "loss", BLUE),
        ("gradient", "gradient norm", GREEN),
        ("change", "relative change", GOLD),
        ("big_loss.mean", "BigAgent's loss", ORANGE),
    )
    signed = any((train.of(name) < 0).any() for name, *_ in parts)
    for name, text, colour in parts:
        y = train.of(name)
        data += line_of(x, y if signed else np.where(y > 0, y, np.nan), text, colour)
    if not data:
        return None
    layout = axes_of(history, "loss, norm, change")
    if not signed:
        layout["yaxis"] |= {"type": "log"}
    return make_figure("loss", "Loss and gradient", data, layout)


def measures(history: RunHistory) -> Figure | None:
    """How different a mixture's agents are, and how much of their networks sleeps."""
    data: list[Any] = []
    for key, text, colour in (
        ("disagreement", "agents disagree", BLUE),
        ("agreement", "agree with the data", GREEN),
        ("dormant", "dormant units", GREY),
        ("big_dormant", "BigAgent's dormant units", ORANGE),
    ):
        data += rare_of(history, "measure", key, text, colour)
    if not data:
        return None
    layout = axes_of(history, "share", low=0, high=1)
    return make_figure("measures", "Agents before each reset", data, layout)


# --- time ----------------------------------------------------------------------------------------


def speed(history: RunHistory) -> Figure | None:
    """Env steps per second; for a mixture, frames per second."""
    name, places, rate = pace(history)
    data = line_of(places, rate, f"{name}/s", GREEN)
    if not data:
        return None
    return make_figure("speed", "Speed", data, axes_of(history, f"{name} per second", low=0))


def shares(history: RunHistory) -> Figure | None:
    """How the time was spent, by a mixture's phases or by process."""
    last = history.last_speed
    if isinstance(last.get("share"), dict):
        rows = {"this session": last["share"]}
        names = list(last["share"])
    elif isinstance(last.get("shares"), dict):
        names = list(last.get("share_names", []))
        rows = {who: dict(zip(names, spent, strict=False)) for who, spent in last["shares"].items()}
    else:
        return None
    data: list[Any] = []
    for number, name in enumerate(names):
        share = [float(row.get(name, 0)) for row in rows.values()]
        look = dict(marker=dict(color=COLOURS[number % len(COLOURS)]), orientation="h")
        who = [escaped(row) for row in rows]
        data.append(dict(type="bar", name=escaped(name), y=who, x=plain(share), **look))
    layout = layout_of("share of time", "")
    layout["barmode"] = "stack"
    layout["xaxis"]["range"] = [0, 1]
    layout["yaxis"] |= dict(type="category", automargin=True)
    return make_figure("shares", "Where the time goes", data, layout)


FIGURES: tuple[Callable[[RunHistory], Figure | None], ...] = (
    returns,
    recovery,
    epsilon,
    actions,
    temperature,
    q_values,
    loss,
    fill,
    lag,
    age,
    reuse,
    turnover,
    measures,
    speed,
    shares,
)


def _resets(history: RunHistory) -> tuple[list[Any], list[Any]]:
    shapes: list[Any] = []
    texts: list[Any] = []
    resets = history.rare.get("reset", [])
    places = history.x_values_of(resets)
    for number, reset in enumerate(resets):
        where = places.take([number]).to_json()
        (x,), at = where["x"], {name: one for name, (one,) in where.get("at", {}).items()}
        look = dict(color=GREY, width=1, dash="dot")
        shapes.append(dict(type="line", x0=x, x1=x, at=at, y0=0, y1=1, yref="paper", line=look))
        place = dict(x=x, at=at, y=1, yref="paper", yanchor="top", xanchor="left", showarrow=False)
        texts.append(dict(text=f"reset {reset.get('cycle')}", font=dict(size=10), **place))
    return shapes, texts
