"""Figures: what a run told, as Plotly figures in plain dicts. Page, report and pictures share them.

Every figure is `{"name", "title", "note", "data", "layout"}`; who shows it adds fonts and grounds.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..train.witness import LAG_EDGES
from .columns import Columns
from .decimate import POINTS, thin, thin_band
from .history import History

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


def figures_of(history: History) -> list[Figure]:
    """All that can be shown of a run, in the order in which it is looked at."""
    found = [make(history) for make in FIGURES]
    return [figure for figure in found if figure is not None]


# --- how well ------------------------------------------------------------------------------------


def returns(history: History) -> Figure | None:
    """Returns while training and greedy ones, with resets."""
    train, judged = history.train, history.eval
    if not len(train) and not len(judged):
        return None
    data: list[Any] = []
    x = history.x(judged)
    note = ""
    if "interval" in judged:
        middle, half = judged.of("return"), judged.of("interval")
        data += _band(x, middle - half, middle + half, BLUE)
        note = "Band: 95% interval of the greedy mean."
    elif "returns.low" in judged and not np.array_equal(
        judged.of("returns.low"), judged.of("returns.high"), equal_nan=True
    ):
        data += _band(x, judged.of("returns.low"), judged.of("returns.high"), BLUE)
        note = "Band: lowest to highest agent."
    if len(train):
        data += _line(history.x(train), train.of("return"), "while training", GREY, width=1)
    data += _line(x, judged.of("return"), "greedy", BLUE, marks=True)
    if "big_return" in judged:
        data += _line(x, judged.of("big_return"), "BigAgent, greedy", ORANGE, True, dash="dot")
    layout = _axes(history, "return")
    layout["shapes"], layout["annotations"] = _resets(history)
    return _figure("returns", "Return", data, layout, note)


def recovery(history: History) -> Figure | None:
    """Greedy return after every reset, less that before it."""
    resets = history.rare.get("reset", [])
    if not resets:
        return None
    x, y, after = history.x(history.eval), history.eval.of("return"), history.eval.of("after")
    data: list[Any] = []
    for number, reset in enumerate(resets, 1):
        chosen = after == number
        target = _mean(reset.get("target"))
        if target is None or not chosen.any():
            continue
        since, colour = x[chosen] - history.at(reset), COLOURS[(number - 1) % len(COLOURS)]
        data += _line(since, y[chosen] - target, f"reset {reset.get('cycle')}", colour, True)
    layout = _axes(history, "return less that before")
    layout["xaxis"]["title"]["text"] = f"{history.unit} since the reset"
    layout["shapes"] = [_level(0)]
    told = [_mean(line.get("frames_to_recovery")) for line in history.rare.get("recovery", [])]
    note = ", ".join(f"{took:,.0f}" if took is not None else "not reached" for took in told)
    note = f"Frames until the return was back: {note}." if told else ""
    return _figure("recovery", "Resets and recovery", data, layout, note)


# --- how it learns -------------------------------------------------------------------------------


def epsilon(history: History) -> Figure | None:
    """Epsilon as it was applied."""
    train = history.train
    if "epsilon.mean" not in train:
        return None
    x = history.x(train)
    low, high = train.of("epsilon.low"), train.of("epsilon.high")
    spread = not np.array_equal(low, high, equal_nan=True)
    data = _band(x, low, high, VIOLET) if spread else []
    data += _line(x, train.of("epsilon.mean"), "applied", VIOLET)
    note = "Band: lowest to highest agent." if spread else ""
    off = history.health.of("epsilon_off")
    if len(off):
        note += f" Rows differ from the schedule by at most {np.nanmax(off):.2g}."
    layout = _axes(history, "epsilon", low=0)
    return _figure("epsilon", "Epsilon applied", data, layout, note.strip())


def q_values(history: History) -> Figure | None:
    """Mean Q of what was learned from, and beside it what was really earned."""
    train = history.train
    data = _line(history.x(train), train.of("q"), "mean Q", BLUE)
    if "big_q.mean" in train:
        data += _line(history.x(train), train.of("big_q.mean"), "BigAgent", ORANGE)
    for name, kind, key, colour in (
        ("BigAgent", "big", "q", ORANGE),
        ("max Q, before a reset", "measure", "max_q", GREEN),
        ("BigAgent's max Q", "measure", "big_max_q", ORANGE),
        ("really earned", "measure", "realised", GREY),
    ):
        data += _rare(history, kind, key, name, colour)
    if not data:
        return None
    return _figure("q", "Q values", data, _axes(history, "Q"))


def loss(history: History) -> Figure | None:
    """Loss, norm of the gradient and relative change of the parameters, on a logarithmic axis."""
    train, x = history.train, history.x(history.train)
    data: list[Any] = []
    for name, text, colour in (
        ("loss", "loss", BLUE),
        ("gradient", "gradient norm", GREEN),
        ("change", "relative change", GOLD),
        ("big_loss.mean", "BigAgent's loss", ORANGE),
    ):
        y = train.of(name)
        data += _line(x, np.where(y > 0, y, np.nan), text, colour)
    if not data:
        return None
    layout = _axes(history, "")
    layout["yaxis"]["type"] = "log"
    return _figure("loss", "Loss and gradient", data, layout)


def measures(history: History) -> Figure | None:
    """How different a mixture's agents are, and how much of their networks sleeps."""
    data: list[Any] = []
    for key, text, colour in (
        ("disagreement", "agents disagree", BLUE),
        ("agreement", "agree with the data", GREEN),
        ("dormant", "dormant units", GREY),
        ("big_dormant", "BigAgent's dormant units", ORANGE),
    ):
        data += _rare(history, "measure", key, text, colour)
    if not data:
        return None
    layout = _axes(history, "share", low=0, high=1)
    return _figure("measures", "Agents before each reset", data, layout)


