"""Targets and errors of value learning, as plain functions over arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from ..rows import Array


def chosen(values: Array, action: Array) -> Array:
    """The values of the actions taken: [..., actions], int[...] -> [...]"""
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]


def td_target(
    reward: Array, discount: Array, online_next: Array, target_next: Array, double: bool
) -> Array:
    """reward + discount * value of the next state: float32[batch].

    Double: the online network chooses the action, the target network values it.
    """
    chooser = online_next if double else target_next
    return reward + discount * chosen(target_next, chooser.argmax(-1))


def lambda_returns(
    reward: Array, terminated: Array, ended: Array, value: Array, gamma: float, lam: float
) -> Array:
    """Returns that mix n-step sums by lambda, up to the end of every episode: [time, ...].

    Row t was taken from state t and led to state t + 1, whose greedy value is value[t + 1]; so
    value is [time + 1, ...] and the last row bootstraps from the state after it. A terminated row
    is its own reward, a truncated one bootstraps from its true final state, the border row after
    it; what stands at a border row itself means nothing and must be masked.
    """

    def back(after: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, terminated, ended, next_value = row
        onward = jnp.where(ended, next_value, (1 - lam) * next_value + lam * after)
        here = reward + gamma * jnp.where(terminated, 0, onward)
        return here, here

    rows = (reward, terminated, ended, value[1:])
    return jax.lax.scan(back, value[-1], rows, reverse=True)[1]


def n_step_returns(reward: Array, discount: Array, mask: Array, after: Array, n_step: int) -> Array:
    """Sums of up to `n_step` rewards, then the value of the state after them: [batch, time].

    `after` [batch, time] is what the state after each row is worth. A sum ends early with its
    episode or with the last row, and takes the value there. `mask` says which rows are steps.
    """
    goes_on = jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))  # the row after is a step of this episode
    found = reward + discount * after
    for _ in range(1, n_step):
        later = jnp.pad(found[:, 1:], ((0, 0), (0, 1)))
        found = reward + discount * jnp.where(goes_on, later, after)
    return found


def squared(error: Array) -> Array:
    """Half the square: its gradient is the error itself."""
    return 0.5 * error**2


def huber(error: Array) -> Array:
    """Squared up to 1, linear beyond."""
    return optax.huber_loss(error)


def quantile_huber(quantile: Array, share: Array, goal: Array, kappa: float) -> Array:
    """What quantiles cost against samples of what they should be: [..., n], [..., m] -> [...]

    `share` [..., n] is the share of all outcomes below each quantile, in (0, 1). An error of one
    sample counts `share` where the quantile is too low and 1 - `share` where it is too high; it is
    squared up to `kappa`, linear beyond. Summed over quantiles, averaged over samples.
    """
    error = goal[..., None, :] - quantile[..., :, None]
    weight = jnp.abs(share[..., :, None] - (error < 0))
    return (weight * optax.huber_loss(error, delta=kappa) / kappa).mean(-1).sum(-1)


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean of the entries that count; 0 where none does."""
    return (values * mask).sum() / jnp.maximum(mask.sum(), 1)
