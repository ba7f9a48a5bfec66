"""`Player`: from observations to stacks, and from stacks to actions, for all policies at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now
from ..envs import spec_of
from ..rows import FIRST, Array, Tree
from ..window import History, Stacker
from .make_agent import make_agent
from .population import Population
from .settings import Settings


class Past(NamedTuple):
    """What policies know of the episode so far: the newest frames, and the agent's memory."""

    frames: Tree  # with `depth`, the `History` of a Stacker: [policies * envs]
    depth: Array
    memory: Any = None  # float32[policies, envs, units] for agents with memory


class Move(NamedTuple):
    """One turn of all policies, before the envs step: [policies, envs, ...]."""

    history: Past  # to continue with
    stacks: Array
    worth: Array  # [policies, envs]
    action: Array
    memory: Any = None  # before this turn; zeros where an episode begins

    @property
    def extras(self) -> dict[str, Array]:
        """What is stored with the rows."""
        return {} if self.memory is None else {"memory": self.memory}


def make_player(settings: Settings, envs: int) -> Player:
    """The player of a run's policies, in `envs` envs for each member."""
    world: Any = settings.world
    stacker = Stacker(spec_of(world), settings.sight)
    population = Population(settings.members, world.num_agents, envs)
    return Player(make_agent(settings), stacker, population)


class Player:
    """Acts for all policies at once; its methods are pure."""

    def __init__(self, agent: Any, stacker: Stacker, population: Population) -> None:
        self.agent, self.stacker, self.population = agent, stacker, population

    def init(self) -> Past:
        """Nothing seen yet."""
        population, units = self.population, memory_of(self.agent)
        history = self.stacker.init(population.policies * population.envs)
        shape = (population.policies, population.envs, units)
        return Past(*history, np.zeros(shape, np.float32) if units else None)

    def look(self, history: Past, obs: Array, flags: Array) -> tuple[Past, Array]:
        """From obs[policies, envs, ...] and flags to stacks [policies, envs, stack, ...].

        Where an episode begins, frames and memory of the one before are dropped.
        """
        flat, memory = self.population.flat, history.memory
        seen = History(history.frames, history.depth)
        seen, stacks = self.stacker.push(seen, flat(obs), flat(flags))
        if memory is not None:
            memory = jnp.where(((flags & FIRST) != 0)[..., None], 0, memory)
        return Past(*seen, memory), self.population.deep(stacks)

    def worth(self, params: Any, history: Past, obs: Array, flags: Array) -> Array:
        """Every policy's value of its states: [policies, envs]."""
        history, stacks = self.look(history, obs, flags)
        return jax.vmap(self.agent.worth)(params, stacks, *_given(history))

    def best(self, params: Any, history: Past, stacks: Array) -> tuple[Past, Array]:
        """Every policy's greedy actions: [policies, envs, ...]."""
        found = jax.vmap(self.agent.best)(params, stacks, *_given(history))
        return _after(history, found)

    def chance(self, key: jax.Array) -> Any:
        """The random numbers of one turn of all policies: [policies, envs]."""
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
        """Look and choose actions, exploring by the schedules in `now`, each [policies]."""
        before, stacks = self.look(history, obs, flags)
        found = jax.vmap(self.agent.act)(params, stacks, chance, now, *_given(before))
        after, (action, worth) = _after(before, found)
        return Move(after, stacks, worth, action, before.memory)


def memory_of(agent: Any) -> int:
    """How many numbers an agent remembers from turn to turn; 0 if it does not say."""
    return getattr(agent, "memory", 0)


def _given(history: Past) -> tuple[Array, ...]:
    """The extra argument that agents with memory take."""
    return () if history.memory is None else (history.memory,)


def _after(history: Past, found: Any) -> tuple[Past, Any]:
    """Separate what an agent returned from the memory that follows it, if it has one."""
    if history.memory is None:
        return history, found
    found, memory = found
    return history._replace(memory=memory), found