# --- replay --------------------------------------------------------------------------------------


def lag(history: History) -> Figure | None:
    """How many updates the acting policy had missed, of all rows and of the newest round."""
    if history.lag is None or history.last_lag is None:
        return None
    names = _lag_names()
    data: list[Any] = []
    pairs = (("whole run", history.lag, BLUE), ("last round", history.last_lag, ORANGE))
    for name, counts, colour in pairs:
        share = counts / max(1, int(counts.sum()))
        used = dict(type="bar", name=name, x=names[: len(share)], y=_plain(share))
        data.append(used | dict(marker=dict(color=colour)))
    layout = _layout("updates missed by the acting policy", "share of rows")
    layout["xaxis"]["type"] = "category"
    layout["barmode"] = "group"
    return _figure("lag", "Policy lag", data, layout)


def age(history: History) -> Figure | None:
    """How old the rows in a DQN's ring are; every row is as likely as any other."""
    capacity, per = _capacity(history), _frames_per_step(history)
    if not capacity or not per:
        return None
    x = history.x(history.train)
    oldest = np.minimum(history.train.of("steps"), capacity) * per
    data = _line(x, oldest, "oldest row", GREY) + _line(x, oldest / 2, "mean row", BLUE)
    return _figure("age", "Age of the replay", data, _axes(history, "frames", low=0))


def reuse(history: History) -> Figure | None:
    """How often a row is drawn."""
    if history.mixture:
        data = _rare(history, "big", "samples_per_row", "draws per row of BigPond", BLUE)
    elif len(history.health):
        drawn, rows = history.health.of("sampled"), history.health.of("rows")
        share = np.divide(drawn, rows, out=np.full(len(rows), np.nan), where=rows > 0)
        data = _line(history.x(history.health), share, "drawn per row added", BLUE)
    else:
        dqn = history.settings.get("dqn") or {}
        steps, updates = history.train.of("steps"), history.train.of("updates")
        if not _capacity(history) or len(steps) < 2:
            return None
        new = np.diff(steps, prepend=0)
        share = np.diff(updates, prepend=0) * float(dqn.get("batch", 0)) / np.where(new, new, 1)
        data = _line(history.x(history.train), share, "drawn per row added", BLUE)
    if not data:
        return None
    return _figure("reuse", "Reuse", data, _axes(history, "draws", low=0))


