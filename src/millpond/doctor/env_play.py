"""An environment played at random: its rows, and the states that envs in JAX came to."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from ..envs import Env, HostEnv, VectorEnv, action_of, any_action, checked_vector, spec_of
from ..rows import Rows
from .play import Play

ENVS, TURNS = 16, 256
_BYTES = 96 << 20  # of all that is observed in one play
_SEED = 7
_TIMES = 8  # at which the states of envs are kept


class Game(NamedTuple):
    """Some turns of envs, and where they stand then."""

    play: Play
    rows: Rows  # [time, agents, envs]
    state: Any  # EnvState of envs in JAX, else None
    states: Any  # of the same envs at several times, as one axis
    seconds: float


def sizes_for(world: Any, envs: int = ENVS, turns: int = TURNS) -> tuple[int, int]:
    """Envs and turns whose observations fit."""
    each = sum(field.size * field.dtype.itemsize for field in spec_of(world).columns.values())
    fit = max(2 * 32, _BYTES // (each * world.num_agents * 4))
    envs = max(2, min(envs, fit // 32))
    return envs, max(32, min(turns, fit // envs))


def played(world: Any, envs: int, turns: int, seed: int = _SEED) -> Game:
    """A random player's rows, the same for the same seed."""
    spec = spec_of(world)
    if isinstance(world, Env):
        rows, states, seconds = _on_device(world, envs, turns, seed)
        state = jax.tree.map(lambda leaf: leaf[-1], states)
        states = jax.tree.map(
            lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), states
        )
    else:
        assert isinstance(world, HostEnv)
        rows, state, seconds = _on_host(world, envs, turns, seed)
        states = None
    return Game(Play.of(spec, rows, "a random player"), rows, state, states, seconds)


def _on_device(world: Env, envs: int, turns: int, seed: int) -> tuple[Rows, Any, float]:
    vector, field = VectorEnv(world, envs), action_of(world)

    def turn(state: Any, key: jax.Array) -> tuple[Any, Rows]:
        acting, stepping = jax.random.split(key)
        action = any_action(field, acting, (world.num_agents, envs))
        return vector.step(state, action, stepping)

    parts = _TIMES if turns % _TIMES == 0 else 1

    def part(state: Any, keys: jax.Array) -> tuple[Any, tuple[Rows, Any]]:
        state, rows = jax.lax.scan(turn, state, keys)
        return state, (rows, state)

    @jax.jit
    def run(key: jax.Array) -> tuple[Any, Rows]:
        begin, going = jax.random.split(key)
        keys = jax.random.split(going, turns).reshape(parts, -1)
        rows, states = jax.lax.scan(part, vector.reset(begin), keys)[1]
        return states, jax.tree.map(lambda leaf: leaf.reshape(turns, *leaf.shape[2:]), rows)

    compiled = run.lower(jax.random.key(seed)).compile()
    began = time.perf_counter()
    states, rows = jax.block_until_ready(compiled(jax.random.key(seed)))
    return jax.device_get(rows), states, time.perf_counter() - began


def _on_host(world: HostEnv, envs: int, turns: int, seed: int) -> tuple[Rows, None, float]:
    vector, field = checked_vector(world, envs, seed), action_of(world)
    shape = (turns, world.num_agents, envs)
    action = np.asarray(any_action(field, jax.random.key(seed), shape))
    taken: list[Rows] = []
    began = time.perf_counter()
    try:
        for act in action:
            taken.append(jax.tree.map(np.array, vector.step(act)))
    finally:
        vector.close()
    rows = jax.tree.map(lambda *leaves: np.stack(leaves), *taken)
    return rows, None, time.perf_counter() - began
