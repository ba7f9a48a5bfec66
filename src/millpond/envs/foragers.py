"""Scripted players of the grid worlds; each acts on one agent's view, without memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array
from .env import Policy
from .grid import AGENT, EMPTY, WALL

_PATIENCE = 0.65  # each step of the way reduces a goal's value to this share
_GLIMPSE = 1e-3  # value of a step that only brings new cells into view
_ATTACK = 4


def treasure_forager(values: np.ndarray) -> Policy:
    """A player that walks to the best item in view and avoids negative ones; else it wanders.

    It weighs value against distance. `values`, float32[kinds], are the rewards for stepping on each
    kind. policy(obs[..., side, side, kinds], key).
    """
    barred = values < 0
    barred[AGENT] = True

    def policy(obs: Array, key: jax.Array) -> Array:
        goal = obs @ jnp.maximum(values, 0)
        free = ~(obs & barred).any(-1)
        return _walk(obs, goal, free, obs @ jnp.minimum(values, 0), key)

    return policy


def hunter(alone: int, together: int | None = None) -> Policy:
    """A player that attacks prey next to it, else walks to the nearest in view, else wanders.

    Its prey is the kind `alone` or, while both another agent and the kind `together` are in view,
    `together`; otherwise two agents could each wait forever at a different stag.
    policy(obs[..., side, side, kinds], key).
    """

    def policy(obs: Array, key: jax.Array) -> Array:
        goal = obs[..., alone]
        if together is not None:
            company = obs[..., AGENT].sum((-2, -1), keepdims=True) > 1  # one of them is itself
            big = obs[..., together] & company
            goal = jnp.where(big.any((-2, -1), keepdims=True), big, goal)
        goal = goal.astype(np.float32)
        walk = _walk(obs, goal, obs[..., EMPTY], jnp.zeros_like(goal), key)
        return jnp.where(_around(goal).any(-1), _ATTACK, walk)

    return policy


def _walk(obs: Array, goal: Array, free: Array, cost: Array, key: jax.Array) -> Array:
    """The step towards the best goal or, without one, a step that shows new cells: int32[...].

    Ties are broken at random. If no cell around is free, it is the step that costs least; `cost` is
    0 or below. goal, cost: float32[..., side, side]; free: bool[..., side, side].
    """
    worth = jnp.maximum(_around(_pull(goal, free)), _GLIMPSE * _new_cells(obs[..., WALL]))
    score = jnp.where(_around(free), worth, _around(cost) - 1)
    ties = jax.random.uniform(key, score.shape, maxval=_GLIMPSE / 2)
    return jnp.argmax(score + ties, -1).astype(np.int32)


def _pull(goal: Array, free: Array) -> Array:
    """The discounted value of the best goal from each cell; the shape is that of `goal`.

    Paths lead through free cells in view; the goal's own cell need not be free.
    """
    pull = goal
    # Enough iterations for any path without long detours.
    for _ in range(2 * goal.shape[-1]):
        pull = jnp.maximum(goal, jnp.where(free, _PATIENCE * _neighbours(pull).max(-1), 0))
    return pull


def _new_cells(wall: Array) -> Array:
    """Whether a step up, down, left, right brings more than wall into view: bool[..., 4]."""
    middle = wall.shape[-1] // 2
    up, down = wall[..., 0, middle], wall[..., -1, middle]
    left, right = wall[..., middle, 0], wall[..., middle, -1]
    return ~jnp.stack([up, down, left, right], -1)


def _neighbours(cells: Array) -> Array:
    """The values up, down, left and right of each cell: [..., s, s] -> [..., s, s, 4]."""
    padded = jnp.pad(cells, [(0, 0)] * (cells.ndim - 2) + [(1, 1), (1, 1)])
    up, down = padded[..., :-2, 1:-1], padded[..., 2:, 1:-1]
    left, right = padded[..., 1:-1, :-2], padded[..., 1:-1, 2:]
    return jnp.stack([up, down, left, right], -1)


def _around(cells: Array) -> Array:
    """The values up, down, left and right of the centre: [..., s, s] -> [..., 4]."""
    middle = cells.shape[-1] // 2
    return _neighbours(cells)[..., middle, middle, :]
