"""Trees of arrays on the host, all leaves at once: a part of each, or several trees as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def part(tree: Any, where: Any) -> Any:
    """The tree of `leaf[where]`: `part(rows, np.s_[:, policy])`."""
    return jax.tree.map(lambda leaf: leaf[where], tree)


def joined(trees: Sequence[Any], axis: int = 0) -> Any:
    """One after the other along an axis; one alone stays as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *trees)


def stacked(trees: Sequence[Any], axis: int = 0) -> Any:
    """Along a new axis; of one alone without a copy."""
    if len(trees) == 1:
        return jax.tree.map(lambda leaf: np.expand_dims(leaf, axis), trees[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis), *trees)
