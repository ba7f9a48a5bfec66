"""Whether a prioritised replay draws rows with large errors more often, and weighs them back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..samplers import Prioritized
from .probe import Probe
from .verdict import Verdict, green, red, unknown

_DRAWS, _BATCH = 8, 256
_SURE = 6.0


def priorities(probe: Probe) -> Verdict:
    """Priorities as the weights of drawn rows imply them, against draws and errors as counted."""
    name, saved = "replay-priorities", probe.saved
    pond, state = saved.pond, saved.state
    if pond is None or not isinstance(pond.sampler, Prioritized):
        return unknown(name, "no prioritised replay")
    if not saved.rings or state is None or not bool(np.asarray(pond.can_sample(saved.rings[0]))):
        return unknown(name, saved.why or "no replay was saved")
    if probe.updates < 50 or not pond.sampler.alpha or not pond.sampler.beta:
        return unknown(name, "too early, or its settings leave nothing to see")
    now = {name: jnp.float32(value[0]) for name, value in probe.now.items()}
    one = jax.tree.map(lambda leaf: leaf[0], state)
    ring = saved.rings[0]
    implied: list[np.ndarray] = []
    error: list[np.ndarray] = []
    places: list[np.ndarray] = []
    for turn in range(_DRAWS):
        ring, batch = saved.sample(ring, jax.random.key(200 + turn), _BATCH)
        keep = np.asarray(batch.mask) & (np.asarray(batch.weight) > 0)
        error.append(np.asarray(probe.update(one, batch, now)[1].priority)[keep])
        implied.append(-np.log(np.asarray(batch.weight, np.float64)[keep]))
        places.append(
            np.asarray(batch.draw.ids()[keep]) * pond.streams + np.asarray(batch.draw.stream)[keep]
        )
    if min(len(one) for one in implied) < _BATCH // 2:
        return unknown(name, "most draws found no valid start")
    if max(float(np.ptp(one)) for one in implied) < 1e-4:
        message = f"after {probe.updates:,} updates all rows drawn have the same priority"
        remedy = "give errors back after every update: pond.update_priorities(state, draw, errors)"
        return red(name, message, remedy)
    # New rows have the highest priority there is, whatever their error.
    known = [one < one.max() - 1e-6 for one in implied]
    pairs = zip(implied, error, known, strict=True)
    by_error = float(np.mean([_alike(a[keep], b[keep]) for a, b, keep in pairs if keep.any()]))
    kinds, first, count = np.unique(np.concatenate(places), return_index=True, return_counts=True)
    by_count = _alike(np.concatenate(implied)[first], count.astype(float))
    numbers = dict(rows=len(kinds), with_draws=round(by_count, 3), with_errors=round(by_error, 3))
    if by_count < -_SURE / np.sqrt(len(kinds)):
        return red(
            name,
            f"rows that are drawn often have the larger weights (rank correlation {by_count:.2f} "
            "of the priority they imply with draws): weights are upside down",
            "weights are P^-beta, over the smallest P of the batch: rows drawn often count less",
            **numbers,
        )
    if by_error < -_SURE / np.sqrt(_DRAWS * _BATCH):
        return red(
            name,
            f"rows with small errors are drawn most (rank correlation {by_error:.2f} of priority "
            "and error): priorities are the wrong way round",
            "a row's priority is the size of its error: look at what is given back",
            **numbers,
        )
    told = f"rank correlation of priority with draws {by_count:.2f}, with errors {by_error:.2f}"
    return green(name, told, **numbers)


def _alike(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation; ties share their mean rank."""
    a, b = (rank - rank.mean() for rank in (_ranks(one), _ranks(other)))
    return float(a @ b) / max(float(np.sqrt((a @ a) * (b @ b))), 1e-12)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]
