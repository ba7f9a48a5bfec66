"""Sampling from several shards as if they were one: how many rows each gives, in which order."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from ..sequence import Sample
from .trees import joined, part


def deal(masses: np.ndarray, batch: int, updates: int, key: Sequence[int]) -> np.ndarray | None:
    """int64[updates, places, policies]: rows that each place gives, in proportion to its mass.

    `masses` is float64[places, policies]. Each row is assigned independently, so on average a place
    has exactly its share. `key` seeds it. None if a policy has nothing stored anywhere.
    """
    total = masses.sum(0)
    if not (total > 0).all():
        return None
    counts = np.zeros((updates, *masses.shape), np.int64)
    if len(masses) == 1:
        counts[:] = batch
        return counts
    random = np.random.default_rng(list(key))
    for policy in range(masses.shape[1]):
        share = masses[:, policy] / total[policy]
        counts[:, :, policy] = random.multinomial(batch, share, updates)
    return counts


def assemble(parts: Sequence[Sample], counts: np.ndarray, total: np.ndarray) -> list[Sample]:
    """Batches [policies, batch], one for each update, from what every place gave.

    A place gives its rows policy by policy and, within a policy, update by update. With priorities,
    their `draw.probability` is the mass of the row; here it is divided by the mass of all places.
    """
    updates, places, policies = counts.shape
    size = int(counts[0, :, 0].sum())
    if places == 1:  # views, no copy
        shape = (policies, updates, size)
        whole = jax.tree.map(
            lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]).swapaxes(0, 1), parts[0]
        )
    else:
        order = _order(counts, size)
        whole = part(joined(parts), order)
    mass = whole.draw.probability
    if mass is not None:
        chance = mass / total[:, None].astype(np.float32)
        whole = whole._replace(draw=whole.draw._replace(probability=chance))
    return [part(whole, update) for update in range(updates)]


def _order(counts: np.ndarray, size: int) -> np.ndarray:
    """int64[updates, policies, size]: where each row lies among those of all places."""
    updates, places, policies = counts.shape
    order = np.empty((updates, policies, size), np.int64)
    filled = np.zeros((updates, policies), np.int64)
    begin = 0
    for place in range(places):
        for policy in range(policies):
            for update, number in enumerate(counts[:, place, policy].tolist()):
                at = filled[update, policy]
                order[update, policy, at : at + number] = np.arange(begin, begin + number)
                filled[update, policy] += number
                begin += number
    return order


def importance(batch: Sample) -> Sample:
    """Weights [policies, batch] of samples drawn by priority, relative to a batch's rarest."""
    drawn = batch.mask if batch.mask.ndim == 2 else batch.mask.any(-1)  # of sequences: any row
    mass = np.where(drawn, batch.draw.probability, np.float32(np.finfo(np.float32).max))
    weight = mass.min(-1, keepdims=True) / mass * drawn
    return batch._replace(weight=weight.astype(np.float32))
