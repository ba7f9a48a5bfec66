"""What every agent is made of: its state, how it acts, and what an update reports."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..rows import Array
from ..spec import Spec
from .networks import Network, init_params
from .optimizer import Optimizer


class AgentState(NamedTuple):
    """Everything an agent has learned. `target` is None for agents without a target network.

    `updates` counts gradients; `synced` counts changes of the target network. Once `bad` is true
    a gradient was not finite and the state has stayed as it was before it.
    `state = agent.init(key)`; `agent.values(state.params, obs)`.
    """

    params: Any
    target: Any
    optimizer: Any
    updates: Array  # uint32
    synced: Array  # uint32
    bad: Array  # bool


class Learned(NamedTuple):
    """What one update found: float32 each.

    `state, learned = agent.update(state, batch, rate, beta)`; `learned.error` are priorities.
    """

    loss: Array
    q: Array
    gradient: Array
    change: Array  # how far the parameters moved, as a share of their size
    error: Array  # float32[batch]: DQN's priorities; PQN has none


class QAgent:
    """What every agent with a Q-network shares: pure functions; vmap them for several agents."""

    def __init__(self, network: Network, optimizer: Optimizer, spec: Spec, stack: int) -> None:
        self.spec, self.stack, self._optimizer = spec, stack, optimizer
        self.actions = int(spec.action.high) + 1
        self._network = network.build(self.actions)

    def init(self, key: jax.Array) -> AgentState:
        """A fresh agent, without a target network."""
        field: Any = self.spec.obs
        params = init_params(self._network, key, (self.stack, *field.shape), field.dtype)
        zero = jnp.zeros((), np.uint32)
        state = self._optimizer.init(params)
        return AgentState(params, None, state, zero, zero, jnp.zeros((), bool))

    def values(self, params: Any, obs: Array) -> Array:
        """obs[batch, stack, ...] -> float32[batch, actions]"""
        return self._network.apply({"params": params}, obs)


class Chance(NamedTuple):
    """What of an action is left to chance; it needs no values, so many turns can be drawn ahead."""

    coin: Array  # float32[batch]: below epsilon the action is taken
    action: Array  # int32[batch]


def draw_chance(key: jax.Array, batch: int, actions: int) -> Chance:
    """One turn's chance for `batch` envs."""
    coin, choice = jax.random.split(key)
    anything = jax.random.randint(choice, (batch,), 0, actions, np.int32)
    return Chance(jax.random.uniform(coin, (batch,)), anything)


def explore(values: Array, chance: Chance, epsilon: Array) -> Array:
    """Epsilon-greedy actions int32[batch] from float32[batch, actions]."""
    greedy = values.argmax(-1).astype(np.int32)
    return jnp.where(chance.coin < epsilon, chance.action, greedy)


def unrolled(turns: int) -> int:
    """`unroll` of a scan: on a GPU, where every turn of a loop costs, so many are written as one.

    A CPU gains nothing and would only compile for longer.
    """
    return 1 if jax.default_backend() == "cpu" else turns


class Step(NamedTuple):
    """A gradient made into a change of parameters, if it is finite."""

    params: Any
    optimizer: Any
    updates: Array
    good: Array  # bool: false means that nothing changed
    gradient: Array  # its norm


def step(rule: Optimizer, state: AgentState, loss: Array, gradient: Any, rate: Array) -> Step:
    """Apply one gradient, unless it or what came before was not finite.

    The norm of a tree is finite only if every number in it is. It is judged before anything is
    changed, so that choosing between old and new costs no pass of its own over the parameters.
    """
    change, optimizer = rule.change(gradient, state.optimizer, state.params, rate)
    steepness = optax.tree.norm(gradient)
    good = jnp.isfinite(loss + steepness) & ~state.bad

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(good, new, old)

    params = jax.tree.map(lambda p, c: keep(p + c, p), state.params, change)
    optimizer = jax.tree.map(keep, optimizer, state.optimizer)
    return Step(params, optimizer, state.updates + good, good, steepness)


def relative_change(before: Any, after: Any) -> Array:
    """How far parameters moved, as a share of their size."""
    moved = jax.tree.map(jnp.subtract, after, before)
    return optax.tree.norm(moved) / (optax.tree.norm(before) + 1e-12)
