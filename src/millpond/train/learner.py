"""`Learner`: one policy's replay and agent. It takes rows, cycle by cycle, and gives parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN
from ..rows import Rows
from .checkpoint import named_leaves
from .device_loop import make_agent
from .keys import Role, key_of
from .limiter import Limiter
from .provenance import traced_spec
from .replay import make_replay
from .settings import Settings
from .study import FOUND, HostStudy, PondStudy, Study
from .trace import digest
from .witness import Witness


class Progress(NamedTuple):
    """What a learner tells of itself: sums since the last report, and where it stands."""

    updates: int  # since the run began, as the next one
    synced: int
    bad: bool
    cycles: int  # taken, since the run began
    steps: int  # env steps of all actors whose rows were taken
    learned: dict[str, float]  # sums over the updates since the last report, and their number
    evidence: dict[str, Any]


class Learner:
    """One of as many as there are policies.

    with Learner.opened(settings, policy, folder) as learner: learner.cycle(rows)
    """

    def __init__(self, settings: Settings, policy: int, study: Study, agent: DQN) -> None:
        self.settings, self.policy, self.study, self.agent = settings, policy, study, agent
        self.limiter = Limiter.of(settings)
        self.witness = Witness(settings, policy)
        self.cycles = 0
        self.batch: Any = None  # of the first update that was not finite
        keys = jax.random.split(key_of(settings.seed, Role.PARAMETERS), settings.policies)
        self.state = jax.jit(agent.init)(keys[policy])
        self.updates = 0
        self._sums = _no_sums()
        self._lesson: Any = None  # the newest, if the run keeps a trace

    @staticmethod
    @contextlib.contextmanager
    def opened(settings: Settings, policy: int, folder: Path) -> Generator[Learner]:
        """Open the policy's replay, and close it at the end."""
        spec, agent = traced_spec(settings.world), make_agent(settings)
        assert isinstance(agent, DQN)
        if settings.replay == "pond":
            yield Learner(settings, policy, PondStudy(settings, policy), agent)
            return
        with make_replay(settings, spec, folder / "lake", (policy,)) as replay:
            yield Learner(settings, policy, HostStudy(settings, replay, agent), agent)

    @property
    def params(self) -> Any:
        """The parameters to act with; their version is `updates`."""
        return self.state.params

    def cycle(self, rows: Rows) -> None:
        """Take one cycle's rows [time, env] of all actors, and the updates that are due."""
        self.witness.took(rows, self.updates)
        self.cycles += 1
        settings, dqn = self.settings, self.settings.dqn
        due = 0 if self.bad else self.limiter.due(self.cycles)
        steps = self.witness.steps.sum().astype(np.uint32)
        rate = np.asarray(dqn.optimizer.rate.at(steps, settings.steps), np.float32)
        beta = np.asarray(dqn.beta.at(steps, settings.steps), np.float32)
        self.state, lesson, batch = self.study.learn(self.state, rows, self.cycles, due, rate, beta)
        self._lesson = lesson
        if lesson is None:
            return
        self.witness.learned(lesson)
        self.updates += len(lesson.mask) if batch is None else 0
        if batch is not None:
            self.batch, self.updates = batch, int(self.state.updates)
        self._sums["updates"] += len(lesson.mask)
        for name, total in zip(FOUND, lesson.found.sum(0).tolist(), strict=True):
            self._sums[name] += total

    def traced(self) -> dict[str, int]:
        """Hashes of what the last cycle drew and found, and of the agent after it."""
        return {"draws": digest(self._lesson), "agent": digest(self.state)}

    @property
    def bad(self) -> bool:
        """Whether an update was not finite; nothing is learned any more."""
        return self.batch is not None

    def cut(self, actor: int) -> None:
        """An actor was lost: nothing may cross from its rows before to its rows after."""
        envs = np.zeros(self.settings.envs, bool)
        width = self.settings.envs // self.settings.actors
        envs[actor * width : (actor + 1) * width] = True
        self.study.cut(envs)
        self.witness.cut(envs)

    def report(self) -> Progress:
        """What happened since the last report."""
        sums, self._sums = self._sums, _no_sums()
        steps, synced = int(self.witness.steps.sum()), int(self.state.synced)
        where = (self.updates, synced, self.bad, self.cycles, steps)
        return Progress(*where, sums, self.witness.report())

    def export(self) -> dict[str, np.ndarray]:
        """The whole state, right after a report."""
        agent = {f"agent/{name}": np.asarray(leaf) for name, leaf in named_leaves(self.state)}
        replay = {f"replay/{name}": array for name, array in self.study.export().items()}
        witness = {f"witness/{name}": array for name, array in self.witness.export().items()}
        return {"cycles": np.array(self.cycles, np.int64), **agent, **replay, **witness}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from an exported state."""
        self.cycles = int(arrays["cycles"])
        leaves = [jnp.array(arrays[f"agent/{name}"]) for name, _ in named_leaves(self.state)]
        self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        self.updates = int(self.state.updates)
        self.study.restore(_part(arrays, "replay/"))
        self.witness.restore(_part(arrays, "witness/"))


def _part(arrays: Mapping[str, np.ndarray], begin: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}


def _no_sums() -> dict[str, float]:
    return {"updates": 0, "loss": 0.0, "q": 0.0, "gradient": 0.0, "change": 0.0}
