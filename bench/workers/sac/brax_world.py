"""Brax's envs as the bare program steps them: reset to the state that each env began with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from brax import envs as brax_envs

EPISODE = 1000


class BraxWorld:
    """`Bare(2048, 4096, 1_024_000, 256, world=BraxWorld("hopper", "positional", 2048))`"""

    most, terminates = 1.0, True

    def __init__(self, name: str, backend: str, envs: int) -> None:
        self.env, self.envs = brax_envs.get_environment(name, backend=backend), envs
        self.obs, self.actions = self.env.observation_size, self.env.action_size

    def begin(self, key):
        first = jax.vmap(self.env.reset)(jax.random.split(key, self.envs))
        return first, first, jnp.zeros(self.envs, jnp.int32)

    def see(self, state):
        return state[0].obs

    def step(self, state, action, key):
        """The state after it; the observation before any reset, the reward, if it goes on."""
        now, first, turn = state
        after = jax.vmap(self.env.step)(now, action)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, now)
        terminated = after.done > 0
        over = terminated | (turn + 1 >= EPISODE)

        def begun(fresh, old):
            return jnp.where(over.reshape(-1, *(1,) * (old.ndim - 1)), fresh, old)

        world = jax.tree.map(begun, first, after), first, jnp.where(over, 0, turn + 1)
        return world, (after.obs, after.reward, 1.0 - terminated)
