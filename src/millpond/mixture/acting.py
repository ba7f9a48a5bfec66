"""`MixActing`: the acting side of a mixture's policies, as pure functions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now, Rollout
from ..engine.episode_stats import EpisodeStats, new_stats
from ..engine.keys import Role, key_of
from ..engine.make_agent import make_agent
from ..engine.player import Past, Player
from ..engine.population import Population
from ..engine.settings import Settings
from ..engine.stage import Fate, Stage
from ..envs import Env, EnvState, spec_of
from ..rows import Array, Rows
from ..schedule import Schedule
from ..window import Stacker


class ActingState(NamedTuple):
    """What is carried from turn to turn: envs, histories, counts, and when epsilon restarted."""

    envs: EnvState | None  # None: they are on the host
    history: Past
    tally: EpisodeStats
    turn: Array  # uint32: turns since the run began
    origin: Array  # uint32[policies]: own steps at epsilon's latest restart
    restarts: Array  # int32: restarts so far


class MixActing:
    """`state, rows = acting.turn(params, state, fate, now)`; rows are [policies, envs].

    Epsilon follows `schedule` over `horizon` own steps from each restart on, in which policy p is
    agent (first + p) % siblings. `salt` separates the random numbers of a run's MixActings.
    """

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        horizon: int,
        siblings: int,
        salt: int,
        first: int = 0,
    ) -> None:
        self.settings, self.schedule, self.horizon = settings, schedule, horizon
        self.siblings, self.salt, self.first = siblings, salt, first
        self.spec = spec_of(settings.world)
        self.agent = make_agent(settings)
        self.population = Population(settings.members, 1, settings.envs)
        self.player = Player(self.agent, Stacker(self.spec, settings.sight), self.population)

    @functools.cached_property
    def stage(self) -> Stage:
        """The envs, if they run in JAX."""
        return Stage(self.settings.world, self.player)

    def init(self) -> ActingState:
        """The initial state: all envs at the first row of an episode."""
        policies = self.population.policies
        in_jax = isinstance(self.settings.world, Env)
        envs = self.stage.envs.reset(self.key(Role.RESET, 0)) if in_jax else None
        tally = new_stats(policies, self.settings.envs)
        never = np.zeros(policies, np.uint32)
        state = ActingState(envs, self.player.init(), tally, np.uint32(0), never, np.int32(0))
        return jax.tree.map(jnp.asarray, state)

    def key(self, role: Role, turn: Array) -> jax.Array:
        """The random key for a role at a turn."""
        return jax.random.fold_in(key_of(self.settings.seed, role, turn), self.salt)

    def now(self, state: ActingState) -> dict[str, Array]:
        """The schedules' values [policies] at each policy's own steps."""
        now = self.settings.now(state.tally.steps, xp=jnp)
        return now | {"epsilon": self.epsilon(state)}

    def epsilon(self, state: ActingState) -> Array:
        """The current epsilon, float32[policies]."""
        agents = (self.first + np.arange(self.population.policies)) % self.siblings
        return self.schedule.at(
            state.tally.steps, self.horizon, agents, state.origin, state.restarts, jnp
        )

    def restart(self, state: ActingState) -> ActingState:
        """Restart epsilon, at the schedule's next restart level."""
        return state._replace(origin=state.tally.steps, restarts=state.restarts + 1)

    def fates(self, state: ActingState, turns: int) -> Fate:
        """The random numbers of the next turns."""
        return self.stage.fate(
            state.turn,
            turns,
            functools.partial(self.key, Role.ACT),
            functools.partial(self.key, Role.ENV),
        )

    def turn(
        self, params: Any, state: ActingState, fate: Fate, now: Now
    ) -> tuple[ActingState, Rows]:
        """Act and step once. Does not count the rows; see `engine.episode_stats.count`."""
        assert state.envs is not None
        envs, move, rows = self.stage.turn(params, state.envs, state.history, fate, now)
        return state._replace(envs=envs, history=move.history, turn=state.turn + 1), rows

    def rollout(self, params: Any, state: ActingState, turns: int) -> tuple[ActingState, Rollout]:
        """Play `turns` turns with constant epsilon; the rollout is [time, policies, envs]."""
        assert state.envs is not None
        fates, now = self.fates(state, turns), self.now(state)
        envs, history, rollout = self.stage.rollout(params, state.envs, state.history, fates, now)
        turn = state.turn + np.uint32(turns)
        return state._replace(envs=envs, history=history, turn=turn), rollout
