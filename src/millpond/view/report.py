"""A comparison as pictures: `report.html`, one file that works offline, and `report.png`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..extras import require
from .markup import panel, safe, table
from .server import page_file

_COLOURS = ("#1f6f8b", "#d1603d", "#5b8e3e", "#8a5aa3", "#b8952a", "#555555")
_DASHES = ("-", "--", ":", "-.")
_PANELS = 4  # side by side in a picture

Plain = dict[str, Any]


def arms_table(results: Plain) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of arms."""
    heads = [
        "arm",
        "what",
        "seeds",
        "mean",
        "IQM",
        "95%",
        "agents",
        "BigAgent",
        "least",
        "frames",
        "gradient steps",
        "row updates",
    ]
    rows = [
        [
            arm["name"],
            arm["about"],
            f"{len(arm['scores'])}",
            f"{arm['mean']:.3f}",
            f"{arm['iqm']:.3f}",
            _span(arm["interval"]),
            f"{arm['agents_mean']:.2f}" if "agents_mean" in arm else "-",
            f"{arm['big_mean']:.2f}" if "big_mean" in arm else "-",
            f"{arm['worst_agent']:.3f}" if "worst_agent" in arm else "-",
            f"{arm['frames']:,.0f}",
            f"{arm['gradient_steps']:,.0f}",
            f"{arm['row_updates']:,.0f}",
        ]
        for arm in results["arms"]
    ]
    return heads, rows


def pairs_table(results: Plain) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of pairs."""
    heads = ["pair", "P(better)", "95%", "difference of means", "95% (Welch)", "95% (bootstrap)"]
    rows = [
        [
            f"{pair['of']} over {pair['over']}",
            f"{pair['probability']:.2f}",
            _span(pair["probability_interval"]),
            f"{pair['difference']:+.3f}",
            _span(pair["welch"]),
            _span(pair["bootstrap"]),
        ]
        for pair in results["pairs"]
    ]
    return heads, rows


def save_report(path: Path, results: Plain) -> None:
    """One HTML file with plotly.js inside it: no network is needed to look at it."""
    require("a report", "view", "plotly")
    from plotly.offline import get_plotlyjs

    tables = table(*arms_table(results))
    if results["pairs"]:
        tables += table(*pairs_table(results))
    parts = [panel("Scores", f'<p class="note">{safe(_NOTE)}</p>{tables}')]
    for figure in (_curves(results), _scores(results), *_resets(results)):
        title, figure.layout.title = figure.layout.title.text, None
        figure.update_layout(template="plotly_white", margin=dict(l=60, r=20, t=20, b=50))
        config = {"displaylogo": False, "responsive": True}
        drawn = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
        parts.append(panel(title, drawn))
    title = safe(_title(results))
    page = (
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{page_file('page.css')}</style>"
        f"<script>{get_plotlyjs()}</script></head>"
        f'<body><main class="report"><h1>{title}</h1>{"".join(parts)}</main></body></html>\n'
    )
    path.write_text(page, encoding="utf-8")


def save_picture(path: Path, results: Plain) -> None:
    """The same as a PNG: curves by frames, scores with their intervals, every reset."""
    require("a picture", "view", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    arms = results["arms"]
    with_resets = [arm for arm in arms if arm.get("resets")]
    panels = 2 + len(with_resets)
    columns = min(panels, _PANELS)
    rows = -(-panels // columns)
    heights = [max(4.2, 0.3 * len(arms)), *[4.2] * (rows - 1)]
    figure = Figure(figsize=(5.5 * columns, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).ravel()
    for look, arm in zip(_looks(len(arms)), arms, strict=True):
        x, middle, low, high = band(arm["curve"])
        axes[0].plot(x, middle, **look, label=arm["name"])
        axes[0].fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
        at = [arm["iqm"]]
        reach = [[arm["iqm"] - arm["interval"][0]], [arm["interval"][1] - arm["iqm"]]]
        axes[1].errorbar(at, [arm["name"]], xerr=reach, color=look["color"], marker="o", capsize=4)
        axes[1].plot(arm["scores"], [arm["name"]] * len(arm["scores"]), ".", color="#999999")
    title, unit = "greedy play, mean over seeds", _unit(results)
    axes[0].set(title=title, xlabel="frames of one seed", ylabel=unit)
    axes[0].legend(fontsize="medium" if len(arms) <= len(_COLOURS) else 7)
    axes[1].set(title="final score: IQM and 95%", xlabel=unit)
    for place, arm in zip(axes[2:panels], with_resets, strict=True):
        for reset in arm["resets"]:
            x, y = relative(reset)
            place.plot(x, y, label=f"reset {reset['cycle']}")
        place.axhline(0, color="#999999", linewidth=1)
        place.set(title=f"{arm['name']}: after each reset", xlabel="frames since", ylabel=_RELATIVE)
        place.legend(fontsize=7)
    for place in axes[panels:]:
        place.set_axis_off()
    figure.suptitle(_title(results))
    figure.savefig(path, dpi=110)


def band(curve: list[Any]) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Frames, the mean over seeds, and the lowest and highest quarter's borders."""
    values = np.array([by_seed for _, by_seed in curve], np.float64)
    low, high = np.percentile(values, [25, 75], axis=1)
    return [frames for frames, _ in curve], values.mean(1), low, high


