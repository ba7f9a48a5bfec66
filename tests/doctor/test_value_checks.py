"""`bellman-fit` on made-up values: those that obey the equation are quiet, others are named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from millpond.doctor.value_checks import _Fit, _judge

GAMMA, ROWS, ACTIONS = 0.9, 4_000, 3
PROBE = SimpleNamespace(settings=SimpleNamespace(window=SimpleNamespace(gamma=GAMMA)))


def judged(q_of, seed: int = 0):
    """The verdict on q_of(reward, future, over): values of the actions taken."""
    rng = np.random.default_rng(seed)
    reward = (rng.random(ROWS) < 0.3) * rng.normal(1, 0.2, ROWS)
    after, over = rng.normal(2, 1, ROWS), rng.random(ROWS) < 0.2
    cut = ~over & (rng.random(ROWS) < 0.1)
    q = rng.normal(2, 1, (ROWS, ACTIONS))
    action, rows = rng.integers(0, ACTIONS, ROWS), np.arange(ROWS)
    value = q_of(reward, after, over, cut) + rng.normal(0, 0.05, ROWS)
    q[rows, action] = value
    return _judge(
        PROBE, 0, _Fit(q, action, reward, reward, after, over, cut, rows % 32), "bellman-fit"
    )


def right(reward, after, over, cut):
    return reward + GAMMA * ~over * after


@pytest.mark.parametrize("seed", range(5))
def test_values_that_obey_the_equation_are_quiet(seed):
    assert judged(right, seed).state == "green"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda r, a, o, c: -r + GAMMA * ~o * a, "wrong sign"),
        (lambda r, a, o, c: 4 * r + GAMMA * ~o * a, "times as large"),
        (lambda r, a, o, c: r, "next reward alone"),
        (lambda r, a, o, c: r + GAMMA * a, "go on behind terminations"),
        (lambda r, a, o, c: r + GAMMA * ~o * ~c * a, "stop at truncations"),
    ],
)
def test_other_values_are_named(wrong, said):
    verdict = judged(wrong)
    assert verdict.state == "red", verdict
    assert said in f"{verdict.message} {verdict.remedy}"
