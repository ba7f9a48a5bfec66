"""`train(run)`: rounds, lines, evaluations, checkpoints and resume states, to the last step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.checkpoint import about_file, hash_of, load_tree, save_tree
from ..engine.episode_stats import Sums
from ..engine.settings import Settings
from ..engine.stopping import stop_asked, stop_if_asked
from ..errors import Diverged, LearnerLost, RunFailed
from ..metrics import Metrics, make_sink, read_metrics
from ..rows import Array
from .evaluate import Referee
from .loop import Loop, open_loop
from .run import Run

# report(line) shows progress.
Report = Callable[[dict[str, Any]], None]
Opener = Callable[[Settings, Path], AbstractContextManager[Loop]]


def train(run: Run, report: Report = lambda line: None, opener: Opener = open_loop) -> str:
    """Train from the start or the resume state to the end; returns a hash of the parameters.

    A run that loses a learner process continues from its resume state. On Ctrl-C, SIGTERM or SIGHUP
    it saves its state and raises KeyboardInterrupt. Any other exception, such as one in a user's
    env or agent, is recorded in the run with its traceback and raised.
    `train(Run.create(Path("runs/mine"), settings), report=print)`.
    """
    run.check_parts()
    lock = run.lock()
    try:
        with stop_asked() as asked:
            return _Attempts(run, report, opener, asked).go()
    except (Exception, SystemExit) as error:
        run.gave_up(error)
        raise
    finally:
        os.close(lock)


class _Attempts:
    """Tries again whenever a learner is lost, as long as that gets the run further."""

    def __init__(self, run: Run, report: Report, opener: Opener, asked: list[int]) -> None:
        self.run, self.report, self.opener, self.asked = run, report, opener, asked
        self.lost = self.in_vain = 0  # lost learners; those in a row without getting further
        self.steps = self.furthest = -1  # how far this attempt came, and the best one

    def go(self) -> str:
        """Run to the end; returns the hash of the parameters."""
        while True:
            try:
                return self._attempt()
            except LearnerLost as error:
                if self.asked:  # to stop: the run will continue from what was saved last
                    self._stopped()
                self._may_return(error)
                self.report({"kind": "restart", "steps": self.steps, "why": str(error)})

    def _attempt(self) -> str:
        self.steps, session = -1, None
        try:
            with (
                debugging(self.run.settings),
                self.opener(self.run.settings, self.run.path) as loop,
            ):
                stop_if_asked()
                session = _Attempt(self.run, loop, self.report, self.asked)
                return session.go()
        except KeyboardInterrupt:
            if self.asked and session is None:
                self._stopped()
            raise
        finally:
            self.steps = session.reached if session else -1

    def _stopped(self) -> NoReturn:
        self.run.say("stopped", resume_point(self.run))
        raise KeyboardInterrupt

    def _may_return(self, error: LearnerLost) -> None:
        """Raise unless another attempt may get further than this one."""
        crew = self.run.settings.crew
        if not self.run.resume_state.exists():
            raise error
        self.lost += 1
        self.in_vain = 1 if self.steps > self.furthest else self.in_vain + 1
        self.furthest = max(self.furthest, self.steps)
        if self.in_vain >= crew.failures:
            raise RunFailed(
                f"{error}; a learner was lost {self.in_vain} times and the run never got beyond "
                f"{max(0, self.furthest):,} steps, so another try would not help. Look at what "
                "killed it (out of memory? see events.jsonl and the kernel's log); the state at "
                f"{resume_point(self.run):,} steps is kept, and millpond resume continues from it"
            ) from error
        if self.lost > crew.restarts:
            raise RunFailed(f"{error}; {crew.restarts} restarts are used up") from error


class _Attempt:
    """One attempt at a run, from its saved state to its end or until it is stopped."""

    def __init__(self, run: Run, loop: Loop, report: Report, asked: list[int]) -> None:
        self.run, self.loop, self.report, self.asked = run, loop, report, asked
        self.settings = run.settings
        self.referee = Referee(run.settings, run.settings.eval_episodes)
        self.state: Any
        self.state, position = self._begin()
        sinks = (
            [make_sink(self.settings.track, run.path, run.path.name)] if self.settings.track else []
        )
        cut_file(run.metrics, position)
        self.metrics = Metrics(run.metrics, sinks)
        self.speed = Metrics(run.speed)
        self.started = time.perf_counter()
        self.reached = self.steps  # at the end of the last whole round
        self.saved = -1  # the steps at which this attempt last saved its state

    def _begin(self) -> tuple[Any, int]:
        """The state to continue from, and the length of the metrics file at that time."""
        path = self.run.resume_state
        if not path.exists():
            self._drop_later(-1)
            return self.loop.init(), 0
        tree, about = load_tree(path, self.loop.like())
        self._drop_later(int(about["steps"]))
        return self.loop.unpack(tree), int(about["metrics"])

    def _drop_later(self, steps: int) -> None:
        """Delete checkpoints beyond the resume state, which will be written again."""
        for checkpoint in self.run.checkpoints():
            if checkpoint.steps > steps:
                checkpoint.path.unlink()

    def go(self) -> str:
        try:
            self.run.say("running", self.steps)
            while self.steps < self.settings.steps:
                self._round()
                if self.asked and self.steps < self.settings.steps:
                    if self.saved != self.steps:
                        self._save_resume()
                    self.run.say("stopped", self.steps)
                    raise KeyboardInterrupt
            self.run.say("finished", self.steps)
            return hash_of(self.state.agent.params)
        finally:
            self.metrics.close()
            self.speed.close()

    @property
    def steps(self) -> int:
        """Env steps of the policy that has taken fewest."""
        return int(np.min(self.state.steps))

    @property
    def frames(self) -> int:
        """Emulator frames of all members together."""
        if self.settings.from_lake:
            return 0
        world: Any = self.settings.world
        per_member = np.asarray(self.state.steps)[:: world.num_agents]
        return int(per_member.astype(np.int64).sum()) * world.frames_per_step

    def _round(self) -> None:
        settings, before = self.settings, self.steps
        envs = 1 if settings.from_lake else settings.envs
        missing = min(settings.log_every, settings.steps - before)
        cycles = -(-missing // (envs * self.loop.turns_per_cycle))
        began = time.perf_counter()
        self.state, sums = self.loop.round(self.state, cycles)
        self.reached = self.steps
        self.loop.check(self.state)
        self._guard(before)
        took = time.perf_counter() - began
        self._log(sums, took)
        last = self.steps >= settings.steps
        if last or self._passed(before, settings.eval_every):
            self._evaluate()
        if last or self._passed(before, settings.checkpoint_every):
            self._save_checkpoint()
        if last or self._passed(before, settings.resume_every):
            self._save_resume()

    def _passed(self, before: int, every: int) -> bool:
        return before // every < self.steps // every

    def _log(self, sums: Sums, took: float) -> None:
        line = summary(sums, self.settings.reports)
        line |= schedules(self.settings, np.asarray(self.state.steps))
        line["updates"] = int(np.asarray(self.state.agent.updates)[0])
        line["target_updates"] = int(np.asarray(self.state.agent.synced)[0])
        self.metrics.write("train", self.steps, self.frames, line)
        if health := self.loop.health():
            self.metrics.write("health", self.steps, self.frames, health)
            self._report({"kind": "health", "steps": self.steps, **health})
        pace = {
            "seconds": time.perf_counter() - self.started,
            "steps_per_second": float(np.sum(sums.steps)) / took,
            "updates_per_second": float(np.sum(sums.updates)) / took,
            **self.loop.pace(),
        }
        self.speed.write("speed", self.steps, self.frames, pace)
        self._report({"kind": "train", "steps": self.steps, **line, **pace})

    def _report(self, line: dict[str, Any]) -> None:
        """Show progress. While stopping, ignore a display that fails, such as a closed terminal."""
        try:
            self.report(line)
        except OSError:
            if not self.asked:
                raise

    def _evaluate(self) -> None:
        scores = self.referee.play(self.state.agent.params)
        means = scores.mean()
        line = {
            "return": float(means.mean()),
            "returns": [float(value) for value in means],
            "errors": [float(value) for value in scores.error()],
            "least": float(means.min()),
            "length": float(scores.lengths.mean()),
            "episodes": scores.returns.shape[1],
            "unfinished": int(scores.unfinished),
        }
        if scores.counts:
            line["counts"] = scores.events()
        self.metrics.write("eval", self.steps, self.frames, line)
        self._report({"kind": "eval", "steps": self.steps, **line})

    def _about(self) -> dict[str, Any]:
        return {"steps": self.steps, "frames": self.frames, "env": self.settings.env}

    def _save_checkpoint(self) -> None:
        path = self.run.checkpoint_path(self.steps)
        save_tree(path, jax.device_get(self.state.agent.params), self._about())
        self._report({"kind": "checkpoint", "steps": self.steps, "path": str(path)})

    def _save_resume(self) -> None:
        about = {**self._about(), "metrics": self.metrics.position()}
        save_tree(self.run.resume_state, jax.device_get(self.loop.pack(self.state)), about)
        self.saved = self.steps
        self.run.say("running", self.steps)

    def _guard(self, before: int) -> None:
        """Raise Diverged before anything that is not finite is logged, evaluated or saved."""
        bad = np.asarray(self.state.agent.bad)
        wrong = bad | np.asarray(not_finite(self.state.agent.params))
        if not wrong.any():
            return
        policy = int(np.argmax(wrong))
        # A bad update was not counted; one that overflowed the parameters was.
        update = int(np.asarray(self.state.agent.updates)[policy]) + int(bad[policy])
        path = self.run.path / "diverged.safetensors"
        tree = {"agent": self.state.agent, "batch": self.state.evidence}
        about = {**self._about(), "policy": policy, "update": update}
        save_tree(path, jax.device_get(tree), about)
        self.metrics.write(
            "diverged", self.steps, self.frames, {"policy": policy, "update": update}
        )
        self.run.say("diverged", self.steps)
        raise Diverged(
            f"update {update} of policy {policy}, between {before:,} and {self.steps:,} steps, had "
            "a loss, gradient or parameter that is not finite. The agent and this batch are in "
            f"{path}; nothing after it was kept. Lower the learning rate "
            f"(--{self.settings.section}.optimizer.rate.start), scale or clip rewards, or look at "
            "the batch"
        )


def schedules(settings: Settings, steps: np.ndarray) -> dict[str, Any]:
    """The agent's schedules at these steps: epsilon of each policy, means of the others."""
    now = settings.now(steps, np.arange(settings.policies))
    if settings.from_lake and "epsilon" in now:
        now["epsilon"] = np.zeros(settings.policies)  # nobody acts
    return {
        name: value.tolist() if name == "epsilon" else float(value.mean())
        for name, value in now.items()
        if name != "beta" or settings.ranked
    }


