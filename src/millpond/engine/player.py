"""`Player`: what is seen becomes the stack that is acted on, and that becomes an action."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now
from ..rows import FIRST, Array, Tree
from ..window import History, Stacker
from .population import Population


class Past(NamedTuple):
    """What policies know of the episode so far: the newest frames, and their agent's memory."""

    frames: Tree  # with `depth`, the `History` of a Stacker: [policies * envs]
    depth: Array
    memory: Any = None  # float32[policies, envs, units], of agents that have one


class Move(NamedTuple):
    """One turn of all policies, before the envs answer: [policies, envs, ...]."""

    history: Past  # to continue with
    stacks: Array
    worth: Array  # [policies, envs]
    action: Array
    memory: Any = None  # that was acted with: before this turn, empty where an episode begins

    @property
    def extras(self) -> dict[str, Array]:
        """What of it is stored with the row."""
        return {} if self.memory is None else {"memory": self.memory}


class Player:
    """Acts for all policies at once; pure."""

    def __init__(self, agent: Any, stacker: Stacker, population: Population) -> None:
        self.agent, self.stacker, self.population = agent, stacker, population

    def init(self) -> Past:
        """Nothing seen yet."""
        population, units = self.population, memory_of(self.agent)
        history = self.stacker.init(population.policies * population.envs)
        shape = (population.policies, population.envs, units)
        return Past(*history, np.zeros(shape, np.float32) if units else None)

    def look(self, history: Past, obs: Array, flags: Array) -> tuple[Past, Array]:
        """Take obs[policies, envs, ...] and flags; give stacks [policies, envs, stack, ...].

        Where an episode begins, neither frames nor memory of the one before are left.
        """
        flat, memory = self.population.flat, history.memory
        seen = History(history.frames, history.depth)
        seen, stacks = self.stacker.push(seen, flat(obs), flat(flags))
        if memory is not None:
            memory = jnp.where(((flags & FIRST) != 0)[..., None], 0, memory)
        return Past(*seen, memory), self.population.deep(stacks)

    def worth(self, params: Any, history: Past, obs: Array, flags: Array) -> Array:
        """What every policy thinks that what it sees is worth: [policies, envs]."""
        history, stacks = self.look(history, obs, flags)
        return jax.vmap(self.agent.worth)(params, stacks, *_given(history))

    def best(self, params: Any, history: Past, stacks: Array) -> tuple[Past, Array]:
        """Every policy's greedy actions: [policies, envs, ...]."""
        found = jax.vmap(self.agent.best)(params, stacks, *_given(history))
        return _after(history, found)

    def chance(self, key: jax.Array) -> Any:
        """What one turn of all policies leaves to chance: [policies, envs]."""
        keys, envs = jax.random.split(key, self.population.policies), self.population.envs
        return jax.vmap(lambda key: self.agent.chance(key, envs))(keys)

    def move(
        self,
        params: Any,
        history: Past,
        obs: Array,
        flags: Array,
        chance: Any,
        now: Now,
    ) -> Move:
        """Look and choose, exploring as the schedules say `now`: [policies] each."""
        before, stacks = self.look(history, obs, flags)
        found = jax.vmap(self.agent.act)(params, stacks, chance, now, *_given(before))
        after, (action, worth) = _after(before, found)
        return Move(after, stacks, worth, action, before.memory)


def memory_of(agent: Any) -> int:
    """Numbers that an agent remembers from turn to turn; one that does not say so has none."""
    return getattr(agent, "memory", 0)


def _given(history: Past) -> tuple[Array, ...]:
    """The argument more that agents with a memory take."""
    return () if history.memory is None else (history.memory,)


def _after(history: Past, found: Any) -> tuple[Past, Any]:
    """What an agent found, apart from the memory that those who have one return behind it."""
    if history.memory is None:
        return history, found
    found, memory = found
    return history._replace(memory=memory), found
