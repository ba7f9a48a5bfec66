"""`run`: log your own training loop, so that runs, watch, report and doctor work with it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..curve import save_curve
from ..errors import BadConfig, NotInstalled, RunFailed, RunRefused
from ..metrics import Metrics, make_sink, read_metrics
from ..replay import HostPond, Pond, PondState
from ..run_folder import OWN_LOOP, lock_folder, write_status
from .folder import LoggedRun
from .plain import plain_config, plain_metrics, plain_number
from .pond_look import look
from .watched_pond import WatchedPond

_SAY_S = 2.0  # seconds between two writes of the status, which waits for the disk
_PACE_S = 1.0  # seconds between two writes of the speed
_ROWS = 1000  # rows added or drawn between two reports on a watched pond


def run(
    name: str,
    *,
    env: str = "",
    agent: str = "",
    seed: int | None = None,
    steps: int = 0,
    config: Any = None,
    root: str | Path = "runs",
    frames_per_step: int = 1,
    track: str = "",
) -> Logger:
    """Log your own loop to runs/NAME, or to NAME-2 and so on if that exists.

        with millpond.run("my-dqn", env="CartPole-v1", seed=1, steps=50_000, config=args) as run:
            pond = run.watch(pond)
            run.log(step, loss=loss, episode_return=total)

    `millpond runs`, `watch`, `report` and `doctor` treat it like any other run. An exception in the
    block marks it as failed and is raised unchanged. `steps` is the planned number of env steps, if
    known; `track` also sends the metrics to tensorboard, wandb or mlflow.
    """
    for what, number, least in (("steps", steps, 0), ("frames_per_step", frames_per_step, 1)):
        if not isinstance(number, (int, np.integer)) or number < least:
            raise BadConfig(f"run: {what} must be a whole number >= {least}, got {number!r}")
    settings = {
        "env": str(env),
        "agent": str(agent),
        "seed": None if seed is None else int(seed),
        "steps": int(steps),
        "mode": OWN_LOOP,
        "config": plain_config(config),
    }
    path = _new_folder(Path(root), name)
    return Logger(LoggedRun.create(path, settings), int(frames_per_step), track)


class Logger:
    """A run in progress, from `millpond.run`. `log` may be called from several threads."""

    def __init__(self, logged: LoggedRun, frames_per_step: int, track: str) -> None:
        self.logged, self.path, self._frames = logged, logged.path, frames_per_step
        self._pid, self._mutex = os.getpid(), threading.RLock()
        self._lock: int | None = lock_folder(self.path)
        self._step, self._watched = 0, list[WatchedPond]()
        self._began = self._paced = self._said = time.monotonic()
        self._paced_step = 0
        write_status(self.path, "running", 0)
        try:
            sinks = [make_sink(track, self.path, self.path.name)] if track else []
        except BaseException as error:
            self._end("failed", f"{type(error).__name__}: {error}")
            raise
        self._metrics = Metrics(logged.metrics, sinks)
        self._speed = Metrics(logged.speed)

    def log(self, step: int, values: Mapping[str, Any] | None = None, /, **metrics: Any) -> None:
        """Log metrics at an env step: `run.log(step, loss=0.3, episode_return=21.0)`.

        A dict takes names that are not identifiers: `run.log(step, {"td/q": q})`. Steps may repeat
        but not decrease.
        """
        with self._mutex:
            self._write("train", step, plain_metrics({**(values or {}), **metrics}))
            if any(pond.news >= _ROWS for pond in self._watched):
                self._write_health()
            self._write_progress()

    def evaluated(self, step: int, returns: Any) -> None:
        """Log the returns of greedy episodes at an env step: a point of the learning curve."""
        found = plain_number("returns", returns)
        several = found if isinstance(found, list) else [found]
        if not several or not all(isinstance(value, (int, float)) for value in several):
            raise BadConfig(
                f"evaluated: returns must be one number per episode, got {returns!r}; give a list"
            )
        episodes = np.asarray(several, np.float64)
        mean = float(episodes.mean())
        known = len(episodes) > 1
        error = float(episodes.std(ddof=1) / np.sqrt(len(episodes))) if known else None
        line = {"return": mean, "returns": [mean], "errors": [error], "least": mean}
        with self._mutex:
            self._write("eval", step, {**line, "episodes": len(episodes), "unfinished": 0})

    def watch(self, pond: HostPond) -> WatchedPond:
        """Let the doctor check a pond; use the returned WatchedPond in place of `pond`."""
        self._check()
        if isinstance(pond, Pond):
            raise BadConfig(
                "watch: a Pond is used inside jit, where it cannot be watched; call "
                "run.look(pond, state) now and then instead"
            )
        if not isinstance(pond, HostPond):
            raise BadConfig(
                f"watch: expected a HostPond, got {type(pond).__name__}; omit the call, everything "
                "else is logged without it"
            )
        watched = WatchedPond(pond)
        self._watched.append(watched)
        return watched

    def look(self, pond: Pond, state: PondState) -> None:
        """Check what a Pond holds now: borders, faults, and sampled returns.

        It copies the ring to the host, so call it only now and then.
        """
        with self._mutex:
            self._check()
            found = look(pond, state)
            self._metrics.write("health", *self._place(), {"learners": [found]})

    def close(self) -> None:
        """Mark the run as finished. Leaving the `with` block does this."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid or self._lock is None:
            return  # closed already, or a forked child leaves the block
        ended = _how_it_ended(kind, error, trace)
        with self._mutex, contextlib.ExitStack() as last:
            if error is not None:  # an error of ours must not hide the user's
                last.enter_context(contextlib.suppress(Exception))
            last.callback(self._end, *ended)
            last.callback(self._speed.close)
            last.callback(self._metrics.close)
            if any(pond.news for pond in self._watched):
                self._write_health()
            self._pace()
            self._draw_curve()

    # --- writing --------------------------------------------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RunRefused(
                f"{self.path} is logged by process {self._pid}, but this is its child "
                f"{os.getpid()}; log in the parent, or start a run of its own in every process"
            )
        if self._lock is None:
            raise RunRefused(f"{self.path} is closed; start another run with millpond.run")

    def _place(self) -> tuple[int, int]:
        return self._step, self._step * self._frames

    def _write(self, kind: str, step: Any, values: dict[str, Any]) -> None:
        self._check()
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < self._step:
            raise BadConfig(
                f"log: step must be a whole number of at least {self._step:,}, got {step!r}; give "
                "the number of env steps so far"
            )
        self._step = int(step)
        self._metrics.write(kind, *self._place(), values)

    def _write_health(self) -> None:
        evidence = [pond.report() for pond in self._watched]
        self._metrics.write("health", *self._place(), {"learners": evidence})

    def _write_progress(self) -> None:
        now = time.monotonic()
        if now - self._paced >= _PACE_S:
            self._pace()
        if now - self._said >= _SAY_S:
            self._said = now
            write_status(self.path, "running", self._step)

    def _pace(self) -> None:
        now = time.monotonic()
        took, steps = now - self._paced, self._step - self._paced_step
        if steps <= 0:
            return
        pace = {"seconds": now - self._began, "steps_per_second": steps / max(took, 1e-9)}
        self._speed.write("speed", *self._place(), pace)
        self._paced, self._paced_step = now, self._step

    def _draw_curve(self) -> None:
        """Draw the greedy returns, or the returns while training if there are none."""
        for kind, what in (("eval", "greedy return"), ("train", "return while training")):
            lines = read_metrics(self.logged.metrics, kind)
            points = [(one["steps"], one["return"]) for one in lines if _is_point(one)]
            if points:
                steps, returns = zip(*points, strict=True)
                title = f"{self.path.name}: {what} by env steps"
                target = self.path / "curve.png"
                try:
                    save_curve(target, steps, returns, title, "env steps", "return")
                except NotInstalled:  # without the extra `view` there is no picture
                    return
                except OSError as error:
                    raise RunFailed(
                        f"could not draw {target}: {error.strerror}; the metrics are intact"
                    ) from error
                return

    def _end(self, state: str, why: str, where: str = "") -> None:
        lock, self._lock = self._lock, None
        try:
            write_status(self.path, state, self._step, why, where)
        finally:
            if lock is not None:
                os.close(lock)


def _is_point(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("return"), (int, float))


def _how_it_ended(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> tuple[str, str, str]:
    """The state, reason and traceback to record."""
    if kind is None or (isinstance(error, SystemExit) and not error.code):
        return "finished", "", ""
    if issubclass(kind, KeyboardInterrupt):
        return "stopped", "", ""
    text = "".join(traceback.format_exception(kind, error, trace))
    return "failed", f"{kind.__name__}: {error}", text


def _new_folder(root: Path, name: str) -> Path:
    """Create a new folder; runs that start at the same time get different ones."""
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise BadConfig(
            f"run: expected a name such as 'my-dqn', got {name!r}; choose the folder with root="
        )
    inside = [root.joinpath(*parts[:depth]) for depth in range(len(parts))]
    if taken := next((folder for folder in inside if (folder / "config.json").exists()), None):
        raise RunRefused(f"{taken} is a run and cannot contain runs; choose another name or root=")
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunFailed(
                f"could not create {path}: {error.strerror}; choose a writable folder with root="
            ) from error
        else:
            return path
