"""The formulas of continuous control, as plain functions over arrays.

Actions here are in [-1, 1]; `ActionBox` rescales them to the env's bounds.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from ..rows import Array

_LOG_2, _LOG_ROOT_2_PI = math.log(2), 0.5 * math.log(2 * math.pi)


def squashed(mean: Array, log_std: Array, normal: Array) -> tuple[Array, Array]:
    """An action tanh(mean + std * normal) in [-1, 1], [..., n], and its log-probability, [...].

    Exact even where tanh rounds to 1: log(1 - tanh(x)^2) is computed without cancellation, as
    2 (log 2 - x - softplus(-2 x)). `action, log_prob = squashed(mean, log_std, normal)`.
    """
    before = mean + jnp.exp(log_std) * normal
    density = -0.5 * normal**2 - log_std - _LOG_ROOT_2_PI
    slope = 2 * (_LOG_2 - before - jax.nn.softplus(-2 * before))
    return jnp.tanh(before), (density - slope).sum(-1)


def correlated(before: Array, normal: Array, correlation: float) -> Array:
    """Noise correlated with the noise of the turn before, standard normal at every turn: [..., n].

    If `before` is all 0, as at the beginning of an episode, the new noise is independent.
    """
    began = (before == 0).all(-1, keepdims=True)
    onward = correlation * before + math.sqrt(1 - correlation**2) * normal
    return jnp.where(began, normal, onward)


def twin_target(reward: Array, discount: Array, after: Array, bonus: Array | float = 0.0) -> Array:
    """reward + discount * (the lower of the critics' values + bonus): float32[batch].

    `after` [critics, batch] are the next action's values, `bonus` [batch] is SAC's entropy term.
    """
    return reward + discount * (after.min(0) + bonus)


def smoothed(action: Array, normal: Array, noise: Array | float, clip: float) -> Array:
    """TD3's target policy smoothing: the action plus clipped noise, within [-1, 1], [..., n]."""
    return jnp.clip(action + jnp.clip(noise * normal, -clip, clip), -1, 1)


def temperature_loss(log_temperature: Array, log_prob: Array, target_entropy: float) -> Array:
    """A loss that raises the temperature while entropy is below its target: [batch]."""
    return -log_temperature * jax.lax.stop_gradient(log_prob + target_entropy)


def polyak(target: Any, params: Any, tau: Array | float) -> Any:
    """Move the target towards the parameters by the share `tau`."""
    return jax.tree.map(lambda t, p: t + tau * (p - t), target, params)


def spread(action: Array) -> Array:
    """How much actions [batch, n] differ from each other: their standard deviation, float32[].

    For actions without noise it is 0 if the policy ignores its observations.
    """
    return action.std(0).mean()


def saturated(action: Array) -> Array:
    """The share of actions in [-1, 1] that lie within a hundredth of a bound: float32[]."""
    return (jnp.abs(action) > 0.99).mean()