def turnover(history: History) -> Figure | None:
    """How often a ring was written over, and which share of it had never been drawn."""
    capacity = _capacity(history)
    if not capacity:
        return None
    x = history.x(history.train)
    data = _line(x, history.train.of("steps") / capacity, "times the ring was written", BLUE)
    layout = _axes(history, "times", low=0)
    if len(history.health):
        lost, gone = history.health.of("overwritten_unsampled"), history.health.of("overwritten")
        share = np.divide(lost, gone, out=np.full(len(gone), np.nan), where=gone > 0)
        second = _line(history.x(history.health), share, "overwritten, never drawn", RED)
        data += [one | {"yaxis": "y2"} for one in second]
        if second:
            about = dict(overlaying="y", side="right", rangemode="tozero", showgrid=False)
            layout["yaxis2"] = about | dict(title=dict(text="share"))
    return _figure("turnover", "Turnover", data, layout)


def fill(history: History) -> Figure | None:
    """How full Ponds, Lake and BigPond were."""
    train, x = history.train, history.x(history.train)
    data = _line(x, train.of("pond_fill"), "Ponds", BLUE)
    data += _line(x, train.of("lake_fill"), "Lake", GREEN)
    data += _line(x, train.of("big_pond_fill"), "BigPond", ORANGE)
    data += _rare(history, "fill", "big_pond_fill", "BigPond", ORANGE)
    if not data:
        return None
    return _figure("fill", "Water levels", data, _axes(history, "share", low=0, high=1))


# --- time ----------------------------------------------------------------------------------------


def speed(history: History) -> Figure | None:
    """Env steps per second; of a mixture frames per second between its lines."""
    found = history.speed
    if "steps_per_second" in found:
        data = _line(history.x(found), found.of("steps_per_second"), "env steps/s", GREEN)
        text = "env steps per second"
    else:
        x, seconds = history.x(found), found.of("seconds")
        took = np.diff(seconds)
        moved = np.diff(x)
        rate = np.divide(
            moved, took, out=np.full(len(took), np.nan), where=(took > 0) & (moved > 0)
        )
        data, text = _line(x[1:], rate, "frames/s", GREEN), "frames per second"
    if not data:
        return None
    return _figure("speed", "Speed", data, _axes(history, text, low=0))


def shares(history: History) -> Figure | None:
    """How the time was spent: by a mixture's phases, or by each process."""
    last = history.last_speed
    if isinstance(last.get("share"), dict):
        rows = {"this sitting": last["share"]}
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
        who = [_words(row) for row in rows]
        data.append(dict(type="bar", name=_words(name), y=who, x=_plain(share), **look))
    layout = _layout("share of time", "")
    layout["barmode"] = "stack"
    layout["xaxis"]["range"] = [0, 1]
    layout["yaxis"] |= dict(type="category", automargin=True)
    return _figure("shares", "Where the time goes", data, layout)


# --- several runs --------------------------------------------------------------------------------


