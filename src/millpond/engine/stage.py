"""`Stage`: envs in JAX and the policies that act in them: look, act, step, as pure functions.

The fused loop, the actors of a crew and the mixture all use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Now, Rollout
from ..agents.q_agent import unrolled
from ..envs import Env, EnvState, VectorEnv
from ..rows import BORDER, FIRST, TERMINATED, TRUNCATED, Array, Rows, pack_flags
from .player import Move, Past, Player

Fate = tuple[Any, jax.Array]  # the random numbers of one turn, or of each of many
KeyOf = Callable[[Array], jax.Array]  # the key of a turn


class Stage:
    """`envs, move, rows = stage.turn(params, envs, history, fate, now)`."""

    def __init__(self, env: Env, player: Player) -> None:
        self.player = player
        self.envs = VectorEnv(env, player.population.all_envs)

    def fate(self, first: Array, turns: int, act: KeyOf, step: KeyOf) -> Fate:
        """The agents' random numbers and the envs' keys of `turns` turns from `first` on.

        They are drawn together, in a few large kernels.
        """
        numbers = first + jnp.arange(turns, dtype=np.uint32)
        chance = jax.vmap(lambda turn: self.player.chance(act(turn)))(numbers)
        return chance, jax.vmap(step)(numbers)

    def turn(
        self, params: Any, envs: EnvState, history: Past, fate: Fate, now: Now
    ) -> tuple[EnvState, Move, Rows]:
        """One turn of all policies; continue with the move's history."""
        chance, key = fate
        population = self.player.population
        move = self.player.move(params, history, *population.seen(envs, jnp), chance, now)
        envs, rows = self.envs.step(envs, population.by_env(move.action), key)
        return envs, move, population.by_policy(rows)

    def rollout(
        self, params: Any, envs: EnvState, history: Past, fates: Fate, now: Now
    ) -> tuple[EnvState, Past, Rollout]:
        """All turns of `fates`, as the rollout [time, policies, envs] that agents learn from."""
        memory = None if history.memory is None else history.memory[None]

        def turn(carry: tuple[EnvState, Past], fate: Fate) -> tuple[Any, Any]:
            envs, move, rows = self.turn(params, *carry, fate, now)
            # Flags in one byte, as every column costs a kernel per turn.
            byte = pack_flags(rows.flags, rows.terminated, rows.truncated, None)
            seen = (move.stacks, rows.action, rows.reward, byte, move.worth)
            return (envs, move.history), seen

        (envs, history), seen = jax.lax.scan(turn, (envs, history), fates, unroll=unrolled(2))
        stacks, action, reward, byte, value = seen
        value = jnp.concatenate([value, self.worth(params, envs, history)[None]])
        ends = (byte & TERMINATED) != 0, (byte & TRUNCATED) != 0
        flags = byte & np.uint8(FIRST | BORDER)
        return envs, history, Rollout(stacks, action, reward, *ends, flags, value, memory)

    def worth(self, params: Any, envs: EnvState, history: Past) -> Array:
        """The values of the current states: float32[policies, envs]."""
        return self.player.worth(params, history, *self.player.population.seen(envs, jnp))
