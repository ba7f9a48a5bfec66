"""µs per iteration inside `lax.scan`, for everything that runs inside jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .stopwatch import cpu_us

ITERATIONS = 32

State = Any
Add = Callable[[State, jax.Array], State]  # (state, scale) -> state
Sample = Callable[[State, jax.Array], tuple[State, Any]]  # (state, key) -> state, arrays


def fill(add: Add, state: State, times: int) -> State:
    """The state after `times` adds, in one compiled program."""

    def body(state: State, scale: jax.Array) -> tuple[State, None]:
        return add(state, scale), None

    run = jax.jit(lambda state, xs: jax.lax.scan(body, state, xs)[0], donate_argnums=0)
    return jax.block_until_ready(run(state, jnp.ones(times)))


def scan_us(
    step: Callable[[State, jax.Array, jax.Array], tuple[State, Any]], state: State
) -> float:
    """CPU µs per iteration of (state, scale, key) -> (state, arrays); the state is donated.

    `scale` differs per iteration, so that no step can be computed once before the loop; the mean
    of every returned array is carried along, so that none can be left out.
    """

    def body(carry: tuple[State, jax.Array], x: tuple[jax.Array, jax.Array]) -> Any:
        state, total = carry
        state, arrays = step(state, *x)
        for leaf in jax.tree.leaves(arrays):
            total = total + leaf.astype(jnp.float32).mean()
        return (state, total), None

    @jax.jit
    def inputs(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 1 + jax.random.uniform(key, (ITERATIONS,)), jax.random.split(key, ITERATIONS)

    run = jax.jit(lambda carry, xs: jax.lax.scan(body, carry, xs)[0], donate_argnums=0)
    xs = jax.block_until_ready(inputs(jax.random.key(0)))
    carry = (state, jnp.float32(0))

    def call() -> None:
        nonlocal carry
        carry = jax.block_until_ready(run(carry, xs))

    return cpu_us(call, per_call=ITERATIONS)


def add_only(add: Add, state: State) -> float:
    """µs per add."""
    return scan_us(lambda state, scale, key: (add(state, scale), ()), state)


def add_first(add: Add, sample: Sample, state: State) -> float:
    """µs per iteration that adds, then samples."""
    return scan_us(lambda state, scale, key: sample(add(state, scale), key), state)


def sample_first(add: Add, sample: Sample, state: State) -> float:
    """µs per iteration that samples, then adds: the order in which XLA likes to copy the ring."""

    def step(state: State, scale: jax.Array, key: jax.Array) -> tuple[State, Any]:
        state, arrays = sample(state, key)
        return add(state, scale), arrays

    return scan_us(step, state)
