"""`MixActing`: policies that look, act and step their envs: one turn of all of them, pure."""

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
    """What policies know between two turns, and where their epsilon restarted."""

    envs: EnvState | None  # None: on the host
    history: Past
    tally: EpisodeStats
    turn: Array  # uint32: turns since the run began
    origin: Array  # uint32[policies]: own steps at the latest restart
    restarts: Array  # int32


class MixActing:
    """`state, rows = acting.turn(params, state, fate, now)`: rows [policies, envs].

    Epsilon follows `schedule` over `horizon` own steps from each restart on; policy p is agent
    (first + p) % siblings of it. `salt` keeps the random numbers of such groups of a run apart.
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
        """The envs, where they run in JAX."""
        return Stage(self.settings.world, self.player)

    def init(self) -> ActingState:
        """All envs at the first row of an episode."""
        policies = self.population.policies
        in_jax = isinstance(self.settings.world, Env)
        envs = self.stage.envs.reset(self.key(Role.RESET, 0)) if in_jax else None
        tally = new_stats(policies, self.settings.envs)
        never = np.zeros(policies, np.uint32)
        state = ActingState(envs, self.player.init(), tally, np.uint32(0), never, np.int32(0))
        return jax.tree.map(jnp.asarray, state)

    def key(self, role: Role, turn: Array) -> jax.Array:
        """This group's key of a role at a turn."""
        return jax.random.fold_in(key_of(self.settings.seed, role, turn), self.salt)

    def now(self, state: ActingState) -> dict[str, Array]:
        """The agents' schedules [policies] by their own steps; epsilon since its latest restart."""
        now = self.settings.now(state.tally.steps, xp=jnp)
        return now | {"epsilon": self.epsilon(state)}

    def epsilon(self, state: ActingState) -> Array:
        """float32[policies]"""
        agents = (self.first + np.arange(self.population.policies)) % self.siblings
        return self.schedule.at(
            state.tally.steps, self.horizon, agents, state.origin, state.restarts, jnp
        )

    def restart(self, state: ActingState) -> ActingState:
        """Epsilon restarts, at the level of this restart."""
        return state._replace(origin=state.tally.steps, restarts=state.restarts + 1)

    def fates(self, state: ActingState, turns: int) -> Fate:
        """What that many turns leave to chance."""
        return self.stage.fate(
            state.turn,
            turns,
            functools.partial(self.key, Role.ACT),
            functools.partial(self.key, Role.ENV),
        )

    def turn(
        self, params: Any, state: ActingState, fate: Fate, now: Now
    ) -> tuple[ActingState, Rows]:
        """One turn. Whoever has all the turns' rows counts them."""
        assert state.envs is not None
        envs, move, rows = self.stage.turn(params, state.envs, state.history, fate, now)
        return state._replace(envs=envs, history=move.history, turn=state.turn + 1), rows

    def rollout(self, params: Any, state: ActingState, turns: int) -> tuple[ActingState, Rollout]:
        """That many turns under one epsilon; the rollout is [time, policies, envs]."""
        assert state.envs is not None
        fates, now = self.fates(state, turns), self.now(state)
        envs, history, rollout = self.stage.rollout(params, state.envs, state.history, fates, now)
        turn = state.turn + np.uint32(turns)
        return state._replace(envs=envs, history=history, turn=turn), rollout
