"""`Player`: what is seen becomes the stack that is acted on, and that becomes an action."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from ..agents import DQN, PQN
from ..agents.agent import Chance, draw_chance, explore
from ..rows import Array
from ..window import History, Stacker
from .population import Population


class Move(NamedTuple):
    """One turn of all policies, before the envs answer: [policies, envs, ...]."""

    history: History  # [policies * envs]
    stacks: Array
    values: Array  # [policies, envs, actions]
    action: Array


class Player:
    """Acts for all policies at once; pure."""

    def __init__(self, agent: DQN | PQN, stacker: Stacker, population: Population) -> None:
        self.agent, self.stacker, self.population = agent, stacker, population

    def init(self) -> History:
        """Nothing seen yet."""
        return self.stacker.init(self.population.policies * self.population.envs)

    def look(self, history: History, obs: Array, flags: Array) -> tuple[History, Array]:
        """Take obs[policies, envs, ...] and flags; give stacks [policies, envs, stack, ...]."""
        flat = self.population.flat
        history, stacks = self.stacker.push(history, flat(obs), flat(flags))
        return history, self.population.deep(stacks)

    def values(self, params: Any, stacks: Array) -> Array:
        """Every policy's values of its own stacks: [policies, envs, actions]."""
        return jax.vmap(self.agent.values)(params, stacks)

    def chance(self, key: jax.Array) -> Chance:
        """What one turn of all policies leaves to chance: [policies, envs]."""
        keys = jax.random.split(key, self.population.policies)
        envs, actions = self.population.envs, self.agent.actions
        return jax.vmap(lambda key: draw_chance(key, envs, actions))(keys)

    def move(
        self,
        params: Any,
        history: History,
        obs: Array,
        flags: Array,
        chance: Chance,
        epsilon: Array,
    ) -> Move:
        """Look and choose, by chance with probability epsilon[policies]."""
        history, stacks = self.look(history, obs, flags)
        values = self.values(params, stacks)
        return Move(history, stacks, values, jax.vmap(explore)(values, chance, epsilon))


def greedy(values: Array) -> Array:
    """The best action of each: int32[...]"""
    return values.argmax(-1).astype(np.int32)
