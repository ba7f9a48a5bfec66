"""`VectorEnv`: many copies of an env in one program, with next-step autoreset."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import BORDER, FIRST, Array, Rows, next_flags
from ..spec import Field
from .actions import action_of
from .checked import check_traced
from .env import Env, Outcome


class EnvState(NamedTuple):
    """Envs between two turns: their states, and the observations and flags of the next rows.

    `state = envs.reset(key)`; act on `state.obs[agent]`.
    """

    inner: Any  # [env]
    obs: Array  # [agents, env, *shape]
    flags: Array  # uint8[env]


class VectorEnv:
    """`num_envs` copies of an `Env`, as pure functions for use inside jit.

    `state = envs.reset(key); state, rows = envs.step(state, action, key)`, rows [agents, env].
    """

    def __init__(self, env: Env, num_envs: int) -> None:
        self.env, self.num_envs = env, num_envs
        self._dummy = action_of(env).lowest()  # recorded in border rows, which have no action

    def reset(self, key: jax.Array) -> EnvState:
        """Reset all envs: each is at the first row of an episode."""
        inner = jax.vmap(self.env.reset)(jax.random.split(key, self.num_envs))
        return EnvState(inner, self._observe(inner), jnp.full(self.num_envs, FIRST, np.uint8))

    def step(self, state: EnvState, action: Array, key: jax.Array) -> tuple[EnvState, Rows]:
        """One turn with action [agents, env, ...]; envs at a border row begin a new episode.

        The action at a border row has no effect; the lowest action is recorded there.
        """
        border = (state.flags & BORDER) != 0
        stepping, resetting = jax.random.split(key)
        keys = jax.random.split(stepping, self.num_envs)
        each = border.reshape(-1, *(1,) * self._dummy.ndim)
        action = jnp.where(each, self._dummy, action).astype(self._dummy.dtype)
        inner, outcome = jax.vmap(self.env.step, in_axes=(0, 1, 0))(state.inner, action, keys)
        self._check_outcome(outcome)

        def begin(inner: Any) -> Any:
            fresh = jax.vmap(self.env.reset)(jax.random.split(resetting, self.num_envs))
            return _where(border, fresh, inner)

        if jax.default_backend() == "cpu":
            # In most turns no episode has ended, and computing a reset can be skipped.
            inner = jax.lax.cond(border.any(), begin, lambda inner: inner, inner)
        else:
            # On a GPU a branch waits for the host, which costs more than a reset.
            inner = begin(inner)
        reward = jnp.where(border[:, None], 0, outcome.reward).astype(np.float32).T
        ended = Outcome(reward, outcome.terminated & ~border, outcome.truncated & ~border)
        rows = self._rows(state, action, ended)
        flags = next_flags(state.flags, ended.terminated, ended.truncated)
        return EnvState(inner, self._observe(inner), flags), rows

    def _observe(self, inner: Any) -> Array:
        seen = jax.vmap(self.env.observe)(inner)
        lead = (self.num_envs, self.env.num_agents)
        check_traced(self.env, "obs", self.env.observation, lead, seen)
        return jnp.moveaxis(seen, 0, 1)

    def _check_outcome(self, outcome: Outcome) -> None:
        """Check shapes while tracing, because wrong ones would be broadcast silently."""
        lead = (self.num_envs,)
        reward = Field("float32", (self.env.num_agents,))
        check_traced(self.env, "reward", reward, lead, outcome.reward)
        for name in ("terminated", "truncated"):
            check_traced(self.env, name, Field("bool"), lead, getattr(outcome, name))

    def _rows(self, state: EnvState, action: Array, outcome: Outcome) -> Rows:
        def every_agent(flag: Array) -> Array:
            return jnp.broadcast_to(flag, action.shape[:2])

        return Rows(
            obs=state.obs,
            action=action,
            reward=outcome.reward,
            terminated=every_agent(outcome.terminated),
            truncated=every_agent(outcome.truncated),
            flags=every_agent(state.flags),
        )


def _where(which: Array, new: Any, old: Any) -> Any:
    """Per env, leaves [env, ...] of `new` where `which` is true, else of `old`."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (b.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)
