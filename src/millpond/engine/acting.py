"""`Acting`: what actors are made of wherever their envs run: the player, the shapes, epsilon."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now, Rollouts
from ..envs import spec_of
from ..rows import Array
from ..window import Stacker
from .keys import Role, key_of
from .make_agent import make_agent
from .player import Move, Player
from .population import Population
from .provenance import stack_hash
from .settings import Settings

Params = tuple[Any, ...]  # of every learner one tree, [its policies]


class Acting:
    """Of one run; it never changes."""

    def __init__(self, settings: Settings) -> None:
        world: Any = settings.world
        self.settings = settings
        self.turns = settings.learns.turns
        self.bootstraps = isinstance(settings.learns, Rollouts)
        self.envs_here = settings.envs // settings.actors
        self.population = Population(settings.members, world.num_agents, self.envs_here)
        stacker = Stacker(spec_of(world), settings.sight)
        self.player = Player(make_agent(settings), stacker, self.population)

    def now(self, steps: Array, xp: Any = np) -> dict[str, Array]:
        """The schedules [policies] at the steps of all actors; ours are an equal share of them."""
        agents = np.arange(self.population.policies)
        return self.settings.now(steps * self.settings.actors, agents, xp)

    def provenance(self, versions: Array, now: Now, move: Move) -> dict[str, Array]:
        """The extras of one turn, [policies, envs]."""
        shape = move.worth.shape
        epsilon = now.get("epsilon", jnp.zeros(shape[0]))
        extras = {
            "policy_version": jnp.broadcast_to(versions[:, None], shape),
            "epsilon": jnp.broadcast_to(epsilon[:, None], shape).astype(np.float32),
            "stack_hash": stack_hash(move.stacks, 2),
        }
        return extras | move.extras | ({"worth": move.worth} if self.bootstraps else {})


def all_policies(params: Params) -> Any:
    """One tree [policies]. Inside jit."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *params)


def actor_key(settings: Settings, role: Role, index: int, incarnation: int) -> jax.Array:
    """Random numbers of one role in one incarnation of one actor."""
    return jax.random.fold_in(jax.random.fold_in(key_of(settings.seed, role), index), incarnation)
