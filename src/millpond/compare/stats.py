"""Statistics of few runs, in NumPy: interquartile means, bootstrap intervals, who beats whom.

Scores are float[runs, tasks]; one task is the common case and may be given as float[runs].
Intervals are stratified: runs are resampled within every task (Agarwal et al., 2021).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

DRAWS = 10_000

Interval = tuple[float, float]


class Versus(NamedTuple):
    """One arm against another."""

    probability: float  # that a run of the first beats one of the second; ties count half
    probability_interval: Interval
    difference: float  # of the means
    welch: Interval
    bootstrap: Interval


def iqm(scores: Any) -> float:
    """The mean of the middle half of all scores: a quarter is left out at either end."""
    return float(_iqm(_tasks(scores)))


def interval(scores: Any, mean: bool = False, seed: int = 0, draws: int = DRAWS) -> Interval:
    """The 95% stratified bootstrap interval of the IQM, or of the mean."""
    again = _again(np.random.default_rng(seed), _tasks(scores), draws)
    return _middle(again.mean((-2, -1)) if mean else _iqm(again))


def improvement(first: Any, second: Any) -> float:
    """The probability that a run of `first` scores higher than one of `second`."""
    return float(_improvement(_tasks(first), _tasks(second)))


def versus(first: Any, second: Any, seed: int = 0, draws: int = DRAWS) -> Versus:
    """One arm against another, with 95% intervals of how much and how surely it is better."""
    rng, first, second = np.random.default_rng(seed), _tasks(first), _tasks(second)
    a, b = _again(rng, first, draws), _again(rng, second, draws)
    return Versus(
        improvement(first, second),
        _middle(_improvement(a, b)),
        float(first.mean() - second.mean()),
        welch(first.ravel(), second.ravel()),
        _middle(a.mean((-2, -1)) - b.mean((-2, -1))),
    )


def welch(first: np.ndarray, second: np.ndarray) -> Interval:
    """Welch's 95% interval of the difference of two means; without limits for single runs."""
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
    """Student's t: the value that is exceeded with 1 - probability (above one half)."""
    # With x = sqrt(freedom) tan(angle) the density becomes cos(angle) ^ (freedom - 1).
    angle = np.linspace(0, np.pi / 2, 200_001)[:-1]
    density = np.cos(angle) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    wanted = np.interp((probability - 0.5) * 2, area / area[-1], angle)
    return float(np.sqrt(freedom) * np.tan(wanted))


def _tasks(scores: Any) -> np.ndarray:
    array = np.asarray(scores, np.float64)
    return array[:, None] if array.ndim == 1 else array


def _again(rng: np.random.Generator, runs: np.ndarray, draws: int) -> np.ndarray:
    """As many runs, drawn with repetition within every task: [draws, runs, tasks]."""
    which = rng.integers(0, len(runs), (draws, *runs.shape))
    return np.take_along_axis(runs[None], which, 1)


def _iqm(scores: np.ndarray) -> np.ndarray:
    """Over the last two axes."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    number = flat.shape[-1]
    cut = int(0.25 * number)
    return flat[..., cut : number - cut].mean(-1)


def _improvement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[..., runs, tasks] against [..., runs, tasks]: every run of one against all of the other."""
    pairs = first[..., :, None, :], second[..., None, :, :]
    return (np.greater(*pairs) + 0.5 * np.equal(*pairs)).mean((-3, -2, -1))


def _middle(values: np.ndarray) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
