"""`Agents`: agents that learn independently and add their rows to their own Ponds."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax

from ..agents import AgentState, Rollout
from ..engine.episode_stats import Sums, count, learned, no_sums, numbers_of
from ..engine.keys import Role
from ..replay import Pond
from ..rows import Array, Rows
from .acting import ActingState, MixActing
from .settings import MixSettings

SOLO_SALT = 2  # policy p alone has salt 2 + p; all agents together have 0, the BigAgent 1


class AgentsState(NamedTuple):
    """The state of the agents between two updates; holds only arrays."""

    acting: ActingState
    agent: AgentState  # [policies]
    ponds: Any  # PondState [policies]; None with transfer live


class Agents:
    """The agents of all members as one jitted program.

    `state, sums, rows = agents.update(state, sums)` is one pure update: collect a rollout and learn
    from it. `agents.round(state, updates)` makes many and adds the rows to the Ponds, from which
    the agents never learn. With `only` the program runs that one policy of the mixture.
    """

    def __init__(self, settings: MixSettings, only: int | None = None) -> None:
        self.settings, self.policies = settings, settings.policies if only is None else 1
        playing = dataclasses.replace(settings.playing, members=self.policies)
        horizon = settings.updates * settings.rows_per_update
        first, salt = (0, 0) if only is None else (only, SOLO_SALT + only)
        siblings = settings.agents
        self.acting = MixActing(playing, settings.epsilon, horizon, siblings, salt, first)
        self.agent = self.acting.agent
        self.pond = Pond(self.acting.spec, settings.pond, settings.envs, playing.window)
        self._round = jax.jit(self._run, donate_argnums=0)

    repeats = True  # after a crash, the rows since the last save are played again identically

    def begin(self, state: AgentsState, resumed: bool) -> AgentsState:
        """Prepare a session; returns the state to continue from."""
        return state

    def close(self) -> None:
        """End the session."""

    def init(self, ponds: bool = True) -> AgentsState:
        """Freshly initialised agents, envs and, unless `ponds` is false, Ponds."""
        keys = jax.random.split(self.acting.key(Role.PARAMETERS, 0), self.policies)
        filled = self.pond.init_many(self.policies) if ponds else None
        return AgentsState(self.acting.init(), jax.vmap(self.agent.init)(keys), filled)

    def round(self, state: AgentsState, updates: int) -> tuple[AgentsState, Sums]:
        """Make `updates` updates of every agent and add the rows to the Ponds; donates `state`."""
        state, sums = self._round(state, self.no_sums(), updates)
        return state, jax.device_get(sums)

    def no_sums(self) -> Sums:
        """Sums over nothing, to start from."""
        return no_sums(self.policies, len(self.agent.reports))

    def update(self, state: AgentsState, sums: Sums) -> tuple[AgentsState, Sums, Rows]:
        """One rollout of every agent and the update from it; rows are [time, policies, env]."""
        turns = self.settings.learns.turns
        now, rollout = self.acting.rollout(state.agent.params, state.acting, turns)
        state, sums = self.learn(state._replace(acting=now), sums, rollout)
        return state, sums, Rows(newest(rollout), *rollout[1:6])

    def learn(self, state: AgentsState, sums: Sums, rollout: Rollout) -> tuple[AgentsState, Sums]:
        """Count the rollout's rows and learn from them."""
        now = state.acting
        tally, sums = count(now.tally, sums, rollout)
        state = state._replace(acting=now._replace(tally=tally))
        keys = jax.random.split(self.acting.key(Role.LEARN, now.turn), self.policies)
        learn = jax.vmap(self.agent.learn, in_axes=(0, 1, 0, 0))
        agent, found, _ = learn(state.agent, rollout, self.acting.now(state.acting), keys)
        found = numbers_of(found, self.agent.reports)
        return state._replace(agent=agent), learned(sums, found, self.settings.minibatches)

    def add(self, state: AgentsState, rows: Rows) -> AgentsState:
        """Add rows [time, policies, env] to every agent's own Pond."""
        axes = self.pond.axes
        add = jax.vmap(self.pond.add, in_axes=(axes, 1), out_axes=axes)
        return state._replace(ponds=add(state.ponds, rows))

    def _run(self, state: AgentsState, sums: Sums, updates: Array) -> tuple[AgentsState, Sums]:
        def body(_: Array, carry: tuple[AgentsState, Sums]) -> tuple[AgentsState, Sums]:
            state, sums, rows = self.update(*carry)
            return self.add(state, rows), sums

        return jax.lax.fori_loop(0, updates, body, (state, sums))


def newest(rollout: Rollout) -> Array:
    """The newest frame of every stack in a rollout: [time, policies, env, ...]."""
    return rollout.obs[:, :, :, -1]
