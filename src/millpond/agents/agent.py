"""What every agent is made of: its state, how it acts, and what an update reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..rows import Array


class AgentState(NamedTuple):
    """Everything an agent has learned. `target` is None for agents without a target network.

    `updates` counts gradients; `synced` counts changes of the target network. Once `bad` is true
    a gradient was not finite and the state has stayed as it was before it.
    """

    params: Any
    target: Any
    optimizer: Any
    updates: Array  # uint32
    synced: Array  # uint32
    bad: Array  # bool


class Learned(NamedTuple):
    """What one update found: float32 each, and the error of every entry of its batch."""

    loss: Array
    q: Array
    gradient: Array
    change: Array  # norm of the change over norm of the parameters
    error: Array  # float32[batch]


def explore(values: Array, key: jax.Array, epsilon: Array) -> Array:
    """Epsilon-greedy actions int32[batch] from float32[batch, actions]."""
    coin, choice = jax.random.split(key)
    greedy = values.argmax(-1).astype(np.int32)
    anything = jax.random.randint(choice, greedy.shape, 0, values.shape[-1], np.int32)
    return jnp.where(jax.random.uniform(coin, greedy.shape) < epsilon, anything, greedy)


def settle(old: AgentState, new: AgentState, loss: Array, gradient: Any) -> AgentState:
    """`new`, if loss, gradient and parameters are finite and nothing bad came before; else `old`.

    One number tells all: the sum of a tree is finite only if every leaf of it is.
    """
    total = loss + optax.global_norm(gradient) + optax.global_norm(new.params)
    good = jnp.isfinite(total) & ~old.bad
    kept = jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)
    return kept._replace(bad=~good)
