"""When learning begins."""

from __future__ import annotations

import pytest
from tiny_runs import dqn, settings

from millpond.engine.device_loop import DeviceLoop
from millpond.engine.limiter import Limiter
from millpond.train import Run, train

EAGER = dqn(settings(replay="host", steps=80), min_fill=1, n_step=5, update_every=1)


def test_learning_waits_for_one_whole_sample_of_every_env(tmp_path):
    """Whatever min_fill says: with fewer rows there is nothing to draw, and a host ring refuses."""
    train(Run.create(tmp_path / "run", EAGER))


@pytest.mark.parametrize(("min_fill", "rows"), [(1, 24), (24, 24), (25, 28)])
def test_both_kinds_of_loops_begin_at_the_same_row(min_fill, rows):
    of = dqn(EAGER, min_fill=min_fill)  # 4 envs, whose windows of 5 steps need a sixth row
    limiter = Limiter.of(of)
    first = next(cycle for cycle in range(100) if limiter.due(cycle))
    assert first * limiter.rows_per_cycle == rows
    assert DeviceLoop(dqn(settings(), min_fill=min_fill, n_step=5, update_every=1)).warm_up == first
