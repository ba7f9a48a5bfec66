"""`PondUpdates`: replay in device memory; a cycle's rows and updates are one jitted program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from ..once import Once
from ..replay import Pond
from ..rows import Array, Batch, Draw, Rows
from .checkpoint import Arrays
from .device_update import DeviceUpdate
from .keys import Role, key_of
from .lake_share import LakeShare, blend
from .make_agent import make_agent
from .over_policies import along, over_policies
from .provenance import traced_spec
from .settings import Settings
from .trees import part
from .updates import Cycle, Learnt, Lesson, lesson_of


class PondUpdates:
    """A Pond for each policy; a cycle of all policies is one call of `learn`."""

    def __init__(
        self, settings: Settings, policies: Sequence[int], share: LakeShare | None = None
    ) -> None:
        self._share, self._updates = share, settings.learns.updates
        self._program = _program(settings, len(policies))
        self._policies = np.asarray(policies, np.uint32)
        self.state = self._program.init()
        draw = key_of(settings.seed, Role.DRAW)
        fold = jax.vmap(lambda policy: jax.random.fold_in(draw, policy))
        self._keys = fold(self._policies)

    def learn(self, agent: AgentState, cycle: Cycle) -> Learnt:
        program = self._program
        if not cycle.updates:
            self.state = program.add(self.state, cycle.rows)
            return agent, None, None
        which = (self._keys, np.uint32(cycle.number), cycle.steps, self._policies)
        drawn = None
        if self._share:
            first = cycle.number * self._updates
            drawn = self._share.draw_many(self._policies.tolist(), first, self._updates)
        agent, self.state, lesson = program.learn(agent, self.state, cycle.rows, *which, drawn)
        lesson = Lesson(*map(np.asarray, lesson))
        return agent, lesson, self._evidence(lesson, drawn)

    def _evidence(self, lesson: Lesson, drawn: Any) -> Batch | None:
        """The batch of the first update that was not finite, read from the Pond again."""
        bad = ~np.isfinite(lesson.found).all(-1)
        if not bad.any():
            return None
        policy = int(bad.any(1).argmax())
        first = policy, int(bad[policy].argmax())
        pond = self._program.pond
        row = Draw(lesson.stream, lesson.row, None).ids()[first] % pond.length
        batch = pond.take(self.of(policy), lesson.stream[first], row.astype(np.int32))
        other = part(drawn, first)
        return blend(jax.device_get(batch), other, np)

    def of(self, policy: int) -> Any:
        """The Pond's state of one policy, numbered within this learner."""
        return along(lambda leaf, _: leaf[policy], self._program.pond.axes, self.state)

    def cut(self, envs: np.ndarray) -> None:
        self.state = self._program.cut(self.state, envs)

    def export(self) -> list[Arrays]:
        pond = self._program.pond
        return [pond.export(self.of(policy)) for policy in range(len(self._keys))]

    def restore(self, arrays: Sequence[Arrays]) -> None:
        pond = self._program.pond

        def together(axis: int | None, *leaves: Array) -> Array:
            return leaves[0] if axis is None else jnp.stack(leaves)

        states = [pond.restore(one) for one in arrays]
        self.state = jax.tree.map(together, pond.axes, *states, is_leaf=lambda axis: axis is None)


class _PondProgram:
    """The jitted functions of a learner: learners of as many policies in a process share them."""

    def __init__(self, settings: Settings, policies: int) -> None:
        self.settings, learns = settings, settings.replayed
        self.agent = make_agent(settings)
        spec = traced_spec(settings)
        sizes = (learns.capacity, settings.envs, learns.window, settings.sampling)
        self.pond = Pond(spec, *sizes)
        self.update = DeviceUpdate(self.agent, self.pond, settings.played_rows, settings.ranked)
        axes = self.pond.axes
        self.init = jax.jit(lambda: self.pond.init_many(policies))
        self.add = jax.jit(jax.vmap(self.pond.add, (axes, 1), axes), donate_argnums=0)
        self.cut = jax.jit(jax.vmap(self.pond.cut, (axes, None), axes), donate_argnums=0)
        ins = (0, axes, 1, 0, None, 0, 0, 0)
        cycle = over_policies(self._cycle, ins, (0, axes, 0))
        self.learn = jax.jit(cycle, donate_argnums=(0, 1))

    def _cycle(
        self,
        agent: AgentState,
        pond: Any,
        rows: Rows,
        key: jax.Array,
        cycle: Array,
        steps: Array,
        policy: Array,
        drawn: Any,
    ) -> tuple[AgentState, Any, Lesson]:
        """For one policy: rows [time, env], and samples from a Lake, drawn [updates, batch]."""
        pond = self.pond.add(pond, rows)
        updates, now = self.settings.learns.updates, self.settings.now(steps, policy, jnp)
        keys = jax.random.split(jax.random.fold_in(key, cycle), updates)

        def update(carry: Any, each: Any) -> tuple[Any, Lesson]:
            (agent, pond), (key, drawn) = carry, each
            done = self.update.one(agent, pond, key, now, drawn)
            lesson = lesson_of(done.learned, done.batch, self.agent.reports)
            return (done.agent, done.pond), lesson

        # A few updates are unrolled: on CPU, XLA's loop would cost more than they do.
        unroll = updates if updates <= 4 else 1
        (agent, pond), lesson = jax.lax.scan(update, (agent, pond), (keys, drawn), unroll=unroll)
        return agent, pond, lesson


_program = Once(_PondProgram, most=4)
