"""`run`: log your own loop: runs, watch, report and doctor know it as any other run."""

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

_SAY_S = 2.0  # how often the status is written, which waits for the disk
_PACE_S = 1.0  # how often the speed is
_ROWS = 1000  # stored or drawn, between two lines of evidence of a watched pond


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
    """Log your own loop into runs/NAME, or NAME-2 and so on where that is taken.

        with millpond.run("my-dqn", env="CartPole-v1", seed=1, steps=50_000, config=args) as run:
            pond = run.watch(pond)
            run.log(step, loss=loss, episode_return=total)

    `millpond runs`, `watch`, `report` and `doctor` treat it like any other run. An error inside the
    block marks it as failed and is raised unchanged. `steps` is how long it will be, if that is
    known; `track` sends the numbers to tensorboard, wandb or mlflow too.
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
        """Numbers after that many env steps: `run.log(step, loss=0.3, episode_return=21.0)`.

        A dict may come first, for names that Python does not allow: `run.log(step, {"td/q": q})`.
        Steps may repeat but never go back.
        """
        with self._mutex:
            self._write("train", step, plain_metrics({**(values or {}), **metrics}))
            if any(pond.news >= _ROWS for pond in self._watched):
                self._write_health()
            self._tell_others()

    def evaluated(self, step: int, returns: Any) -> None:
        """The returns of some greedy episodes after that many env steps: a point of the curve."""
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
        """The same pond, seen by the doctor: use what this returns in place of `pond`."""
        self._check()
        if isinstance(pond, Pond):
            raise BadConfig(
                "watch: a Pond is written and drawn from inside jit, where nothing can be seen; "
                "call run.look(pond, state) now and then instead"
            )
        if not isinstance(pond, HostPond):
            raise BadConfig(
                f"watch: a HostPond is watched, got {type(pond).__name__}; omit the call: "
                "everything else is logged without it"
            )
        watched = WatchedPond(pond)
        self._watched.append(watched)
        return watched

    def look(self, pond: Pond, state: PondState) -> None:
        """Check what a device's Pond holds now: borders, faults, and returns drawn from it.

        It copies the ring to the host, so now and then is enough.
        """
        with self._mutex:
            self._check()
            found = look(pond, state)
            self._metrics.write("health", *self._place(), {"learners": [found]})

    def close(self) -> None:
        """The run has ended well. Leaving the `with` block does this."""
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
            return  # a child that was forked in the block leaves it too
        ended = _how_it_ended(kind, error, trace)
        with self._mutex, contextlib.ExitStack() as last:
            if error is not None:  # which must not be hidden by one of ours
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
                f"{self.path} is logged by process {self._pid}, and process {os.getpid()} is a "
                "copy of it; log there, or give every process its own run"
            )
        if self._lock is None:
            raise RunRefused(f"{self.path} has ended; millpond.run begins another run")

    def _place(self) -> tuple[int, int]:
        return self._step, self._step * self._frames

    def _write(self, kind: str, step: Any, values: dict[str, Any]) -> None:
        self._check()
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < self._step:
            raise BadConfig(
                f"log: steps count up from {self._step:,}, got {step!r}; give the env steps that "
                "were taken so far"
            )
        self._step = int(step)
        self._metrics.write(kind, *self._place(), values)

    def _write_health(self) -> None:
        evidence = [pond.report() for pond in self._watched]
        self._metrics.write("health", *self._place(), {"learners": evidence})

    def _tell_others(self) -> None:
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
        """The greedy returns by env steps, or those of training if there are no others."""
        for kind, what in (("eval", "greedy return"), ("train", "return while training")):
            lines = read_metrics(self.logged.metrics, kind)
            points = [(one["steps"], one["return"]) for one in lines if _is_point(one)]
            if points:
                steps, returns = zip(*points, strict=True)
                title = f"{self.path.name}: {what} by env steps"
                target = self.path / "curve.png"
                try:
                    save_curve(target, steps, returns, title, "env steps", "return")
                except NotInstalled:  # the core draws no pictures; nothing else is missing
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
    """State, reason, and the traceback of what was raised."""
    if kind is None or (isinstance(error, SystemExit) and not error.code):
        return "finished", "", ""
    if issubclass(kind, KeyboardInterrupt):
        return "stopped", "", ""
    text = "".join(traceback.format_exception(kind, error, trace))
    return "failed", f"{kind.__name__}: {error}", text


def _new_folder(root: Path, name: str) -> Path:
    """A folder that no one else has; two that begin at once get one each."""
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise BadConfig(
            f"run: expected a name such as 'my-dqn', got {name!r}; root= chooses another folder"
        )
    inside = [root.joinpath(*parts[:depth]) for depth in range(len(parts))]
    if taken := next((folder for folder in inside if (folder / "config.json").exists()), None):
        raise RunRefused(f"{taken} is a run, and it cannot hold runs; choose another name or root=")
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunFailed(
                f"could not make {path}: {error.strerror}; choose a folder that can be written "
                "with root="
            ) from error
        else:
            return path
