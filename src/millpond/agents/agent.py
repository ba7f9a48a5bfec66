"""What every agent is made of: its state, how it acts, and what an update reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..rows import Array
from .optimizer import Optimizer


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


class Step(NamedTuple):
    """A gradient made into a change of parameters, if all of it is finite."""

    params: Any
    optimizer: Any
    updates: Array
    good: Array  # bool: false means that nothing changed
    gradient: Array  # its norm
    change: Array  # norm of the change over norm of the parameters


def step(rule: Optimizer, state: AgentState, loss: Array, gradient: Any, rate: Array) -> Step:
    """Apply one gradient, unless it or what came before was not finite.

    The norm of a tree is finite only if every number in it is. It is judged before anything is
    changed, so that choosing between old and new costs no pass of its own over the parameters.
    """
    change, optimizer = rule.change(gradient, state.optimizer, state.params, rate)
    steepness, moved = optax.global_norm(gradient), optax.global_norm(change)
    good = jnp.isfinite(loss + steepness + moved) & ~state.bad

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(good, new, old)

    params = jax.tree.map(lambda p, c: keep(p + c, p), state.params, change)
    optimizer = jax.tree.map(keep, optimizer, state.optimizer)
    size = optax.global_norm(state.params)
    return Step(params, optimizer, state.updates + good, good, steepness, moved / (size + 1e-12))
