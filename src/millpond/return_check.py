"""What a sampled return should be, recomputed from the rows as they came.

Plain NumPy and apart from the code that it checks: `Window` and the samplers are not asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .rows import TERMINATED, TRUNCATED, Draw


def return_of(rewards: np.ndarray, flags: np.ndarray, window: Any) -> tuple[float, float]:
    """Sum and discount of rewards[n_step] and stored flags bytes[n_step] from a start on.

    `return_of(rewards[i : i + n], flags[i : i + n], Window(n_step=n))`.
    """
    total, discount = 0.0, 1.0
    for reward, byte in zip(rewards.tolist(), flags.tolist(), strict=True):
        if window.reward_clip:
            reward = min(max(reward, -window.reward_clip), window.reward_clip)
        total += discount * reward
        discount *= window.gamma
        if byte & TERMINATED:
            return total, 0.0
        if byte & TRUNCATED:  # the sum stops, the bootstrap does not
            break
    return total, discount


def same_return(found: tuple[Any, Any], wanted: tuple[float, float]) -> bool:
    """Whether a sampled reward and discount are those, up to the rounding of float32."""
    reward = np.isclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    return bool(reward and np.isclose(found[1], wanted[1], rtol=1e-5, atol=1e-6))


def places_of(
    window: Any, stream: np.ndarray, row: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Stream and id of every row that was drawn, in the shape of `mask`."""
    ids = Draw(stream, row, None).ids()
    if ids.ndim == mask.ndim:
        return stream, ids
    ids = ids[..., None] + np.arange(-window.burn_in, window.length)  # of sequences: the starts
    return np.broadcast_to(stream[..., None], mask.shape), ids
