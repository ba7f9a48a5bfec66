"""`Checkup`: the doctor's verdicts on a run, cached until its files change."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from ..doctor import Evidence, examine, examine_logged, examine_mixture
from ..doctor.examine import folded
from ..doctor.random_player import known_chance
from ..errors import MillpondError
from ..logged import LoggedRun
from ..mixture import MixRun, is_mixture
from ..run_folder import is_logged
from ..train import Run

_FILES = ("metrics.jsonl", "speed.jsonl", "events.jsonl", "status.json", "random.json")
_REST = 100.0  # pause before the next checkup, in durations of the last: at most 1% of a core


class Checkup:
    """`checkup(path)`: verdicts as plain values, worst first. It never writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[Any, float, list[dict[str, Any]]]] = {}

    def __call__(self, path: Path) -> list[dict[str, Any]]:
        with self._lock:
            stamp = tuple(_stamp(path / name) for name in _FILES)
            before, again, verdicts = self._known.get(path, (None, 0.0, []))
            began = time.monotonic()
            if stamp == before or began < again:
                return verdicts
            verdicts = verdicts_of(path)
            took = time.monotonic() - began
            self._known[path] = stamp, began + _REST * took, verdicts
            return verdicts


def verdicts_of(path: Path) -> list[dict[str, Any]]:
    """The verdicts of all checks that apply to a run or mixture."""
    try:
        if is_mixture(path):
            return [verdict._asdict() for verdict in examine_mixture(MixRun.open(path))]
        if is_logged(path):
            return [one._asdict() for one in folded(examine_logged(LoggedRun.open(path)))]
        run = Run.open(path)
        evidence = Evidence.of(run)
        evidence.chance = known_chance(run)
        return [verdict._asdict() for verdict in folded(examine(evidence))]
    except (MillpondError, LookupError, TypeError, ValueError, OSError) as error:
        # The page works without the doctor, and shows the reason in place of its verdicts.
        why = f"the doctor could not read this run: {type(error).__name__}: {error}"
        return [dict(name="doctor", state="unknown", message=why, evidence={}, remedy="")]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)
