"""Index, concatenate and stack trees of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def part(tree: Any, where: Any) -> Any:
    """Index every leaf: `part(rows, np.s_[:, policy])`."""
    return jax.tree.map(lambda leaf: leaf[where], tree)


def joined(trees: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate trees along an axis; a single tree is returned as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *trees)


def stacked(trees: Sequence[Any], axis: int = 0) -> Any:
    """Stack trees along a new axis; a single tree is not copied."""
    if len(trees) == 1:
        return jax.tree.map(lambda leaf: np.expand_dims(leaf, axis), trees[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis), *trees)
