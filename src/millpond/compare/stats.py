"""Statistics for few runs, in NumPy: interquartile mean, bootstrap intervals, improvement.

Scores are float[runs, tasks], or float[runs] for a single task. Bootstraps are stratified: runs are
resampled within each task (Agarwal et al., 2021).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

DRAWS = 10_000

Interval = tuple[float, float]


class Versus(NamedTuple):
    """A comparison of two arms."""

    probability: float  # that a run of the first beats a run of the second; ties count half
    probability_interval: Interval
    difference: float  # first mean minus second mean
    welch: Interval  # of the difference
    bootstrap: Interval  # of the difference


def iqm(scores: Any) -> float:
    """The interquartile mean: the mean of the middle half of all scores."""
    return float(_iqm(_by_task(scores)))


def interval(scores: Any, mean: bool = False, seed: int = 0, draws: int = DRAWS) -> Interval:
    """The 95% stratified bootstrap interval of the IQM, or with `mean` of the mean."""
    drawn = _resample(np.random.default_rng(seed), _by_task(scores), draws)
    return _percentiles(drawn.mean((-2, -1)) if mean else _iqm(drawn))


def improvement(first: Any, second: Any) -> float:
    """The probability that a run of `first` scores higher than one of `second`."""
    return float(_improvement(_by_task(first), _by_task(second)))


def versus(first: Any, second: Any, seed: int = 0, draws: int = DRAWS) -> Versus:
    """Compare two arms, with 95% intervals."""
    rng, first, second = np.random.default_rng(seed), _by_task(first), _by_task(second)
    a, b = _resample(rng, first, draws), _resample(rng, second, draws)
    return Versus(
        improvement(first, second),
        _percentiles(_improvement(a, b)),
        float(first.mean() - second.mean()),
        welch(first.ravel(), second.ravel()),
        _percentiles(a.mean((-2, -1)) - b.mean((-2, -1))),
    )


def welch(first: np.ndarray, second: np.ndarray) -> Interval:
    """Welch's 95% interval of the difference of two means; infinite if an arm has one run."""
    difference = float(first.mean() - second.mean())
    if min(len(first), len(second)) < 2:
        return -math.inf, math.inf
    parts = [float(x.var(ddof=1)) / len(x) for x in (first, second)]
    total = sum(parts)
    if total == 0:
        return difference, difference
    freedom = total**2 / sum(
        part**2 / (len(x) - 1) for part, x in zip(parts, (first, second), strict=True)
    )
    reach = t_quantile(0.975, freedom) * math.sqrt(total)
    return difference - reach, difference + reach


def t_quantile(probability: float, freedom: float) -> float:
    """Student's t quantile, for probabilities above one half."""
    # With x = sqrt(freedom) tan(angle) the density becomes cos(angle) ** (freedom - 1).
    angle = np.linspace(0, np.pi / 2, 200_001)[:-1]
    density = np.cos(angle) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    wanted = np.interp((probability - 0.5) * 2, area / area[-1], angle)
    return float(np.sqrt(freedom) * np.tan(wanted))


def _by_task(scores: Any) -> np.ndarray:
    array = np.asarray(scores, np.float64)
    return array[:, None] if array.ndim == 1 else array


def _resample(rng: np.random.Generator, runs: np.ndarray, draws: int) -> np.ndarray:
    """Bootstrap samples of the runs, with replacement within each task: [draws, runs, tasks]."""
    which = rng.integers(0, len(runs), (draws, *runs.shape))
    return np.take_along_axis(runs[None], which, 1)


def _iqm(scores: np.ndarray) -> np.ndarray:
    """The IQM over the last two axes."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    number = flat.shape[-1]
    cut = int(0.25 * number)
    return flat[..., cut : number - cut].mean(-1)


def _improvement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The share of pairs of runs that `first` wins; both are [..., runs, tasks]."""
    pairs = first[..., :, None, :], second[..., None, :, :]
    return (np.greater(*pairs) + 0.5 * np.equal(*pairs)).mean((-3, -2, -1))


def _percentiles(values: np.ndarray) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
