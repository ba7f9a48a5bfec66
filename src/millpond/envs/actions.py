"""Actions of envs: discrete ones, or real vectors within bounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field


def action_of(env: Any) -> Field:
    """The action of one agent as a field: int32 from 0 to `num_actions` - 1, or env's `action`.

    `action_of(make_env("pendulum"))` is a float32 field of shape (1,).
    """
    given = getattr(env, "action", None)
    if given is None and hasattr(env, "num_actions"):
        return Field("int32", (), 0, env.num_actions - 1)
    if not isinstance(given, Field):
        raise BadConfig(
            f"{_name(env)}: it must declare its actions, by num_actions (how many there are) or by "
            f"action (a Field of real vectors), got {'neither' if given is None else repr(given)}"
        )
    several = given.dtype.kind in "iu" and given.shape == () and given.low == 0
    vectors = given.dtype == np.float32 and len(given.shape) == 1
    if not (several and given.high is not None) and not vectors:
        raise BadConfig(
            f"{_name(env)}: actions must be integers from 0 to a maximum, or float32 vectors "
            f"of shape (n,), got {given.describe()}; flatten or number them"
        )
    return given


def is_real(field: Field) -> bool:
    """Whether a field holds real numbers: `is_real(action_of(env))`."""
    return field.dtype.kind == "f"


def any_action(action: Field, key: jax.Array, lead: tuple[int, ...]) -> Array:
    """Uniformly random actions: [*lead, *shape]. Works inside and outside jit.

    Numbers with one bound are exponential from that bound; numbers without bounds are normal.
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
    """The lowest and highest values of a real field, float32[*shape]; infinite if unbounded.

    `low, high = bounds(action_of(env))`.
    """
    low = -np.inf if field.low is None else field.low
    high = np.inf if field.high is None else field.high
    with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
        pair = [np.asarray(bound).astype(np.float32) for bound in (low, high)]
    lowest, highest = (np.broadcast_to(bound, field.shape).copy() for bound in pair)
    return lowest, highest


def _between(share: Array, low: np.ndarray, high: np.ndarray) -> Array:
    # Not low + share * (high - low), whose difference can overflow float32.
    return jnp.clip(low * (1 - share) + high * share, low, high)


def _name(env: Any) -> str:
    return getattr(env, "name", type(env).__name__)
