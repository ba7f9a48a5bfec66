"""Mode ray with an agent that learns from sequences: equal to the sequential run, and by itself."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from test_ray import BASE, check_lockstep, events, evidence, nobody_left, quiet  # noqa: F401

from millpond.agents import QLambdaSettings
from millpond.train import Run, train
from millpond.train.session import resume_point

LEARNS = QLambdaSettings(length=4, batch=4, min_fill=64, capacity=256, update_every=2)
BASE = replace(BASE, agent="qlambda", learning=LEARNS, sampler="prioritized", sampling=None)
LAKE = replace(
    BASE,
    replay="lake",
    learning=replace(LEARNS, capacity=65_536),
    sampler="uniform",
    sampling=None,
)


@pytest.mark.parametrize("base", [BASE, LAKE], ids=["prioritised", "lakes"])
def test_lockstep_over_ray_is_the_sequential_run_bit_by_bit(cluster, tmp_path, base):
    check_lockstep(base, tmp_path)


def test_free_running_learns_from_what_was_acted_and_resumes(cluster, tmp_path):
    base = replace(BASE, steps=800, resume_every=400)
    run = Run.create(tmp_path / "run", base)

    def told(line):
        if line["kind"] == "train" and line["steps"] >= 480:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    assert 480 <= resume_point(run) < 800
    train(Run.open(run.path))
    assert resume_point(run) >= 800
    assert quiet(run)
    assert sum(evidence(run, "returns_checked")) > 0
    assert sum(evidence(run, "sampled")) > 400
    assert events(run)["lost actor"] == 0
