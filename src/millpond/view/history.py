"""`RunHistory`: everything that a run has written so far, as columns; `look` reads what is new."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import RunRefused
from ..run_folder import LOGGED, OWN_LOOP, read_status
from .columns import MetricColumns
from .tail import Line, Tail
from .x_values import XValues, elapsed

# Keys of config.json, and whether they mark a mixture.
_MARKS = {"millpond_run": False, LOGGED: False, "millpond_mixture": True}
_HEALTH = ("rows", "overwritten", "overwritten_unsampled", "sampled", "stored")
_PLACE = ("steps", "frames")
_WATCHED = (*_PLACE, *_HEALTH, "epsilon_off", "learners")


class Config(NamedTuple):
    """The contents of config.json: whether it is a mixture, the settings, what is learned from."""

    mixture: bool
    settings: Line
    learns: Line  # the fields of Replayed or Rollouts; empty for mixtures


class RunHistory:
    """`history = RunHistory(folder)`, then `history.look()` whenever the run may have written.

    Hold `lock` while reading from it, because the page looks from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        self.mixture, self.settings, self.learns = read_config(path)
        self.status: Line = {"state": "new", "steps": 0}
        self._metrics, self._speed, self._events = (
            Tail(path / f"{name}.jsonl") for name in ("metrics", "speed", "events")
        )
        self._forget_metrics()
        self._forget_speed()
        self.events: list[Line] = []

    def _forget_metrics(self) -> None:
        self.train, self.eval, self.health = (
            MetricColumns(),
            MetricColumns(),
            MetricColumns(_WATCHED),
        )
        self.rare: dict[str, list[Line]] = {}  # resets, fills and so on: few, so kept as lines
        self.lag: np.ndarray | None = None  # rows by the number of updates the policy had missed
        self.last_lag: np.ndarray | None = None
        self.last_health: Line = {}
        self.last: Line = {}

    def _forget_speed(self) -> None:
        self.speed = MetricColumns()
        self._elapsed: tuple[np.ndarray, np.ndarray] | None = None
        self.last_speed: Line = {}

    def look(self) -> None:
        """Read what is new."""
        while True:
            news = self._metrics.read()
            if news.truncated:
                self._forget_metrics()
            self.train.extend([line for line in news.lines if line.get("kind") == "train"])
            evaluations: list[Line] = []
            for line in news.lines:
                self._take(line, evaluations)
            self.eval.extend(evaluations)
            if not news.lines:
                break
        while True:
            news = self._speed.read()
            if news.truncated:
                self._forget_speed()
            if not news.lines:
                break
            self.speed.extend(news.lines)
            self._elapsed = None
            self.last_speed = news.lines[-1]
        news = self._events.read()
        self.events = news.lines if news.truncated else self.events + news.lines
        self.status = read_status(self.path)

    def _take(self, line: Line, evaluations: list[Line]) -> None:
        kind = line.get("kind")
        self.last = line
        if kind == "train":
            return  # taken together in `look`
        if kind == "eval":
            after = len(self.rare.get("reset", ()))
            evaluations.append({**line, "after": after, **_interval(line)})
        elif kind == "health":
            self._take_health(line)
        elif isinstance(kind, str):
            self.rare.setdefault(kind, []).append(line)

    def _take_health(self, line: Line) -> None:
        learners = [one for one in line.get("learners", []) if isinstance(one, dict)]
        total = {name: sum(one.get(name, 0) for one in learners) for name in _HEALTH}
        worst = max((one.get("epsilon_off", 0.0) for one in learners), default=0.0)
        place = {name: line.get(name, 0) for name in _PLACE}
        self.health.add({**place, **total, "epsilon_off": worst, "learners": len(learners)})
        counts = [one["lag"] for one in learners if one.get("lag")]
        if counts:
            self.last_lag = np.sum([np.asarray(one, np.int64) for one in counts], 0)
            before = np.zeros_like(self.last_lag) if self.lag is None else self.lag
            self.lag = before + self.last_lag
        self.last_health = line

    # --- x axis ---------------------------------------------------------------------------------

    @property
    def logged(self) -> bool:
        """Whether the run is logged by a user's own loop."""
        return self.settings.get("mode") == OWN_LOOP

    @property
    def offline(self) -> bool:
        """Whether the run learns from a Lake alone, and so counts updates instead of frames."""
        return bool(self.settings.get("from_lake"))

    @property
    def unit(self) -> str:
        """The unit of the x axis: frames or updates."""
        return "updates" if self.offline else "frames"

    def x_values(self, columns: MetricColumns) -> XValues:
        """The x values of columns."""
        return self._x_values(columns.of("steps"), columns.of("frames"))

    def x_values_of(self, lines: Sequence[Line]) -> XValues:
        """The x values of lines."""
        steps, frames = (
            np.array([float(line.get(name) or 0) for line in lines]) for name in _PLACE
        )
        return self._x_values(steps, frames)

    def _x_values(self, steps: np.ndarray, frames: np.ndarray) -> XValues:
        if self._elapsed is None:
            self._elapsed = elapsed(self.speed.of("steps"), self.speed.of("seconds"))
        at, spent = self._elapsed
        seconds = np.interp(steps, at, spent) if len(at) else None
        return XValues(steps if self.offline else frames, steps, seconds)

    def at(self, line: Line) -> float:
        """The x value of one line."""
        return float(line.get("steps" if self.offline else "frames") or 0)


def _interval(line: Line) -> dict[str, float]:
    """Half the 95% interval of the mean over all policies, if their errors are known."""
    errors = [error for error in line.get("errors", []) if error is not None]
    if not errors or len(errors) < len(line["errors"]):
        return {}
    return {"interval": 1.96 * math.sqrt(sum(error**2 for error in errors)) / len(errors)}


def read_config(path: Path) -> Config:
    """Read a run's config.json; RunRefused if the folder is not a run."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunRefused(
            f"{path} is not a run: it has no readable config.json; millpond runs lists the runs"
        ) from error
    for mark, mixture in _MARKS.items():
        if isinstance(config, dict) and mark in config:
            settings = config.get("settings")
            settings = settings if isinstance(settings, dict) else {}
            return Config(mixture, settings, config.get("learns") or _learned(mark, settings))
    raise RunRefused(f"{path}/config.json was not written by millpond train, mix or run")


def _learned(mark: str, settings: Line) -> Line:
    """What a run of version 0.1, whose config does not state it, learns from."""
    if mark == LOGGED:
        return {}
    if settings.get("agent") != "dqn":
        return {"turns": (settings.get("pqn") or {}).get("rollout", 0)}
    dqn = settings.get("dqn") or {}
    return {"capacity": dqn.get("capacity", 0), "batch": dqn.get("batch", 0)}


def flat(settings: Any, where: str = "") -> dict[str, str]:
    """Settings as a flat dict of texts: `{"pqn.gamma": "0.99"}`."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{where}{name}.")
        else:
            found[f"{where}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def differences(settings: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """The names of settings that differ between runs, each with every run's value."""
    all_flat = [flat(one) for one in settings]
    names = dict.fromkeys(name for one in all_flat for name in one)
    rows = [(name, [one.get(name, "–") for one in all_flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
