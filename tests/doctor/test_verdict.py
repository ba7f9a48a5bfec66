"""In which order findings are read, and small judgements that need no run."""

from __future__ import annotations

import numpy as np

from millpond.doctor.parameter_checks import stops_at
from millpond.doctor.verdict import green, red, unknown, worst_first, yellow


def test_causes_come_before_what_follows_from_them():
    found = [
        yellow("env-rewards", "", ""),
        green("env-ends", ""),
        unknown("bellman-fit", ""),
        red("dormant-units", "", ""),
        red("layers-move", "", ""),
        red("update-audit", "", ""),
        red("env-observations", "", ""),
    ]
    assert [verdict.name for verdict in worst_first(found)] == [
        "env-observations", "update-audit", "layers-move", "dormant-units", "env-rewards",
        "bellman-fit", "env-ends",
    ]  # fmt: skip


def test_values_that_something_bounds_are_seen():
    values = np.random.default_rng(0).normal(0, 10, (500, 4))
    assert stops_at(values) is None
    assert stops_at(np.tanh(values)) is not None
    assert stops_at(np.repeat(np.tanh(values[:20]), 25, 0)) is None  # too few states