def summary(sums: Sums, reports: tuple[str, ...]) -> dict[str, Any]:
    """The means over a round's episodes and updates, for metrics.jsonl."""
    episodes, updates = np.asarray(sums.episodes), np.maximum(np.asarray(sums.updates), 1)
    some = np.maximum(episodes, 1)
    returns = [
        float(total / number) if ended else None
        for total, number, ended in zip(sums.reward, some, episodes, strict=True)
    ]
    ended = int(episodes.sum())
    line: dict[str, Any] = {
        "episodes": ended,
        "return": float(np.sum(sums.reward)) / ended if ended else None,
        "returns": returns,
        "length": float(np.sum(sums.length)) / ended if ended else None,
        "nonzero_rewards": float(np.sum(sums.nonzero) / max(1, np.sum(sums.steps))),
    }
    if np.any(sums.updates):
        means = (np.asarray(sums.found) / updates[:, None]).mean(0)
        line |= {name: float(mean) for name, mean in zip(reports, means, strict=True)}
    return line


@jax.jit
def not_finite(params: Any) -> Array:
    """Which policies have a parameter that is not finite: bool[policies]."""
    leaves = [~jnp.isfinite(p).reshape(len(p), -1).all(1) for p in jax.tree.leaves(params)]
    return jnp.stack(leaves).any(0)


def cut_file(path: Path, length: int) -> None:
    """Truncate a file to `length` bytes: the rest will be written again."""
    if path.exists() and path.stat().st_size > length:
        os.truncate(path, length)


def resume_point(run: Run) -> int:
    """The env steps from which `train` would continue."""
    if not run.resume_state.exists():
        return 0
    return int(about_file(run.resume_state)["steps"])


@contextmanager
def debugging(settings: Settings) -> Generator[None]:
    """With `--debug`: no jit, so that a debugger can step through the code, and NaNs raise."""
    if not settings.debug:
        yield
        return
    # RAdam computes NaNs in its first steps and discards them, so do not trap those.
    trap = getattr(getattr(settings.learning, "optimizer", None), "kind", "") != "radam"
    with jax.disable_jit(), jax.debug_nans(trap):
        yield


def curve(run: Run) -> tuple[list[int], list[float]]:
    """The env steps and greedy returns of all evaluations so far."""
    lines = list(read_metrics(run.metrics, "eval"))
    return [line["steps"] for line in lines], [line["return"] for line in lines]


__all__ = ["Report", "curve", "not_finite", "resume_point", "summary", "train"]
