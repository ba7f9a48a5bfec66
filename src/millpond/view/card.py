"""`card(folder, ...)`: a run's status, read from the ends of its files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..run_folder import OWN_LOOP, read_status
from .tail import Line, last_lines

_RECENT = 30  # newest lines of speed.jsonl, from which the pace is computed


def card(path: Path, mixture: bool, settings: Line) -> dict[str, Any]:
    """State, phase, progress, pace and time left; the cost does not depend on the run's length.

    A run whose files cannot be understood gets the state `unreadable`.
    """
    try:
        return _card(path, mixture, settings)
    except (TypeError, ValueError, AttributeError) as error:
        plain = _card(path / "nowhere", mixture, {})
        why = f"its files are not those of a run: {error}"
        return plain | {"state": "unreadable", "why": why}


def _card(path: Path, mixture: bool, settings: Line) -> dict[str, Any]:
    metrics, speed = last_lines(path / "metrics.jsonl"), last_lines(path / "speed.jsonl")
    status = read_status(path)
    offline = bool(settings.get("from_lake"))
    at = "frames" if mixture else "steps"
    last = metrics[-1] if metrics else {}
    done = max(float(last.get(at, 0)), float(status["steps"]))
    total = float(settings.get(at) or 0)
    progress = min(1.0, done / total) if total else 0.0
    if status["state"] == "finished":
        progress = 1.0
    evals = [line for line in metrics if line.get("kind") == "eval"]
    frames = float(last.get("steps" if offline else "frames", 0) or 0)
    running = status["state"] == "running"
    pace = pace_of(speed, at)
    left = (total - done) / pace if running and pace and total > done else None
    mode = "mixture" if mixture else str(settings.get("mode", "fused"))
    return {
        "env": str(settings.get("env", "")),
        "agent": "mixture" if mixture else str(settings.get("agent", "")),
        "mode": mode,
        "seed": settings.get("seed"),
        "state": status["state"],
        "why": status.get("why", ""),
        "traceback": status.get("traceback", ""),
        "phase": phase_of(last, mixture) if running and mode != OWN_LOOP else "",
        "progress": progress,
        "x": frames,
        "unit": "updates" if offline else "frames",
        "pace": pace * frames / done if pace and done else None,  # in `unit` per second
        "left_s": left,
        "greedy": evals[-1].get("return") if evals else None,
        "big": evals[-1].get("big_return") if evals else None,
        "cycle": last.get("cycle"),
    }


def pace_of(speed: list[Line], at: str) -> float | None:
    """Recent steps per second, or frames for a mixture; None if unknown.

    A mixture's frames pause in some phases, so its pace is the mean of this session.
    """
    ends = [(float(x.get("seconds") or 0), float(x.get(at) or 0)) for x in speed]
    begin = len(ends) - 1
    while begin > 0 and ends[begin - 1][0] < ends[begin][0]:  # seconds restart at 0 on a resume
        begin -= 1
    ends = ends[begin:]
    if at != "frames":
        ends = ends[-_RECENT:]
    if not ends:
        return None
    (first_s, first), (last_s, last) = ends[0], ends[-1]
    if last_s > first_s and last > first:
        return (last - first) / (last_s - first_s)
    return last / last_s if last_s > 0 and last > 0 and begin == 0 else None


def phase_of(last: Line, mixture: bool) -> str:
    """What a run is doing, judged by the last line of its metrics."""
    kind = last.get("kind")
    if kind is None:
        return "compiling"
    if not mixture:
        return "learning" if last.get("updates") or kind != "train" else "filling replay"
    if kind == "eval":
        return {"before": "fill", "final": "done"}.get(str(last.get("when")), "agents")
    if kind == "fill":
        return "big"
    after = {"recovery": "fill", "big": "clone", "big_eval": "big", "measure": "clone"}
    return after.get(str(kind), "agents")
