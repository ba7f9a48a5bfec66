"""`HostedVector`: an `Env` in JAX, stepped from the host like a `HostEnv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadState
from ..once import Once
from ..rows import Array, Rows, Tree
from .actions import action_of
from .env import Env
from .vector import EnvState, VectorEnv


class HostedVector:
    """`num_envs` copies of an `Env` as a `HostVector`: NumPy in and out, one jitted call per step.

    Seed and turn determine all random numbers, so `export` holds the whole state.
    `rows = HostedVector(MinAtar("breakout"), 8, seed=0).step(action)`.
    """

    num_envs: int
    obs: Tree
    flags: np.ndarray

    def __init__(self, env: Env, num_envs: int, seed: int) -> None:
        self.env, self.num_envs = env, num_envs
        self._seed, self._turn = seed, 0
        self._dtype = action_of(env).dtype
        reset, self._step = _programs(env, num_envs)
        self._show(reset(*self._moment()))

    def step(self, action: np.ndarray) -> Rows:
        """Take actions [agents, env, ...]; returns rows [agents, env] as read-only arrays."""
        turn = self._turn + 1
        state, rows = self._step(*self._moment(turn), self._state, np.asarray(action, self._dtype))
        rows = jax.device_get(rows)._replace(obs=self.obs)
        self._turn = turn
        self._show(state)
        return rows

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]."""
        return self.env.render(jax.tree.map(lambda leaf: leaf[0], self._state.inner))

    def export(self) -> dict[str, np.ndarray]:
        """Arrays `seed`, `turn`, and `leaf/0`, `leaf/1`, ... for the leaves of the state."""
        leaves = jax.device_get([_plain(leaf) for leaf in jax.tree.leaves(self._state)])
        arrays = {f"leaf/{i}": np.array(leaf) for i, leaf in enumerate(leaves)}
        moment = {"seed": self._seed, "turn": self._turn}
        return {name: np.array([n], np.int64) for name, n in moment.items()} | arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `export` returned; this also replaces the seed."""
        leaves, tree = jax.tree.flatten(self._state)
        names = {"seed", "turn", *(f"leaf/{i}" for i in range(len(leaves)))}
        if names != set(arrays):
            raise BadState(
                f"{self.env.name}: expected an exported state of {len(leaves)} leaves, got the "
                f"arrays {sorted(arrays)}; restore what export() of the same env returned"
            )
        fresh = [self._fit(i, leaf, arrays[f"leaf/{i}"]) for i, leaf in enumerate(leaves)]
        self._seed, self._turn = int(arrays["seed"][0]), int(arrays["turn"][0])
        self._show(jax.tree.unflatten(tree, fresh))

    def close(self) -> None:
        """Nothing to close."""

    def _fit(self, i: int, leaf: Array, given: np.ndarray) -> Array:
        """`given` as leaf i of the state; BadState if it does not fit."""
        plain = _plain(leaf)
        if (plain.shape, plain.dtype) != (given.shape, given.dtype):
            raise BadState(
                f"{self.env.name}: leaf/{i} is {plain.dtype} {plain.shape}, got {given.dtype} "
                f"{given.shape}; restore into the same env with the same number of copies"
            )
        # Copied, because JAX may share the array's memory and the caller may change it.
        array = jax.device_put(given.copy())
        if not _is_key(leaf):
            return array
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))

    def _moment(self, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Seed and turn as two uint32 words each, high then low; turns can exceed 32 bits."""
        return _words(self._seed), _words(turn)

    def _show(self, state: EnvState) -> None:
        """Keep `state`, and copy its observations to the host once, for acting and for rows."""
        self._state = state
        self.obs, self.flags = jax.device_get((state.obs, state.flags))


def _compile(env: Env, num_envs: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Jitted `reset` and `step`; cached, so that equal envs are compiled once."""
    envs = VectorEnv(env, num_envs)

    def reset(seed: Array, turn: Array) -> EnvState:
        return envs.reset(_key(seed, turn))

    def step(seed: Array, turn: Array, state: EnvState, action: Array) -> tuple[EnvState, Rows]:
        state, rows = envs.step(state, action, _key(seed, turn))
        return state, rows._replace(obs=None)  # the host has it already

    # No donation, because NumPy arrays handed out may share memory with the old state.
    return jax.jit(reset), jax.jit(step)


_programs = Once(_compile, most=32)


def _words(number: int) -> np.ndarray:
    return np.array([number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF], np.uint32)


def _key(seed: Array, turn: Array) -> jax.Array:
    key = jax.random.key(seed[1])
    for word in (seed[0], turn[0], turn[1]):
        key = jax.random.fold_in(key, word)
    return key


def _is_key(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Array) -> Array:
    """PRNG keys as the integers they are made of; other arrays unchanged."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
