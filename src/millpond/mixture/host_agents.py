"""`HostAgents`: a mixture's agents in envs that are stepped on the host, such as Atari."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Rollout
from ..engine.episode_stats import Sums
from ..engine.keys import Role
from ..envs import HostEnv, HostVector, checked_vector
from ..rows import Array, Rows
from .agents import Agents, AgentsState, newest
from .settings import MixSettings


class HostAgents(Agents):
    """The same rounds as those of `Agents`, one turn at a time.

    The state of the envs is not saved. After a resume they begin new episodes, with a cut in the
    streams, so rows played since the save are not played again identically.
    """

    repeats = False

    def __init__(self, settings: MixSettings) -> None:
        super().__init__(settings)
        player = self.acting.player
        self._chance = jax.jit(lambda turn: player.chance(self.acting.key(Role.ACT, turn)))
        self._move = jax.jit(player.move)
        self._worth = jax.jit(player.worth)
        self._learned = jax.jit(self._learn_and_add, donate_argnums=0)
        self._vector: HostVector | None = None

    def begin(self, state: AgentsState, resumed: bool) -> AgentsState:
        """Open the envs; after a resume, cut the streams and begin new episodes."""
        world, turn = self.settings.world, int(state.acting.turn)
        assert isinstance(world, HostEnv)
        seed = (self.settings.seed << 32) + turn  # each session begins with other episodes
        self._vector = checked_vector(world, self.acting.population.all_envs, seed)
        if not resumed:
            return state
        now = state.acting
        tally = now.tally._replace(
            reward=jnp.zeros_like(now.tally.reward), length=jnp.zeros_like(now.tally.length)
        )
        history = jax.tree.map(jnp.asarray, self.acting.player.init())
        axes = self.pond.axes
        ponds = jax.vmap(self.pond.cut, in_axes=(axes,), out_axes=axes)(state.ponds)
        return state._replace(acting=now._replace(tally=tally, history=history), ponds=ponds)

    def close(self) -> None:
        """Close the envs."""
        if self._vector is not None:
            self._vector.close()
        self._vector = None

    def round(self, state: AgentsState, updates: int) -> tuple[AgentsState, Sums]:
        """Make `updates` updates of every agent and add the rows to the Ponds; donates `state`."""
        sums = self.no_sums()
        for _ in range(updates):
            state, sums = self._update(state, sums)
        return state, jax.device_get(sums)

    def _update(self, state: AgentsState, sums: Sums) -> tuple[AgentsState, Sums]:
        """One rollout, then one update. Frames stay on the device, where they are stacked."""
        assert self._vector is not None
        params, now, population = state.agent.params, state.acting, self.acting.population
        schedules = self.acting.now(now)
        stacks: list[Array] = []
        values: list[Array] = []
        played: list[Rows] = []
        for _ in range(self.settings.learns.turns):
            chance = self._chance(now.turn)
            move = self._move(params, now.history, *self._seen(), chance, schedules)
            rows = self._vector.step(np.asarray(population.by_env(move.action)))
            now = now._replace(history=move.history, turn=np.uint32(now.turn + 1))
            stacks.append(move.stacks)
            values.append(move.worth)
            played.append(population.by_policy(rows._replace(obs=None)))
        values.append(self._worth(params, now.history, *self._seen()))
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *played)
        return self._learned(state._replace(acting=now), sums, stacks, values, rows)

    def _learn_and_add(
        self,
        state: AgentsState,
        sums: Sums,
        stacks: list[Array],
        values: list[Array],
        rows: Rows,
    ) -> tuple[AgentsState, Sums]:
        value = jnp.stack(values)
        facts = (rows.action, rows.reward, rows.terminated, rows.truncated, rows.flags)
        rollout = Rollout(jnp.stack(stacks), *facts, value)
        state, sums = self.learn(state, sums, rollout)
        return self.add(state, rows._replace(obs=newest(rollout))), sums

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        """obs and flags of the next rows, [policies, envs]."""
        assert self._vector is not None
        return self.acting.population.seen(self._vector)
