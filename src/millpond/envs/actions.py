"""What an env takes: one of several actions, or real vectors within bounds. Written once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field


def action_of(env: Any) -> Field:
    """What one agent does in a turn: int32 from 0 to `num_actions` - 1, or the env's `action`.

    `action_of(make_env("pendulum"))` is a float32 field of shape (1,).
    """
    given = getattr(env, "action", None)
    if given is None and hasattr(env, "num_actions"):
        return Field("int32", (), 0, env.num_actions - 1)
    if not isinstance(given, Field):
        raise BadConfig(
            f"{_name(env)}: it must say what it takes, by num_actions (a number of actions) or by "
            f"action (a Field of real vectors), got {'neither' if given is None else repr(given)}"
        )
    several = given.dtype.kind in "iu" and given.shape == () and given.low == 0
    vectors = given.dtype == np.float32 and len(given.shape) == 1
    if not (several and given.high is not None) and not vectors:
        raise BadConfig(
            f"{_name(env)}: actions must be whole numbers from 0 to some last one, or float32 "
            f"vectors of shape (n,), got {given.describe()}; flatten them, or number them"
        )
    return given


def is_real(field: Field) -> bool:
    """Whether its values are real numbers: `is_real(action_of(env))`."""
    return field.dtype.kind == "f"


def any_action(action: Field, key: jax.Array, lead: tuple[int, ...]) -> Array:
    """Actions at random, all equally likely: [*lead, *shape]. Inside jit or out of it.

    With only one bound it is that bound and an exponential number, with none a normal one.
    `any_action(action_of(env), key, (128,))`.
    """
    shape = (*lead, *action.shape)
    if not is_real(action):
        return jax.random.randint(key, shape, 0, int(action.high) + 1, action.dtype)
    low, high = bounds(action)
    below, above = np.isfinite(low), np.isfinite(high)
    if (below & above).all():
        return _between(jax.random.uniform(key, shape), low, high)
    keys = jax.random.split(key, 3)
    beyond = jax.random.exponential(keys[1], shape)
    finite_low, finite_high = np.where(below, low, 0), np.where(above, high, 0)
    one_sided = jnp.where(below, finite_low + beyond, finite_high - beyond)
    inside = _between(jax.random.uniform(keys[0], shape), finite_low, finite_high)
    anywhere = jnp.where(below | above, one_sided, jax.random.normal(keys[2], shape))
    return jnp.where(below & above, inside, anywhere).astype(np.float32)


def bounds(field: Field) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest of real values, float32[*shape]; infinite where unbounded.

    `low, high = bounds(action_of(env))`.
    """
    low = -np.inf if field.low is None else field.low
    high = np.inf if field.high is None else field.high
    with np.errstate(over="ignore"):  # beyond float32: infinite
        pair = [np.asarray(bound).astype(np.float32) for bound in (low, high)]
    lowest, highest = (np.broadcast_to(bound, field.shape).copy() for bound in pair)
    return lowest, highest


def _between(share: Array, low: np.ndarray, high: np.ndarray) -> Array:
    # Not low + share * (high - low): that difference can be beyond float32.
    return jnp.clip(low * (1 - share) + high * share, low, high)


def _name(env: Any) -> str:
    return getattr(env, "name", type(env).__name__)
