"""`summary(history)`: the facts about a run at the top of the page and the report."""

from __future__ import annotations

import numpy as np

from .history import RunHistory

_LATE = 20  # returns averaged for a run without evaluations


def summary(history: RunHistory) -> list[tuple[str, str]]:
    """Pairs of name and value."""
    settings, judged = history.settings, history.eval
    agent = "mixture" if history.mixture else str(settings.get("agent"))
    rows = [("env", str(settings.get("env")) or "–"), ("agent", agent or "–")]
    rows.append(("state", str(history.status["state"])))
    if why := history.status.get("why"):
        rows.append(("why", str(why)))
    rows.append((history.unit, f"{history.at(history.last):,.0f}"))
    last = judged.last("return")
    if last is not None:
        best = float(np.nanmax(judged.of("return")))
        half = judged.last("interval")
        error = f" ± {half:.2f}" if half is not None else ""
        rows += [("greedy return", f"{last:.2f}{error}"), ("best greedy return", f"{best:.2f}")]
    elif history.logged and len(late := _known(history.train.of("return"))[-_LATE:]):
        rows.append((f"return while training, last {len(late)}", f"{late.mean():.2f}"))
    big = judged.last("big_return")
    if big is not None:
        rows.append(("BigAgent", f"{big:.2f}"))
    if resets := history.rare.get("reset"):
        rows.append(("resets", str(len(resets))))
    updates = history.train.last("updates")
    if updates is not None:
        rows.append(("updates", f"{updates:,.0f}"))
    seconds = history.speed.of("seconds")
    if len(seconds):
        # Seconds restart at 0 whenever the run is resumed.
        ends = seconds[np.append(np.diff(seconds) < 0, True)]
        rows.append(("time", _time(float(ends.sum()))))
    seed = settings.get("seed")
    rows.append(("seed", "–" if seed is None else str(seed)))
    return rows


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _time(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
