"""`Live`: agents and BigAgent in one jitted loop; rows go straight into BigPond."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.episode_stats import Sums
from ..rows import Array, Rows
from .agents import Agents, AgentsState
from .big import BigAgent, BigState
from .settings import MixSettings


class Live:
    """`agents, big, pond, sums, found = live.round(agents, big, pond, updates)`.

    In every update the agents and the BigAgent each play a rollout in their own envs, and all rows
    go into BigPond. After every `every` updates, `big.learn` runs `times` times.
    """

    def __init__(self, settings: MixSettings, agents: Agents, big: BigAgent) -> None:
        self.settings, self.agents, self.big = settings, agents, big
        self.every = max(1, settings.updates // settings.big_steps)
        self.times = max(1, round(settings.big_steps / settings.updates))
        self._round = jax.jit(self._run, donate_argnums=(0, 1, 2))

    def round(
        self, agents: AgentsState, big: BigState, pond: Any, updates: int
    ) -> tuple[AgentsState, BigState, Any, Sums, Array]:
        """Make `updates` updates of the agents; donates the states."""
        *states, sums, found = self._round(agents, big, pond, self.agents.no_sums(), updates)
        return (*states, jax.device_get(sums), jax.device_get(found))

    def _run(
        self, agents: AgentsState, big: BigState, pond: Any, sums: Sums, updates: Array
    ) -> Any:
        found = self.big.nothing

        def body(_: Array, carry: Any) -> Any:
            agents, big, pond, sums, found = carry
            agents, sums, rows = self.agents.update(agents, sums)
            rows = self._of_members(rows)
            if self.settings.own_turns:
                big, own = self.big.own_rows(big)
                rows = jax.tree.map(lambda a, b: jnp.concatenate([a, b], 2), rows, own)
            pond = self.big.add(pond, rows)
            # A whole number, since turns are counted in whole rollouts from the run's start.
            done = agents.acting.turn // np.uint32(self.settings.learns.turns)
            due = done % np.uint32(self.every) == 0
            big, pond, now = jax.lax.cond(due, self._learn, self._idle, big, pond)
            found = found + now
            return agents, big, pond, sums, found

        carry = (agents, big, pond, sums, found)
        return jax.lax.fori_loop(0, updates, body, carry)

    def _learn(self, big: BigState, pond: Any) -> tuple[BigState, Any, Array]:
        def once(_: Array, carry: Any) -> Any:
            big, pond, total = carry
            big, pond, found = self.big.learn(big, pond)
            return big, pond, total + found

        carry = (big, pond, self.big.nothing)
        big, pond, total = jax.lax.fori_loop(0, self.times, once, carry)
        return big, pond, total / self.times

    def _idle(self, big: BigState, pond: Any) -> tuple[BigState, Any, Array]:
        return big, pond, self.big.nothing

    def _of_members(self, rows: Rows) -> Rows:
        """[time, policies, env] -> [time, members, agents * env]"""
        members = self.settings.members
        return jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0], members, -1, *leaf.shape[3:]), rows
        )
