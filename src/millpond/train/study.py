"""`Study`: a learner's replay and the gradients taken from it: rows in, agents a little wiser.

`PondStudy` is one jitted program per cycle for all its policies, for rings in device memory;
`HostStudy` draws from any replay on the host. Both say what they drew, so that it can be checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
    """What one cycle's updates found and drew; every field [policies, updates, ...]."""

    found: Array  # float32[policies, updates, 4]: FOUND
    stream: Array  # int32[policies, updates, batch]
    row: Array  # ids, as in Draw
    reward: Array
    discount: Array
    mask: Array
    strange: Array  # int32[policies, updates]: stacks that are not those acted on


class Study(Protocol):
    """The replay of some policies: `agent, lesson, evidence = study.learn(agent, rows, ...)`."""

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, steps: np.ndarray
    ) -> tuple[AgentState, Lesson | None, Any]:
        """Store rows [time, policies, env] and take so many updates of agent [policies].

        `steps` uint32[policies] decide rate and beta. Also the batch of the first bad update, or
        None.
        """
        ...

    def cut(self, envs: np.ndarray) -> None:
        """Continuity is lost after the newest rows of envs bool[env]."""
        ...

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole replay of each policy."""
        ...

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Go on from exported replays."""
        ...


class PondStudy:
    """A Pond for each policy, written together, and the cycle of all as one program."""

    def __init__(self, settings: Settings, policies: Sequence[int]) -> None:
        self._program = _program(settings, len(policies))
        self.state = self._program.init()
        draw = key_of(settings.seed, Role.DRAW)
        self._keys = jax.vmap(lambda policy: jax.random.fold_in(draw, policy))(
            np.asarray(policies, np.uint32)
        )

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, steps: np.ndarray
    ) -> tuple[AgentState, Lesson | None, Any]:
        program = self._program
        if not updates:
            self.state = program.add(self.state, rows)
            return agent, None, None
        agent, self.state, lesson = program.learn(
            agent, self.state, rows, self._keys, np.uint32(cycle), steps
        )
        lesson = Lesson(*map(np.asarray, lesson))
        return agent, lesson, self._evidence(lesson)

    def _evidence(self, lesson: Lesson) -> Batch | None:
        """The batch of the first update that was not finite: its rows are still where they were."""
        bad = ~np.isfinite(lesson.found).all(-1)
        if not bad.any():
            return None
        policy = int(bad.any(1).argmax())
        first = policy, int(bad[policy].argmax())
        pond = self._program.pond
        row = Draw(lesson.stream, lesson.row, None).ids()[first] % pond.length
        batch = pond.take(self.of(policy), lesson.stream[first], row.astype(np.int32))
        return jax.device_get(batch)

    def of(self, policy: int) -> Any:
        """The Pond's state of one policy, counted from our first."""

        def pick(axis: int | None, leaf: Array) -> Array:
            return leaf if axis is None else leaf[policy]

        return jax.tree.map(pick, self._program.pond.axes, self.state, is_leaf=_is_none)

    def cut(self, envs: np.ndarray) -> None:
        self.state = self._program.cut(self.state, envs)

    def export(self) -> list[dict[str, np.ndarray]]:
        pond = self._program.pond
        return [pond.export(self.of(policy)) for policy in range(len(self._keys))]

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        pond = self._program.pond

        def together(axis: int | None, *leaves: Array) -> Array:
            return leaves[0] if axis is None else jnp.stack(leaves)

        states = [pond.restore(one) for one in arrays]
        self.state = jax.tree.map(together, pond.axes, *states, is_leaf=_is_none)


