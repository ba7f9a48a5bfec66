"""Networks for real actions: one says what to do, the other what doing it is worth."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ..rows import Array
from .networks import Network, QNetwork


class ActorNetwork(QNetwork):
    """obs[batch, stack, *shape] -> float32[batch, actions], without bounds.

    `actor_network(network, 2).apply({"params": params}, obs)`.
    """

    @nn.compact
    def __call__(self, obs: Array, *past: Array) -> Array:
        return nn.Dense(self.actions, name="action")(self._seen(obs))


class CriticNetwork(QNetwork):
    """obs[batch, stack, *shape] and action [batch, n] in [-1, 1] -> float32[batch].

    `critic_network(network).apply({"params": params}, obs, action)`.
    """

    @nn.compact
    def __call__(self, obs: Array, *past: Array) -> Array:
        (action,) = past
        x = self._deeper(jnp.concatenate([self._torso(obs), action], -1))
        return nn.Dense(1, name="value")(x)[:, 0]


def actor_network(network: Network, outputs: int) -> ActorNetwork:
    """The module: `actor_network(Network(width=256, depth=2), 2).init(key, obs)`."""
    return ActorNetwork(outputs, *_shape(network))


def critic_network(network: Network) -> CriticNetwork:
    """The module: `critic_network(Network(width=256, depth=2)).init(key, obs, action)`."""
    return CriticNetwork(1, *_shape(network))


def _shape(network: Network) -> tuple[Any, ...]:
    return (network.torso, network.width, network.depth, network.norm, False, 0)
