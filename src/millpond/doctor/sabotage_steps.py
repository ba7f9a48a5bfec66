"""Bugs to plant in what a batch is made into: goals, losses, steps; see `sabotage`."""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp

from ..agents import DQN, Optimizer
from ..agents import dqn as dqn_module
from ..rows import Array
from .sabotage import patched


def few_learned_from() -> Any:
    """Only the first two transitions of a batch count."""
    loss = DQN._transition_loss

    def other(agent: DQN, state: Any, batch: Any, now: Any) -> Any:
        counts = jnp.arange(len(batch.weight)) < 2
        return loss(agent, state, batch._replace(weight=batch.weight * counts), now)

    return patched(DQN, "_transition_loss", other)


def _stepped(change: Callable[..., Any]) -> Any:
    """Let steps go through `change(step, params)`."""
    right = Optimizer.change

    def other(rule: Optimizer, gradient: Any, state: Any, params: Any, rate: Array) -> Any:
        step, state = right(rule, gradient, state, params, rate)
        return jax.tree.map(change, step, params), state

    return patched(Optimizer, "change", other)


def weights_decay() -> Any:
    """Every update takes a fiftieth off all parameters."""
    return _stepped(lambda step, param: step - 0.02 * param)


def rate_many_times() -> Any:
    """The learning rate is applied thirtyfold."""
    return _stepped(lambda step, param: 30 * step)


def noise_in_steps() -> Any:
    """Most of a step is noise."""

    def change(step: Array, param: Array) -> Array:
        bits = jax.lax.bitcast_convert_type(param.ravel()[0], jnp.uint32)
        noise = jax.random.normal(jax.random.key(bits), step.shape)
        return step + 3 * jnp.sqrt((step**2).mean()) * noise

    return _stepped(change)


def goals_bounded() -> Any:
    """Goals are cut to what is near 0."""
    right = dqn_module.td_target
    return patched(dqn_module, "td_target", lambda *given: jnp.clip(right(*given), -1.5, 1.5))


def one_goal_for_all() -> Any:
    """All transitions of a batch have the same goal."""
    right = dqn_module.td_target
    return patched(dqn_module, "td_target", lambda *given: right(*given) * 0 + right(*given).mean())


@contextlib.contextmanager
def goals_not_held() -> Generator[None]:
    """The online network is bootstrapped from, and the gradient flows through it."""

    def online(reward: Array, discount: Array, after: Array, *others: Any) -> Array:
        return reward + discount * after.max(-1)

    with patched(dqn_module, "td_target", online), patched(jax.lax, "stop_gradient", lambda x: x):
        yield


def rows_mixed() -> Any:
    """Every row's loss depends on the others' errors."""
    right = dqn_module.huber
    return patched(dqn_module, "huber", lambda error: right(error - error.mean()))


def largest_of_the_batch() -> Any:
    """All transitions bootstrap from the largest value in the whole batch."""

    def other(reward: Array, discount: Array, after: Array, target: Array, double: bool) -> Array:
        return reward + discount * target.max()

    return patched(dqn_module, "td_target", other)


def every_pair_of_rows() -> Any:
    """Every row's value is compared with every row's goal."""
    right = DQN._transition_loss

    def other(agent: DQN, state: Any, batch: Any, now: Any) -> Any:
        loss, mask = right(agent, state, batch, now)

        def pairs(params: Any) -> Any:
            q, error = loss(params)[1]
            apart = q[:, None] - jax.lax.stop_gradient(q - error)[None]
            return agent._loss(apart).mean(), (q, apart.mean(1))

        return pairs, mask

    return patched(DQN, "_transition_loss", other)


def copied_the_wrong_way() -> Any:
    """When the target is due, the online network becomes the target."""
    right = DQN.update

    def other(agent: DQN, state: Any, batch: Any, now: Any) -> Any:
        new, learned = right(agent, state, batch, now)
        due = new.updates % agent.settings.target_every == 0
        params = jax.tree.map(lambda p, t: jnp.where(due, t, p), new.params, state.target)
        return new._replace(params=params, target=state.target), learned

    return patched(DQN, "update", other)