def compared(runs: Sequence[tuple[str, History]]) -> list[Figure]:
    """Greedy returns, returns while training and speed of several runs, each in its colour."""
    points = max(60, min(POINTS, 8000 // max(1, len(runs))))
    found: list[Figure] = []
    wanted: tuple[tuple[str, str, str, str], ...] = (
        ("compare-greedy", "Greedy return", "eval", "return"),
        ("compare-return", "Return while training", "train", "return"),
        ("compare-q", "Mean Q", "train", "q"),
        ("compare-speed", "Env steps per second", "speed", "steps_per_second"),
    )
    for name, title, kind, key in wanted:
        data: list[Any] = []
        for number, (run, history) in enumerate(runs):
            columns: Columns = getattr(history, kind)
            colour, dash = colour_of(number)
            x, y, marks = history.x(columns), columns.of(key), kind == "eval"
            data += _line(x, y, _words(run), colour, marks, dash=dash, points=points)
        if data:
            low = 0 if kind == "speed" else None
            unit = runs[0][1]
            found.append(_figure(name, title, data, _axes(unit, "", low=low)))
    return found


def colour_of(number: int) -> tuple[str, str]:
    """Colour and dash of the n-th of several runs: no two of the first 28 look the same."""
    dashes = ("solid", "dash", "dot", "dashdot")
    return COLOURS[number % len(COLOURS)], dashes[number // len(COLOURS) % len(dashes)]


FIGURES: tuple[Callable[[History], Figure | None], ...] = (
    returns,
    recovery,
    epsilon,
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


# --- parts ---------------------------------------------------------------------------------------


def _figure(name: str, title: str, data: list[Any], layout: Any, note: str = "") -> Figure:
    return {"name": name, "title": title, "note": note, "data": data, "layout": layout}


def _words(name: str) -> str:
    """A name from a run's files as text: Plotly would read tags in it, a link among them."""
    return html.escape(str(name), quote=False)


def _layout(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}


def _axes(
    history: History, y: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    layout = _layout(history.unit, y)
    if low is not None and high is not None:
        layout["yaxis"]["range"] = [low, high]
    elif low == 0:
        layout["yaxis"]["rangemode"] = "tozero"
    return layout


def _plain(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows."""
    array = np.asarray(values, np.float64).tolist()
    return [float(f"{value:.6g}") if value == value else None for value in array]


def _line(
    x: Any,
    y: Any,
    name: str,
    colour: str,
    marks: bool = False,
    width: float = 2,
    dash: str = "solid",
    points: int = POINTS,
) -> list[Any]:
    """One curve, or none if there is nothing to show."""
    x, y = thin(x, y, points)
    if not len(x):
        return []
    few = len(x) <= 60
    mode = "lines+markers" if (marks and few) or len(x) == 1 else "lines"
    trace: dict[str, Any] = dict(type="scatter", mode=mode, name=name)
    trace |= dict(x=np.round(x).astype(np.int64).tolist(), y=_plain(y))
    trace["line"] = dict(color=colour, width=width, dash=dash)
    trace["marker"] = dict(color=colour, size=5)
    return [trace]


def _band(x: Any, low: Any, high: Any, colour: str) -> list[Any]:
    x, low, high = thin_band(x, low, high)
    if not len(x):
        return []
    around = [*x.tolist(), *x[::-1].tolist()]
    border = [*_plain(high), *_plain(low[::-1])]
    look = dict(fill="toself", fillcolor=colour, opacity=0.18, line=dict(width=0, color=colour))
    quiet = dict(mode="lines", hoverinfo="skip", showlegend=False, name="band")
    return [dict(type="scatter", x=around, y=border, **look, **quiet)]


def _rare(history: History, kind: str, key: str, name: str, colour: str) -> list[Any]:
    """Points of lines that come now and then, such as one per cycle."""
    lines = [(history.at(line), _mean(line.get(key))) for line in history.rare.get(kind, [])]
    there = [(x, y) for x, y in lines if y is not None]
    if not there:
        return []
    return _line([x for x, _ in there], [y for _, y in there], name, colour, True, dash="dot")


def _mean(value: Any) -> float | None:
    """Of a number, or of a list of them, however deep."""
    try:
        found = np.asarray(value, np.float64).ravel()
    except (TypeError, ValueError):
        return None
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else None


def _resets(history: History) -> tuple[list[Any], list[Any]]:
    shapes: list[Any] = []
    texts: list[Any] = []
    for reset in history.rare.get("reset", []):
        x = history.at(reset)
        look = dict(color=GREY, width=1, dash="dot")
        shapes.append(dict(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line=look))
        place = dict(x=x, y=1, yref="paper", yanchor="top", xanchor="left", showarrow=False)
        texts.append(dict(text=f"reset {reset.get('cycle')}", font=dict(size=10), **place))
    return shapes, texts


def _level(y: float) -> dict[str, Any]:
    look = dict(color=GREY, width=1, dash="dot")
    return dict(type="line", x0=0, x1=1, xref="paper", y0=y, y1=y, line=look)


def _lag_names() -> list[str]:
    """0, 1, 2–3, 4–7, ..., 512+."""
    names = ["0"]
    for low, after in zip(LAG_EDGES, LAG_EDGES[1:], strict=False):
        names.append(f"{low}" if after == low + 1 else f"{low}–{after - 1}")
    return [*names, f"{LAG_EDGES[-1]}+"]


def _capacity(history: History) -> float:
    """Rows of a DQN's ring, per policy; 0 where there is none."""
    settings = history.settings
    if history.mixture or history.offline or settings.get("agent") != "dqn":
        return 0.0
    return float((settings.get("dqn") or {}).get("capacity") or 0)


def _frames_per_step(history: History) -> float:
    steps, frames = history.train.last("steps"), history.train.last("frames")
    return frames / steps if steps and frames else 0.0
