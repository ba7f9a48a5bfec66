"""`Player`: what is seen becomes the stack that is acted on, and that becomes an action."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from ..agents import Agent, Now
from ..rows import Array
from ..window import History, Stacker
from .population import Population


class Move(NamedTuple):
    """One turn of all policies, before the envs answer: [policies, envs, ...]."""

    history: History  # [policies * envs]
    stacks: Array
    worth: Array  # [policies, envs]
    action: Array


class Player:
    """Acts for all policies at once; pure."""

    def __init__(self, agent: Agent, stacker: Stacker, population: Population) -> None:
        self.agent, self.stacker, self.population = agent, stacker, population

    def init(self) -> History:
        """Nothing seen yet."""
        return self.stacker.init(self.population.policies * self.population.envs)

    def look(self, history: History, obs: Array, flags: Array) -> tuple[History, Array]:
        """Take obs[policies, envs, ...] and flags; give stacks [policies, envs, stack, ...]."""
        flat = self.population.flat
        history, stacks = self.stacker.push(history, flat(obs), flat(flags))
        return history, self.population.deep(stacks)

    def worth(self, params: Any, history: History, obs: Array, flags: Array) -> Array:
        """What every policy thinks that what it sees is worth: [policies, envs]."""
        return jax.vmap(self.agent.worth)(params, self.look(history, obs, flags)[1])

    def best(self, params: Any, stacks: Array) -> Array:
        """Every policy's greedy actions: [policies, envs, ...]."""
        return jax.vmap(self.agent.best)(params, stacks)

    def chance(self, key: jax.Array) -> Any:
        """What one turn of all policies leaves to chance: [policies, envs]."""
        keys, envs = jax.random.split(key, self.population.policies), self.population.envs
        return jax.vmap(lambda key: self.agent.chance(key, envs))(keys)

    def move(
        self,
        params: Any,
        history: History,
        obs: Array,
        flags: Array,
        chance: Any,
        now: Now,
    ) -> Move:
        """Look and choose, exploring as the schedules say `now`: [policies] each."""
        history, stacks = self.look(history, obs, flags)
        action, worth = jax.vmap(self.agent.act)(params, stacks, chance, now)
        return Move(history, stacks, worth, action)
