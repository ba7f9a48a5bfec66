"""`over_policies`: `jax.vmap` over policies that costs nothing where there is only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..rows import Array


def over_policies(
    function: Callable[..., Any], in_axes: tuple[Any, ...], out_axes: Any
) -> Callable[..., Any]:
    """`jax.vmap(function, in_axes, out_axes)`; one policy is computed without that axis.

    XLA on CPU does not undo a batch axis of length 1 in what networks are made of: an update of SAC
    takes 1.12 times as long with it. The first argument must have its axis, which is 0, everywhere.
    `over_policies(agent.update, (0, 0, 0), 0)(state, batch, now)`.
    """

    def call(*arguments: Any) -> Any:
        policies = jax.tree.leaves(arguments[0])[0].shape[0]
        if policies > 1:
            return jax.vmap(function, in_axes, out_axes)(*arguments)
        return _each(jnp.expand_dims, out_axes, function(*_each(_first, in_axes, arguments)))

    return call


def _each(change: Callable[[Array, int], Any], axes: Any, tree: Any) -> Any:
    """The tree with every leaf changed that has an axis of policies."""

    def one(axis: int | None, below: Any) -> Any:
        return below if axis is None else jax.tree.map(lambda leaf: change(leaf, axis), below)

    return jax.tree.map(one, axes, tree, is_leaf=lambda axis: axis is None)


def _first(leaf: Array, axis: int) -> Array:
    return leaf[(slice(None),) * axis + (0,)]


def bare(tree: Any) -> Any:
    """Leaves [policies, ...] of one policy without that axis; of several they stay as they are."""
    one = jax.tree.leaves(tree)[0].shape[0] == 1
    return jax.tree.map(lambda leaf: leaf[0], tree) if one else tree


def dressed(tree: Any) -> Any:
    """What `bare` took away of one policy's leaves, put back."""
    return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), tree)
