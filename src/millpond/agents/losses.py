"""Targets and losses of value learning, as plain functions over arrays."""

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

    With `double`, the online network chooses the next action and the target network evaluates it.
    """
    chooser = online_next if double else target_next
    return reward + discount * chosen(target_next, chooser.argmax(-1))


def lambda_returns(
    reward: Array, terminated: Array, ended: Array, value: Array, gamma: float, lam: float
) -> Array:
    """Lambda-returns, which end with each episode: [time, ...].

    Row t leads from state t to state t + 1, whose greedy value is value[t + 1]; so `value` is
    [time + 1, ...] and the last row bootstraps from the state after it. The return of a terminated
    row is its reward; a truncated row bootstraps from its true final state, in the border row after
    it. The result at a border row is meaningless and must be masked.
    """

    def back(after: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, terminated, ended, next_value = row
        onward = jnp.where(ended, next_value, (1 - lam) * next_value + lam * after)
        here = reward + gamma * jnp.where(terminated, 0, onward)
        return here, here

    rows = (reward, terminated, ended, value[1:])
    return jax.lax.scan(back, value[-1], rows, reverse=True)[1]


def n_step_returns(reward: Array, discount: Array, mask: Array, after: Array, n_step: int) -> Array:
    """Sums of up to `n_step` discounted rewards plus a bootstrap value: [batch, time].

    `after` [batch, time] is the value of the state after each row. A sum ends early at the end of
    its episode or at the last row, and bootstraps there. `mask` says which rows are steps.
    """
    goes_on = jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))  # the next row is a step of this episode
    found = reward + discount * after
    for _ in range(1, n_step):
        later = jnp.pad(found[:, 1:], ((0, 0), (0, 1)))
        found = reward + discount * jnp.where(goes_on, later, after)
    return found


def squared(error: Array) -> Array:
    """Half the square, so that the gradient is the error itself."""
    return 0.5 * error**2


def huber(error: Array) -> Array:
    """Squared up to 1, linear beyond."""
    return optax.huber_loss(error)


def quantile_huber(quantile: Array, share: Array, goal: Array, kappa: float) -> Array:
    """The quantile Huber loss against samples of the target: [..., n], [..., m] -> [...]

    `share` [..., n] is the fraction of each quantile, in (0, 1). An error weighs `share` where the
    quantile is below the sample and 1 - `share` where it is above; it is squared up to `kappa` and
    linear beyond. The loss is summed over quantiles and averaged over samples.
    """
    error = goal[..., None, :] - quantile[..., :, None]
    weight = jnp.abs(share[..., :, None] - (error < 0))
    return (weight * optax.huber_loss(error, delta=kappa) / kappa).mean(-1).sum(-1)


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean of the values whose mask is true; 0 if there are none."""
    return (values * mask).sum() / jnp.maximum(mask.sum(), 1)
