"""The report of a comparison: `report.html`, one file that works offline, and `report.png`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..extras import require
from .arm_figures import RELATIVE, arm_figures, band, relative
from .markup import panel, safe, table
from .offline import offline_page

_COLOURS = ("#1f6f8b", "#d1603d", "#5b8e3e", "#8a5aa3", "#b8952a", "#555555")
_DASHES = ("-", "--", ":", "-.")
_PANELS = 4  # most panels side by side in the picture

Plain = dict[str, Any]


def arms_table(results: Plain) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows of the table of arms."""
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
    """Column heads and rows of the table of pairs."""
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


def grid_table(results: Plain) -> tuple[list[str], list[list[str]]] | None:
    """Column heads and rows of a sweep, best arm first; None without a grid."""
    arms = [arm for arm in results["arms"] if arm.get("values")]
    if not arms:
        return None
    keys = list(dict.fromkeys(key for arm in arms for key in arm["values"]))
    heads = ["arm", *keys, "IQM", "95%", "mean", "seeds"]
    rows = [
        [
            arm["name"],
            *(f"{arm['values'].get(key, '-')}" for key in keys),
            f"{arm['iqm']:.3f}",
            _span(arm["interval"]),
            f"{arm['mean']:.3f}",
            f"{len(arm['scores'])}",
        ]
        for arm in sorted(arms, key=lambda arm: -arm["iqm"])
    ]
    return heads, rows


def save_report(path: Path, results: Plain) -> None:
    """Write the HTML file, which includes plotly.js and so needs no network."""
    require("a report", "view", "plotly")
    swept = grid_table(results)
    arms = table(*arms_table(results))
    parts = [panel("Sweep", table(*swept))] if swept else []
    pairs = table(*pairs_table(results)) if results["pairs"] else ""
    parts.append('<div class="charts" data-charts="0"></div>')
    note = f'<p class="note">{safe(_NOTE)}</p>'
    scores = panel("Scores", f"{note}{arms}{pairs}")
    parts.insert(len(parts) if swept else 0, scores)
    page = offline_page(_title(results), parts, [arm_figures(results, unit_of(results))])
    path.write_text(page, encoding="utf-8")


def save_picture(path: Path, results: Plain) -> None:
    """Write the PNG: curves by frames, scores with intervals, every reset."""
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
    title, unit = "greedy play, mean over seeds", unit_of(results)
    axes[0].set(title=title, xlabel="frames of one seed", ylabel=unit)
    axes[0].legend(fontsize="medium" if len(arms) <= len(_COLOURS) else 7)
    axes[1].set(title="final score: IQM and 95%", xlabel=unit)
    for place, arm in zip(axes[2:panels], with_resets, strict=True):
        for reset in arm["resets"]:
            x, y = relative(reset)
            place.plot(x, y, label=f"reset {reset['cycle']}")
        place.axhline(0, color="#999999", linewidth=1)
        place.set(title=f"{arm['name']}: after each reset", xlabel="frames since", ylabel=RELATIVE)
        place.legend(fontsize=7)
    for place in axes[panels:]:
        place.set_axis_off()
    figure.suptitle(_title(results))
    figure.savefig(path, dpi=110)


_NOTE = (
    "Score: mean greedy return of a seed's agents at the end, on episodes that were not used to "
    "choose anything. With a scripted player it is normalised and averaged over the last three "
    "evaluations. The BigAgent's score is given separately. IQM: mean of the middle half of the "
    "seeds. Intervals: 95%, by stratified bootstrap unless marked Welch. P(better): the "
    "probability that a seed of the first arm scores higher than one of the second. Bands in the "
    "curves: the middle half of the seeds."
)


def _title(results: Plain) -> str:
    arms = results["arms"]
    names = " vs ".join(arm["name"] for arm in arms)
    if len(arms) > len(_COLOURS):
        names = f"{len(arms)} arms"
    seeds = "1 seed" if results["seeds"] == 1 else f"{results['seeds']} seeds"
    return f"{results['env']}, {results['frames']:,} frames, {seeds}: {names}"


def unit_of(results: Plain) -> str:
    """The unit of the scores; only normalised ones come with a worst agent."""
    normalised = all("worst_agent" in arm for arm in results["arms"])
    return "normalised score" if normalised else "return"


def _span(limits: Any) -> str:
    low, high = limits
    return f"[{low:.3f},\u00a0{high:.3f}]"  # no line break inside


def _cycle(number: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(number)]


def _looks(number: int) -> list[dict[str, str]]:
    """Colours, with other dashes when the colours repeat."""
    dashes = [_DASHES[i // len(_COLOURS) % len(_DASHES)] for i in range(number)]
    pairs = zip(_cycle(number), dashes, strict=True)
    return [{"color": colour, "linestyle": dash} for colour, dash in pairs]
