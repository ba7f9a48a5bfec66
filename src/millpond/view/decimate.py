"""Thin curves without changing how they look: keep the lowest and highest point per bucket."""

from __future__ import annotations

from typing import Any

import numpy as np

POINTS = 800  # most points of a curve, about as many as a screen has columns for it


def kept_of(y: Any, points: int = POINTS) -> np.ndarray:
    """Indices of the values to keep: at most `points`, with spikes and both ends, without NaN."""
    y = np.asarray(y, np.float64)
    there = np.flatnonzero(np.isfinite(y))
    y = y[there]
    if len(y) <= max(points, 4):
        return there
    buckets = (points - 2) // 2
    width = -(-len(y) // buckets)
    padded = np.full(buckets * width, np.nan)
    padded[: len(y)] = y
    rows = padded.reshape(buckets, width)
    start = np.arange(buckets) * width
    low = start + np.where(np.isnan(rows), np.inf, rows).argmin(1)
    high = start + np.where(np.isnan(rows), -np.inf, rows).argmax(1)
    kept = np.unique(np.concatenate([[0], low, high, [len(y) - 1]]))
    return there[kept[kept < len(y)]]  # buckets beyond the end are empty


def thin(x: Any, y: Any, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Thin the points (x, y)."""
    kept = kept_of(y, points)
    return np.asarray(x, np.float64)[kept], np.asarray(y, np.float64)[kept]


def thin_band(
    low: Any, high: Any, points: int = POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thin a band: indices, and the lowest and highest value of each bucket."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    there = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    low, high = low[there], high[there]
    if len(there) <= points:
        return there, low, high
    edges = np.unique(np.linspace(0, len(there), points + 1).astype(np.int64))[:-1]
    return there[edges], np.minimum.reduceat(low, edges), np.maximum.reduceat(high, edges)
