"""Scripted players of the grid worlds: each sees one agent's view, remembers nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array
from .env import Policy
from .grid import AGENT, EMPTY, WALL

_PATIENCE = 0.8  # an item one step farther is worth this share of its value
_ATTACK = 4


def treasure_forager(values: np.ndarray) -> Policy:
    """Walks to the best item in view, value against distance, and around what costs something.

    `values` float32[kinds] are what stepping on each kind brings. With nothing in sight it wanders:
    any free neighbour is as good as another. policy(obs[..., side, side, kinds], key).
    """
    worth = np.maximum(values, 0)
    # What blocks or costs is never walked through. Should there be no other way, the cheapest one
    # is taken: waiting before an agent costs nothing.
    barred = np.array(values < 0)
    barred[AGENT] = True

    def policy(obs: Array, key: jax.Array) -> Array:
        goal = obs @ jnp.asarray(worth)
        passable = ~(obs & barred).any(-1)
        cost = _around(obs @ jnp.minimum(jnp.asarray(values), 0)) - 1
        return _choose(_pull(goal, passable), _around(passable), cost, key)

    return policy


def hunter(*prey: int) -> Policy:
    """Attacks when its prey is beside it, else walks to the nearest in view, else wanders.

    Kinds in `prey` come in order of preference: a later one counts only if no earlier one is in
    sight. policy(obs[..., side, side, kinds], key).
    """

    def policy(obs: Array, key: jax.Array) -> Array:
        passable = obs[..., EMPTY]
        goal = jnp.zeros(passable.shape, np.float32)
        for kind in prey:
            none = ~(goal > 0).any((-2, -1), keepdims=True)
            goal = jnp.where(none, obs[..., kind], goal)
        cost = _around(-1.0 * obs[..., WALL]) - 1
        walk = _choose(_pull(goal, passable), _around(passable), cost, key)
        beside = (_around(goal) > 0).any(-1)
        return jnp.where(beside, _ATTACK, walk)

    return policy


def _pull(goal: Array, passable: Array) -> Array:
    """What the best goal is worth from each cell, less for every step of the way: [..., s, s].

    Ways lead through passable cells in view; a goal need not be passable itself.
    """
    pull = goal
    # Long enough for every way that makes few detours.
    for _ in range(2 * goal.shape[-1]):
        pull = jnp.maximum(goal, jnp.where(passable, _PATIENCE * _neighbours(pull).max(-1), 0))
    return pull


def _neighbours(cells: Array) -> Array:
    """The values up, down, left and right of each cell: [..., s, s] -> [..., s, s, 4]."""
    edges = [(0, 0)] * (cells.ndim - 2)
    padded = jnp.pad(cells, [*edges, (1, 1), (1, 1)])
    up, down = padded[..., :-2, 1:-1], padded[..., 2:, 1:-1]
    left, right = padded[..., 1:-1, :-2], padded[..., 1:-1, 2:]
    return jnp.stack([up, down, left, right], -1)


def _around(cells: Array) -> Array:
    """The values up, down, left and right of the middle: [..., s, s] -> [..., 4]."""
    middle = cells.shape[-1] // 2
    return _neighbours(cells)[..., middle, middle, :]


def _choose(pull: Array, passable: Array, cost: Array, key: jax.Array) -> Array:
    """The step with the most pull; among equals a random one: int32[...]."""
    score = jnp.where(passable, _around(pull), cost)
    chance = jax.random.uniform(key, score.shape, maxval=1e-3)
    return jnp.argmax(score + chance, -1).astype(np.int32)
