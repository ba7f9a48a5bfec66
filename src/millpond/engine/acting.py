"""`Acting`: what all actors of a run share, wherever their envs run: player, shapes, schedules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now, Rollouts
from ..rows import Array
from .keys import Role, key_of
from .player import Move, make_player
from .provenance import stack_hash
from .settings import Settings

Params = tuple[Any, ...]  # one tree for each learner, [its policies]


class Acting:
    """The constants of a run's actors: `acting.player` acts for all policies at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turns = settings.learns.turns
        self.bootstraps = isinstance(settings.learns, Rollouts)
        self.player = make_player(settings, settings.envs // settings.actors)
        self.population = self.player.population

    def now(self, steps: Array, xp: Any = np) -> dict[str, Array]:
        """The schedules [policies]; `steps` are those of one actor, an equal share of all."""
        agents = np.arange(self.population.policies)
        return self.settings.now(steps * self.settings.actors, agents, xp)

    def provenance(self, versions: Array, now: Now, move: Move) -> dict[str, Array]:
        """The extras that one turn adds to its rows, [policies, envs]."""
        shape = move.worth.shape
        epsilon = now.get("epsilon", jnp.zeros(shape[0]))
        extras = {
            "policy_version": jnp.broadcast_to(versions[:, None], shape),
            "epsilon": jnp.broadcast_to(epsilon[:, None], shape).astype(np.float32),
            "stack_hash": stack_hash(move.stacks, 2),
        }
        return extras | move.extras | ({"worth": move.worth} if self.bootstraps else {})


def all_policies(params: Params) -> Any:
    """The learners' parameters as one tree [policies]. Inside jit."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *params)


def actor_key(settings: Settings, role: Role, index: int, incarnation: int) -> jax.Array:
    """The key of one role in one incarnation of one actor."""
    return jax.random.fold_in(jax.random.fold_in(key_of(settings.seed, role), index), incarnation)
