"""`Acting`: policies that look, act and step their envs: one turn of all of them, pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents.agent import Chance
from ..envs import EnvState, VectorEnv, spec_of
from ..rows import Array, Rows
from ..schedule import Schedule
from ..train.device_loop import make_agent
from ..train.keys import Role, key_of
from ..train.player import Move, Player
from ..train.population import Population
from ..train.settings import Settings
from ..train.tally import Tally, new_tally
from ..window import History, Stacker


class ActingState(NamedTuple):
    """What policies know between two turns, and where their epsilon began anew."""

    envs: EnvState
    history: History
    tally: Tally
    turn: Array  # uint32: turns since the run began
    origin: Array  # uint32[policies]: own steps at the latest restart
    restarts: Array  # int32


class Acting:
    """`state, move, rows = acting.turn(params, state, fate, epsilon)`: rows [policies, envs].

    Epsilon follows `schedule` over `horizon` own steps from each restart on; policy p is agent
    p % siblings of it. `salt` keeps the random numbers of two such groups of one run apart.
    """

    def __init__(
        self, settings: Settings, schedule: Schedule, horizon: int, siblings: int, salt: int
    ) -> None:
        self.settings, self.schedule, self.horizon = settings, schedule, horizon
        self.siblings, self.salt = siblings, salt
        self.spec = spec_of(settings.world)
        self.agent = make_agent(settings)
        self.population = Population(settings.members, 1, settings.envs)
        self.envs = VectorEnv(settings.world, self.population.all_envs)
        self.player = Player(self.agent, Stacker(self.spec, settings.window), self.population)

    def init(self) -> ActingState:
        """All envs at the first row of an episode."""
        policies = self.population.policies
        envs = self.envs.reset(self.key(Role.RESET, 0))
        tally = new_tally(policies, self.settings.envs)
        never = np.zeros(policies, np.uint32)
        state = ActingState(envs, self.player.init(), tally, np.uint32(0), never, np.int32(0))
        return jax.tree.map(jnp.asarray, state)

    def key(self, role: Role, turn: Array) -> jax.Array:
        """This group's key of a role at a turn."""
        return jax.random.fold_in(key_of(self.settings.seed, role, turn), self.salt)

    def epsilon(self, state: ActingState) -> Array:
        """float32[policies]"""
        agents = np.arange(self.population.policies) % self.siblings
        return self.schedule.at(
            state.tally.steps, self.horizon, agents, state.origin, state.restarts, jnp
        )

    def restart(self, state: ActingState) -> ActingState:
        """Epsilon begins anew, at the level of this restart."""
        return state._replace(origin=state.tally.steps, restarts=state.restarts + 1)

    def fate(self, state: ActingState, turns: int) -> tuple[Chance, jax.Array]:
        """Chance and the envs' keys of the turns to come, drawn at once: few, large kernels.

        For the same reason epsilon is that of the first of them for all.
        """
        numbers = state.turn + jnp.arange(turns, dtype=np.uint32)
        chance = jax.vmap(lambda turn: self.player.chance(self.key(Role.ACT, turn)))(numbers)
        return chance, jax.vmap(lambda turn: self.key(Role.ENV, turn))(numbers)

    def turn(
        self, params: Any, state: ActingState, fate: tuple[Chance, jax.Array], epsilon: Array
    ) -> tuple[ActingState, Move, Rows]:
        """Look, act, step. Whoever has all the turns' rows counts them."""
        chance, key = fate
        move = self.player.move(params, state.history, *self._seen(state), chance, epsilon)
        envs, rows = self.envs.step(state.envs, self.population.by_env(move.action), key)
        rows = self.population.by_policy(rows)
        state = state._replace(envs=envs, history=move.history, turn=state.turn + 1)
        return state, move, rows

    def best_now(self, params: Any, state: ActingState) -> Array:
        """The greedy value of what is seen now: float32[policies, envs]."""
        _, stacks = self.player.look(state.history, *self._seen(state))
        return self.player.values(params, stacks).max(-1)

    def _seen(self, state: ActingState) -> tuple[Array, Array]:
        flags = jnp.broadcast_to(state.envs.flags, state.envs.obs.shape[:2])
        return self.population.by_policy((state.envs.obs, flags))
