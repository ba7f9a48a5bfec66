"""How random a policy's actions are, against the entropy that its update counts."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.doctor.policy_checks import _entropy, _spacing_entropy


def squashed(std: float, numbers: int = 1, seed: int = 0) -> tuple[np.ndarray, float, float]:
    """Actions tanh(std * normal), their entropy, and that without the correction for tanh."""
    normal = np.random.default_rng(seed).normal(size=(256, 64, numbers))
    gauss = numbers * (0.5 * np.log(2 * np.pi * np.e) + np.log(std))
    actions = np.tanh(std * normal)
    return actions, gauss + float(np.log1p(-(actions**2)).sum(-1).mean()), float(gauss)


def test_spacing_says_the_entropy_of_uniform_numbers():
    uniform = np.random.default_rng(0).uniform(-1, 1, (256, 64))
    assert abs(_spacing_entropy(uniform) - np.log(2)) < 0.1


@pytest.mark.parametrize("std", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("numbers", [1, 3])
def test_a_right_entropy_is_believed(std, numbers):
    actions, right, _ = squashed(std, numbers)
    assert _entropy(actions, right, "update-audit") is None


@pytest.mark.parametrize("numbers", [1, 3])
def test_an_entropy_without_the_correction_for_tanh_is_named(numbers):
    actions, _, plain = squashed(1.0, numbers)
    found = _entropy(actions, plain, "update-audit")
    assert found is not None
    assert "the correction for tanh is missing" in found.message


def test_an_entropy_that_is_made_up_is_found():
    actions, right, _ = squashed(0.5)
    found = _entropy(actions, right - 2, "update-audit")
    assert found is not None
    assert "missing" not in found.message
