"""`Study`: a learner's replay and the gradients taken from it: rows in, an agent a little wiser.

`PondStudy` is one jitted program per cycle, for a ring in device memory; `HostStudy` draws from
any replay on the host. Both say what they drew, so that it can be checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, AgentState, Learned
from ..replay import Pond
from ..rows import Array, Batch, Draw, Rows
from .device_loop import make_agent
from .keys import Role, key_of
from .provenance import stack_hash, traced_spec
from .replay import HostReplay
from .settings import Settings

FOUND = ("loss", "q", "gradient", "change")


class Lesson(NamedTuple):
    """What one cycle's updates found and drew; every field [updates, ...]."""

    found: Array  # float32[updates, 4]: FOUND
    stream: Array  # int32[updates, batch]
    row: Array  # ids, as in Draw
    reward: Array
    discount: Array
    mask: Array
    strange: Array  # int32[updates]: stacks that are not those acted on


class Study(Protocol):
    """One policy's replay: `agent, lesson, evidence = study.learn(agent, rows, ...)`."""

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, rate: Array, beta: Array
    ) -> tuple[AgentState, Lesson | None, Any]:
        """Store rows [time, env], take the updates; the batch of the first bad one, or None."""
        ...

    def cut(self, envs: np.ndarray) -> None:
        """Continuity is lost after the newest rows of envs bool[env]."""
        ...

    def export(self) -> dict[str, np.ndarray]:
        """The whole replay."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from an exported replay."""
        ...


class PondStudy:
    """A Pond, and the cycle as one program."""

    def __init__(self, settings: Settings, policy: int) -> None:
        self._program = _program(settings)
        self.state = self._program.init()
        self._key = jax.random.fold_in(key_of(settings.seed, Role.DRAW), policy)

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, rate: Array, beta: Array
    ) -> tuple[AgentState, Lesson | None, Any]:
        program = self._program
        if not updates:
            self.state = program.add(self.state, rows)
            return agent, None, None
        number = np.uint32(cycle)
        agent, self.state, lesson = program.learn(
            agent, self.state, rows, self._key, number, rate, beta
        )
        lesson = jax.device_get(lesson)
        return agent, lesson, self._evidence(lesson)

    def _evidence(self, lesson: Lesson) -> Batch | None:
        """The batch of the first update that was not finite: its rows are still where they were."""
        bad = ~np.isfinite(lesson.found).all(1)
        if not bad.any():
            return None
        first = int(bad.argmax())
        pond = self._program.pond
        row = Draw(lesson.stream, lesson.row, None).ids()[first] % pond.length
        batch = pond.take(self.state, lesson.stream[first], row.astype(np.int32))
        return jax.device_get(batch)

    def cut(self, envs: np.ndarray) -> None:
        self.state = self._program.cut(self.state, envs)

    def export(self) -> dict[str, np.ndarray]:
        return self._program.pond.export(self.state)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.state = self._program.pond.restore(arrays)


class _PondProgram:
    """What learners of one run share in a process, so that it is compiled once."""

    def __init__(self, settings: Settings) -> None:
        dqn = settings.dqn
        self.settings, self.agent = settings, make_agent(settings)
        spec = traced_spec(settings.world)
        self.pond = Pond(spec, dqn.capacity, settings.envs, settings.window, settings.sampler)
        self.init = jax.jit(self.pond.init)
        self.add = jax.jit(self.pond.add, donate_argnums=0)
        self.cut = jax.jit(self.pond.cut, donate_argnums=0)
        self.learn = jax.jit(self._cycle, donate_argnums=(0, 1))

    def _cycle(
        self,
        agent: AgentState,
        pond: Any,
        rows: Rows,
        key: jax.Array,
        cycle: Array,
        rate: Array,
        beta: Array,
    ) -> tuple[AgentState, Any, Lesson]:
        pond = self.pond.add(pond, rows)
        dqn = self.settings.dqn
        assert isinstance(self.agent, DQN)
        improve = self.agent.update
        keys = jax.random.split(jax.random.fold_in(key, cycle), dqn.updates)

        def update(carry: Any, key: jax.Array) -> tuple[Any, Lesson]:
            agent, pond = carry
            pond, batch = self.pond.sample(pond, key, dqn.batch)
            agent, found = improve(agent, batch, rate, beta)
            if dqn.sampler == "prioritized":
                pond = self.pond.update_priorities(pond, batch.draw, found.error + 1e-6)
            return (agent, pond), lesson_of(found, batch)

        # A few updates are written out: a loop costs XLA's CPU backend more than they do.
        unroll = dqn.updates if dqn.updates <= 4 else 1
        (agent, pond), lesson = jax.lax.scan(update, (agent, pond), keys, unroll=unroll)
        return agent, pond, lesson


_program = functools.lru_cache(maxsize=4)(_PondProgram)


class HostStudy:
    """Any `HostReplay` of one policy."""

    def __init__(self, settings: Settings, replay: HostReplay, agent: DQN) -> None:
        self.settings, self.replay = settings, replay
        self._update = jax.jit(jax.vmap(agent.update), donate_argnums=0)
        self._lesson = jax.jit(jax.vmap(lesson_of))

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, rate: Array, beta: Array
    ) -> tuple[AgentState, Lesson | None, Any]:
        dqn = self.settings.dqn
        for turn in range(len(rows.reward)):
            self.replay.add(jax.tree.map(lambda leaf, t=turn: leaf[t][None], rows))
        lessons: list[Lesson] = []
        evidence = None
        agent = _one(agent)
        for number in range(updates):
            batch = self.replay.sample(cycle * dqn.updates + number)
            agent, found = self._update(agent, batch, rate[None], beta[None])
            if dqn.sampler == "prioritized":
                self.replay.rank(batch.draw, np.asarray(found.error) + np.float32(1e-6))
            lesson = jax.device_get(self._lesson(found, batch))
            # Row ids of the host are 64-bit numbers, which JAX would cut.
            lessons.append(lesson._replace(row=np.asarray(batch.draw.row)))
            if np.asarray(agent.bad).any():
                evidence = jax.tree.map(lambda leaf: leaf[0], batch)
                break
        lesson = jax.tree.map(lambda *leaves: np.concatenate(leaves), *lessons) if lessons else None
        return jax.tree.map(lambda leaf: leaf[0], agent), lesson, evidence

    def cut(self, envs: np.ndarray) -> None:
        self.replay.cut(envs)

    def export(self) -> dict[str, np.ndarray]:
        return self.replay.export()

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.replay.restore(arrays)


def lesson_of(found: Learned, batch: Batch) -> Lesson:
    """What is worth knowing of one update and its batch."""
    strange = (stack_hash(batch.obs, 1) != batch.extras["stack_hash"]) & batch.mask
    numbers = jnp.stack([getattr(found, name) for name in FOUND]).astype(np.float32)
    draw = batch.draw
    return Lesson(
        numbers,
        draw.stream,
        draw.row,
        batch.reward,
        batch.discount,
        batch.mask,
        strange.sum(dtype=np.int32),
    )


def _one(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)
