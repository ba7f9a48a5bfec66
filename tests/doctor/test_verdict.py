"""In which order findings are read, and small judgements that need no run."""

from __future__ import annotations

import numpy as np

from millpond.doctor.parameter_checks import stops_at
from millpond.doctor.verdict import (
    green,
    red,
    suspicious,
    unknown,
    with_suspects,
    worst_first,
    yellow,
)


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


def test_that_nothing_was_learned_comes_after_all_that_may_be_its_cause():
    found = [red("learning", "", ""), yellow("env-rewards", "", ""), red("target-network", "", "")]
    names = [verdict.name for verdict in worst_first(found)]
    assert names == ["target-network", "env-rewards", "learning"]


def test_what_a_task_may_have_is_a_suspect_only_if_nothing_was_learned():
    twins = suspicious(green("action-effect", "fine"), "actions 0 and 3 do the same", "look")
    well, ill = green("learning", "improved"), red("learning", "no better", "")
    assert with_suspects([twins, well]) == [twins, well]
    assert with_suspects([twins])[0].state == "green", "nobody has said how it learned"
    suspect = with_suspects([twins, ill])[0]
    assert suspect.state == "yellow"
    assert suspect.message == "actions 0 and 3 do the same"


def test_a_frozen_layer_is_a_cause_and_little_movement_an_effect():
    still = red("layers-move", "", "", still=["actor"])
    target = red("target-network", "", "")
    assert worst_first([still, target])[0] is still
    assert worst_first([red("layers-move", "", "", still=[]), target])[0] is target


def test_values_that_something_bounds_are_seen():
    values = np.random.default_rng(0).normal(0, 10, (500, 4))
    assert stops_at(values) is None
    assert stops_at(np.tanh(values)) is not None
    assert stops_at(np.repeat(np.tanh(values[:20]), 25, 0)) is None  # too few states
