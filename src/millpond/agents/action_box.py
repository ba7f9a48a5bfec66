"""`ActionBox`: rescales actions between [-1, 1], which agents use, and the env's bounds."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field


class ActionBox:
    """The bounds of an env's continuous actions, per component; infinite bounds raise BadConfig.

    `box = ActionBox(spec.action, "sac"); rows.action = box.outward(jnp.tanh(x))`.
    """

    def __init__(self, action: Field, agent: str) -> None:
        if action.dtype.kind != "f" or len(action.shape) != 1:
            raise BadConfig(
                f"agent {agent}: acts with real vectors, float32 (n,), and the env takes "
                f"{action.describe()}"
            )
        ends = (
            (-np.inf if action.low is None else action.low),
            (np.inf if action.high is None else action.high),
        )
        # In float64: the width of float32's own bounds is beyond float32.
        low, high = (np.broadcast_to(np.asarray(end, np.float64), action.shape) for end in ends)
        with np.errstate(over="ignore"):  # beyond float32: infinite
            half = ((high - low) / 2).astype(np.float32)
        open_ends = np.flatnonzero(~np.isfinite(half))
        if open_ends.size:
            first = int(open_ends[0])
            raise BadConfig(
                f"agent {agent}: needs a lowest and a highest action to rescale to, got "
                f"[{low[first]:g}, {high[first]:g}] for number {first} of the {action.size} in an "
                "action; give the env's `action` a low and a high (of a Gymnasium env: "
                "gymnasium.wrappers.TransformAction with a Box that has both)"
            )
        self.size = action.size
        self.low, self.high, self.half = low.astype(np.float32), high.astype(np.float32), half
        self.middle = ((low + high) / 2).astype(np.float32)

    def outward(self, action: Array) -> Array:
        """Rescale [-1, 1] to the env's bounds; clipped, so that rounding cannot exceed them."""
        return jnp.clip(self.middle + self.half * action, self.low, self.high)

    def inward(self, action: Array) -> Array:
        """Rescale the env's bounds to [-1, 1]; components whose bounds are equal become 0."""
        return (action - self.middle) / np.where(self.half > 0, self.half, 1)