def relative(reset: Plain) -> tuple[list[float], list[float]]:
    """Frames since a reset, and mean return less the mean return before it."""
    target = float(np.mean(reset["target"]))
    points = reset["points"]
    return [x for x, _ in points], [float(np.mean(ys)) - target for _, ys in points]


_RELATIVE = "return less that before the reset"
_NOTE = (
    "Score: mean greedy return of a seed's agents after the last frame, normalised where there is "
    "a scripted player (then over the last three evaluations), on episodes that were not used to "
    "choose anything; the BigAgent's score is given separately. IQM: mean of the middle half of "
    "the seeds. Intervals: 95%, stratified bootstrap, or Welch's where it says so. P(better): that "
    "a seed of the first arm scores higher than one of the second. Bands in the curves: the middle "
    "half of the seeds."
)


def _title(results: Plain) -> str:
    arms = results["arms"]
    names = " vs ".join(arm["name"] for arm in arms)
    if len(arms) > len(_COLOURS):
        names = f"{len(arms)} arms"
    seeds = "1 seed" if results["seeds"] == 1 else f"{results['seeds']} seeds"
    return f"{results['env']}, {results['frames']:,} frames, {seeds}: {names}"


def _unit(results: Plain) -> str:
    """What a score is. Only normalised ones tell of the least agent."""
    normalised = all("worst_agent" in arm for arm in results["arms"])
    return "normalised score" if normalised else "return"


def _span(limits: Any) -> str:
    low, high = limits
    return f"[{low:.3f},\u00a0{high:.3f}]"  # never broken in two


def _cycle(number: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(number)]


def _looks(number: int) -> list[dict[str, str]]:
    """Colours, and other dashes where they begin again."""
    dashes = [_DASHES[i // len(_COLOURS) % len(_DASHES)] for i in range(number)]
    pairs = zip(_cycle(number), dashes, strict=True)
    return [{"color": colour, "linestyle": dash} for colour, dash in pairs]


def _curves(results: Plain) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for colour, arm in zip(_cycle(len(results["arms"])), results["arms"], strict=True):
        x, middle, low, high = band(arm["curve"])
        around = dict(x=[*x, *x[::-1]], y=[*high, *low[::-1]], hoverinfo="skip")
        look = dict(fill="toself", opacity=0.2, line=dict(width=0), showlegend=False)
        figure.add_scatter(**around, **look, fillcolor=colour)
        figure.add_scatter(x=x, y=middle, name=arm["name"], line=dict(color=colour))
        if "big_curve" in arm:
            x, middle, _, _ = band(arm["big_curve"])
            dashed = dict(color=colour, dash="dot")
            figure.add_scatter(x=x, y=middle, name=f"{arm['name']}: BigAgent", line=dashed)
    title, unit = "Greedy play, mean over seeds", _unit(results)
    figure.update_layout(title=title, xaxis_title="frames of one seed", yaxis_title=unit)
    return figure


def _scores(results: Plain) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for colour, arm in zip(_cycle(len(results["arms"])), results["arms"], strict=True):
        low, high = arm["interval"]
        reach = dict(type="data", array=[high - arm["iqm"]], arrayminus=[arm["iqm"] - low])
        mark = dict(color=colour, size=11)
        name = [arm["name"]]
        figure.add_scatter(x=[arm["iqm"]], y=name, error_x=reach, marker=mark, name=arm["name"])
        each = dict(color=colour, size=5, opacity=0.5)
        seeds = name * len(arm["scores"])
        figure.add_scatter(x=arm["scores"], y=seeds, mode="markers", marker=each, showlegend=False)
    title, unit = "Final score: IQM, 95% interval, every seed", _unit(results)
    figure.update_layout(title=title, xaxis_title=unit)
    return figure


def _resets(results: Plain) -> list[Any]:
    import plotly.graph_objects as go

    figures: list[Any] = []
    for arm in (arm for arm in results["arms"] if arm.get("resets")):
        figure = go.Figure()
        for reset in arm["resets"]:
            x, y = relative(reset)
            figure.add_scatter(x=x, y=y, name=f"reset {reset['cycle']}")
        figure.add_hline(0)
        title = f"{arm['name']}: recovery after every reset"
        figure.update_layout(title=title, xaxis_title="frames since", yaxis_title=_RELATIVE)
        figures.append(figure)
    return figures
