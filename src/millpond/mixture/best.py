"""`Best`: keeps every member's best parameters by evaluation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


class Best:
    """Call `best.take(scores, params)` after every evaluation, with [members] of each."""

    def __init__(self) -> None:
        self.scores: np.ndarray | None = None
        self.params: Any = None
        self.age = 0  # evaluations since any member improved

    def take(self, scores: np.ndarray, params: Any) -> None:
        """Keep what is better than before, separately for each member."""
        if self.scores is None:
            self.scores, self.params = scores, jax.tree.map(jnp.copy, params)
            return
        better = scores > self.scores

        def pick(new: Array, old: Array) -> Array:
            return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        self.params = jax.tree.map(pick, params, self.params)
        self.scores = np.maximum(scores, self.scores)
        self.age = 0 if better.any() else self.age + 1
