"""Recomputes from raw rows what a sampled n-step return should be, to audit the replay.

Plain NumPy, independent of the code it checks: it uses neither `Window` nor the samplers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .rows import TERMINATED, TRUNCATED, Draw


def return_of(rewards: np.ndarray, flags: np.ndarray, window: Any) -> tuple[float, float]:
    """Return and discount from rewards[n_step] and stored flags bytes[n_step] of a start.

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
        if byte & TRUNCATED:  # the sum ends here, but still bootstraps
            break
    return total, discount


def same_return(found: tuple[Any, Any], wanted: tuple[float, float]) -> bool:
    """Whether a sampled (reward, discount) equals the wanted one, up to float32 rounding."""
    reward = np.isclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
    return bool(reward and np.isclose(found[1], wanted[1], rtol=1e-5, atol=1e-6))


def places_of(
    window: Any, stream: np.ndarray, row: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Stream and id of every drawn row, in the shape of `mask`: all rows of drawn sequences."""
    ids = Draw(stream, row, None).ids()
    if ids.ndim == mask.ndim:
        return stream, ids
    ids = ids[..., None] + np.arange(-window.burn_in, window.length)  # a sequence's id: its start
    return np.broadcast_to(stream[..., None], mask.shape), ids
