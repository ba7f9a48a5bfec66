"""Fewer points of a curve that look the same: lowest and highest of each bucket are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

POINTS = 800  # of one curve, about as many as a screen has columns for it


def thin(x: Any, y: Any, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most `points` of the points (x, y), spikes and both ends among them; no NaN is kept."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    there = np.isfinite(y)
    x, y = x[there], y[there]
    if len(y) <= max(points, 4):
        return x, y
    buckets = (points - 2) // 2
    width = -(-len(y) // buckets)
    padded = np.full(buckets * width, np.nan)
    padded[: len(y)] = y
    rows = padded.reshape(buckets, width)
    start = np.arange(buckets) * width
    low = start + np.where(np.isnan(rows), np.inf, rows).argmin(1)
    high = start + np.where(np.isnan(rows), -np.inf, rows).argmax(1)
    kept = np.unique(np.concatenate([[0], low, high, [len(y) - 1]]))
    kept = kept[kept < len(y)]  # buckets behind the end hold nothing
    return x[kept], y[kept]


def thin_band(
    x: Any, low: Any, high: Any, points: int = POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for a band: the lowest of the lower and the highest of the upper border."""
    x, low, high = (np.asarray(one, np.float64) for one in (x, low, high))
    there = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[there], low[there], high[there]
    if len(x) <= points:
        return x, low, high
    edges = np.unique(np.linspace(0, len(x), points + 1).astype(np.int64))[:-1]
    return x[edges], np.minimum.reduceat(low, edges), np.maximum.reduceat(high, edges)