class _PondProgram:
    """What learners of as many policies share in a process, so that it is compiled once."""

    def __init__(self, settings: Settings, policies: int) -> None:
        dqn = settings.dqn
        self.settings, self.agent = settings, make_agent(settings)
        spec = traced_spec(settings.world)
        self.pond = Pond(spec, dqn.capacity, settings.envs, settings.window, settings.sampler)
        axes = self.pond.axes
        self.init = jax.jit(lambda: self.pond.init_many(policies))
        self.add = jax.jit(jax.vmap(self.pond.add, (axes, 1), axes), donate_argnums=0)
        self.cut = jax.jit(jax.vmap(self.pond.cut, (axes, None), axes), donate_argnums=0)
        cycle = jax.vmap(self._cycle, (0, axes, 1, 0, None, 0), (0, axes, 0))
        self.learn = jax.jit(cycle, donate_argnums=(0, 1))

    def _cycle(
        self,
        agent: AgentState,
        pond: Any,
        rows: Rows,
        key: jax.Array,
        cycle: Array,
        steps: Array,
    ) -> tuple[AgentState, Any, Lesson]:
        """Of one policy: rows [time, env]."""
        pond = self.pond.add(pond, rows)
        dqn = self.settings.dqn
        assert isinstance(self.agent, DQN)
        improve, (rate, beta) = self.agent.update, _rate_and_beta(self.settings, steps)
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
    """Any `HostReplay`, one for each policy."""

    def __init__(self, settings: Settings, replays: Sequence[HostReplay], agent: DQN) -> None:
        self.settings, self.replays, self._agent = settings, replays, agent
        self._update = jax.jit(jax.vmap(self._improve), donate_argnums=0)

    def _improve(
        self, agent: AgentState, batch: Batch, steps: Array
    ) -> tuple[AgentState, Array, Lesson]:
        agent, found = self._agent.update(agent, batch, *_rate_and_beta(self.settings, steps))
        return agent, found.error, lesson_of(found, batch)

    def learn(
        self, agent: AgentState, rows: Rows, cycle: int, updates: int, steps: np.ndarray
    ) -> tuple[AgentState, Lesson | None, Any]:
        dqn = self.settings.dqn
        self.store(rows)
        lessons: list[Lesson] = []
        evidence = None
        for number in range(updates):
            batch = self.draw(cycle * dqn.updates + number)
            if batch is None:
                break
            agent, errors, lesson = self._update(agent, batch, steps)
            if dqn.sampler == "prioritized":
                self.rank(batch.draw, np.asarray(errors) + np.float32(1e-6))
            # Row ids of the host are 64-bit numbers, which JAX would cut.
            lesson = jax.device_get(lesson)._replace(row=np.asarray(batch.draw.row))
            lessons.append(jax.tree.map(lambda leaf: leaf[:, None], lesson))
            bad = np.flatnonzero(np.asarray(agent.bad))
            if bad.size:
                evidence = jax.tree.map(lambda leaf, p=bad[0]: leaf[p], batch)
                break
        lesson = jax.tree.map(lambda *some: np.concatenate(some, 1), *lessons) if lessons else None
        return agent, lesson, evidence

    def store(self, rows: Rows) -> None:
        """Keep one cycle's rows [time, policies, env]."""
        for policy, replay in enumerate(self.replays):
            for turn in range(len(rows.reward)):
                replay.add(jax.tree.map(lambda leaf, t=turn, p=policy: leaf[t, p][None], rows))

    def draw(self, turn: int) -> Batch | None:
        """A batch [policies, batch] for update `turn`; None: there is nothing to draw from."""
        return _joined([replay.sample(turn) for replay in self.replays])

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        """New priorities [policies, batch]."""
        for policy, replay in enumerate(self.replays):
            one = jax.tree.map(lambda leaf, p=policy: leaf[p][None], draw)
            replay.rank(one, errors[policy][None])

    def cut(self, envs: np.ndarray) -> None:
        for replay in self.replays:
            replay.cut(envs)

    def export(self) -> list[dict[str, np.ndarray]]:
        return [replay.export() for replay in self.replays]

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        for replay, one in zip(self.replays, arrays, strict=True):
            replay.restore(one)


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


def _rate_and_beta(settings: Settings, steps: Array) -> tuple[Array, Array]:
    """By the env steps of a policy. Inside jit: outside it would cost as much as an update."""
    dqn = settings.dqn
    rate = dqn.optimizer.rate.at(steps, settings.steps, xp=jnp)
    return rate, dqn.beta.at(steps, settings.steps, xp=jnp)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def _is_none(axis: Any) -> bool:
    return axis is None
