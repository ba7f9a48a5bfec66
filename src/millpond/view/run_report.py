"""The report of one or several runs: one HTML file that works offline, and its figures as PNGs.

It shows the same figures as the live page, in the same style.
"""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import MillpondError, RunFailed, RunRefused
from ..extras import require
from ..mixture.params import load_params, open_everyone
from ..plugins import failure
from ..train.film import film
from .checkup import verdicts_of
from .figures import Figure, figures_of
from .history import RunHistory, differences, flat
from .markup import panel, safe, table
from .offline import offline_page
from .parallel import comparison
from .picture import save_figure
from .processes import processes
from .sketch import Sketch
from .summary import summary
from .water import water

_TURNS = 300  # most turns of the film


def read_runs(folders: Sequence[Path]) -> list[tuple[str, RunHistory]]:
    """Read the histories of runs, with their names; a run without an evaluation is refused.

    A run that is logged by a user's own loop needs only one line of metrics.
    """
    found: list[tuple[str, RunHistory]] = []
    for folder in folders:
        history = RunHistory(folder)
        history.look()
        if not len(history.eval) and not (history.logged and len(history.train)):
            raise RunRefused(
                f"{folder} has no evaluation yet, so there is nothing to report; let it train "
                "longer (meanwhile, millpond watch shows it), or resume it"
            )
        found.append((folder.resolve().name, history))
    return found


def save_run_report(
    path: Path, runs: Sequence[tuple[str, RunHistory]], with_film: bool
) -> list[Path]:
    """Write the page and, in a folder next to it, every figure as a PNG; returns their paths."""
    require("a report", "view", "plotly", "matplotlib")
    figures: list[list[Figure]] = []
    waters: list[Any] = []
    parts: list[str] = []
    if len(runs) > 1:
        sketches = [(name, Sketch.of(history)) for name, history in runs]
        parts.append(_compared(sketches))
        rows = differences([sketch.settings for _, sketch in sketches])
        figures.append(comparison(sketches, rows))
    for name, history in runs:
        if len(runs) > 1:
            parts.append(f"<h2>{safe(name)}</h2>")
        parts.append(_one(history, len(figures), len(waters), with_film))
        figures.append(figures_of(history))
        waters.append(water(history))
    title = " and ".join(name for name, _ in runs) if len(runs) < 3 else f"{len(runs)} runs"
    heads = ["compared"] if len(runs) > 1 else []
    names = _unique([*heads, *(name for name, _ in runs)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(offline_page(title, parts, figures, waters), "utf-8")
        return [path, *_pictures(path, names, figures)]
    except OSError as error:
        raise RunFailed(
            f"report: could not write {path}: {error.strerror}; choose another place with -o"
        ) from error


def _pictures(path: Path, names: list[str], figures: list[list[Figure]]) -> list[Path]:
    folder = path.with_name(f"{path.stem}-figures")
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    for name, some in zip(names, figures, strict=True):
        for figure in (one for one in some if not one.get("more")):
            target = folder / f"{name}-{figure['name']}.png"
            save_figure(target, figure)
            written.append(target)
    return written


def _compared(runs: Sequence[tuple[str, Sketch]]) -> str:
    sums = [dict(sketch.summary) for _, sketch in runs]
    keys = list(dict.fromkeys(key for one in sums for key in one if key != "why"))
    rows = [
        [name, *(one.get(key, "–") for key in keys)]
        for (name, _), one in zip(runs, sums, strict=True)
    ]
    differ = differences([sketch.settings for _, sketch in runs])
    lines = [[name, *values] for name, values in differ]
    settings = (
        table(["setting", *(name for name, _ in runs)], lines)
        if lines
        else '<p class="note">All settings are the same.</p>'
    )
    return (
        panel(f"{len(runs)} runs compared", table(["run", *keys], rows))
        + '<div class="charts" data-charts="0" data-seeds></div>'
        + '<details class="panel config"><summary><h3>Settings that differ</h3></summary>'
        + f'<div class="scroll">{settings}</div></details>'
    )


def _one(history: RunHistory, charts: int, water_at: int, with_film: bool) -> str:
    facts = "".join(
        f"<div><dt>{safe(key)}</dt><dd>{safe(value)}</dd></div>" for key, value in summary(history)
    )
    about = f'<p class="note">{safe(water(history)["about"])}</p>'
    config = table(["setting", "value"], [list(pair) for pair in flat(history.settings).items()])
    film_box = _film(history.path) if with_film else ""
    return "".join(
        [
            f'<section class="panel head"><dl class="facts">{facts}</dl></section>',
            panel("Water", f'<div class="water-box" data-water="{water_at}"></div>{about}'),
            f'<div class="charts" data-charts="{charts}"></div>',
            panel("Doctor", _doctor(history.path), "doctor"),
            film_box,
            panel("Processes", _processes(history)),
            '<details class="panel config"><summary><h3>Settings</h3></summary>',
            f'<div class="scroll">{config}</div></details>',
        ]
    )


def _doctor(path: Path) -> str:
    rows: list[str] = []
    for one in verdicts_of(path):
        evidence = dict(one["evidence"])
        traceback = safe(evidence.pop("traceback", ""))
        numbers = ", ".join(f"{key} {value}" for key, value in evidence.items())
        whole = (
            f'<details><summary>traceback</summary><pre class="scroll">{traceback}</pre></details>'
        )
        remedy = f'<p class="remedy">What to do: {safe(one["remedy"])}</p>' if one["remedy"] else ""
        rows.append(
            f'<div class="verdict" data-state="{safe(one["state"])}">'
            f'<span class="mark">{safe(one["state"])}</span><div>'
            f"<p><strong>{safe(one['name'])}</strong> {safe(one['message'])}</p>{remedy}"
            f'<p class="note">{safe(numbers)}</p>{whole if traceback else ""}</div></div>'
        )
    return f"<div>{''.join(rows)}</div>"


def _processes(history: RunHistory) -> str:
    rows: list[list[str]] = []
    for row in processes(history):
        shares = ", ".join(f"{key} {share:.0%}" for key, share in row["shares"].items())
        rows.append([row["name"], row["health"], str(row["losses"]), shares or "–", row["why"]])
    return table(["process", "health", "lost", "time", "last message"], rows)


def _film(path: Path) -> str:
    """A panel with the newest checkpoint's film, or the reason why there is none."""
    try:
        run = open_everyone(path)
        kept = run.checkpoint()
        with tempfile.TemporaryDirectory(prefix="millpond-film-") as folder:
            target = Path(folder) / "film.gif"
            film(run.settings, load_params(run, kept.path), target, turns=_TURNS)
            data = base64.b64encode(target.read_bytes()).decode()
    except Exception as error:  # a user's env may raise anything; the report continues
        why = f"{error}" if isinstance(error, (MillpondError, OSError)) else failure(error)
        return panel("The agent playing", f'<p class="note">No film: {safe(why)}</p>')
    words = f"One greedy episode of the checkpoint at {kept.steps:,}"
    picture = f'<img alt="{words}" src="data:image/gif;base64,{data}">'
    inside = f'<div class="film">{picture}<p class="note">{words}.</p></div>'
    return panel("The agent playing", inside)


def _unique(names: Sequence[str]) -> list[str]:
    """Distinct names that are safe for files."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".") or "run"
        number, one = 2, plain
        while one in found:
            one, number = f"{plain}-{number}", number + 1
        found.append(one)
    return found
