"""Draws by your own sampler: in which corner of the replay they stay."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.doctor.draw_checks import _corner

ENVS, SIZE, DRAWS, BATCH = 16, 1_000, 8, 256


def corner(age=lambda age: age, stream=lambda stream: stream, repeat: int = 1) -> str:
    """What is said of draws that are even but for a change of ages or envs."""
    rng = np.random.default_rng(0)
    drawn = age(rng.integers(0, SIZE, (DRAWS, BATCH // repeat)))
    where = stream(rng.integers(0, ENVS, (DRAWS, BATCH // repeat)))
    drawn, where = np.repeat(drawn, repeat, 1), np.repeat(where, repeat, 1)
    mask = np.ones((DRAWS, BATCH), bool)
    return _corner(
        drawn * ENVS + where, mask, drawn[mask], where[mask], np.ones((SIZE, ENVS), bool)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"age": lambda age: SIZE - 1 - age // 2}, ""),  # new rows, as some samplers prefer
        ({"age": lambda age: age // 20}, "none of the newest 95%"),
        ({"stream": lambda stream: stream * 0}, "15 of 16 envs are never drawn"),
        ({"repeat": BATCH}, "holds only one row"),
        ({"repeat": 32}, "holds only 8 different rows"),
    ],
)
def test_corners_are_named(change, said):
    found = corner(**change)
    assert found == "" if not said else said in found
