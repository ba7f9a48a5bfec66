"""Schedules against values worked out by hand, under NumPy and inside jit."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import BadConfig
from millpond.schedule import Schedule, constant, linear


def test_shapes_by_hand():
    assert constant(0.3).at(5, 10) == np.float32(0.3)
    slope = linear(1.0, 0.0, over=0.5)
    np.testing.assert_allclose([slope.at(s, 100) for s in (0, 25, 50, 99)], [1, 0.5, 0, 0])
    halving = Schedule("exponential", 1.0, 0.25)
    np.testing.assert_allclose(
        [halving.at(s, 100) for s in (0, 50, 100)], [1, 0.5, 0.25], rtol=1e-6
    )
    wave = Schedule("cosine", 1.0, 0.0)
    np.testing.assert_allclose([wave.at(s, 4) for s in (0, 2, 4)], [1, 0.5, 0], atol=1e-6)


def test_cycles_restart_at_their_levels():
    epsilon = Schedule("linear", 1.0, 0.0, cycle=10, restart=(0.5, 0.2))
    got = [float(epsilon.at(s, 1000)) for s in (0, 5, 10, 15, 20, 30, 35)]
    np.testing.assert_allclose(got, [1.0, 0.5, 0.5, 0.25, 0.2, 0.2, 0.1], rtol=1e-6)


def test_restarts_ordered_by_the_run():
    epsilon = Schedule("linear", 1.0, 0.0, over=0.1, restart=(0.8,))
    assert float(epsilon.at(500, 1000)) == 0.0
    assert float(epsilon.at(500, 1000, origin=500, restarts=1)) == pytest.approx(0.8)
    assert float(epsilon.at(550, 1000, origin=500, restarts=1)) == pytest.approx(0.4)
    assert float(epsilon.at(700, 1000, origin=700, restarts=3)) == pytest.approx(0.8)


def test_every_agent_has_its_own_level():
    spread = Schedule("linear", 1.0, 0.1, agents=(1.0, 0.5))
    got = spread.at(np.zeros(3, np.uint32), 10, agent=np.arange(3))
    np.testing.assert_allclose(got, [1.0, 0.5, 0.5])
    assert float(Schedule("linear", 1.0, 0.3, agents=(0.1,)).at(0, 10)) == pytest.approx(0.3)


@functools.cache
def at_on_a_device(schedule):
    return jax.jit(lambda s: schedule.at(s, 10_000, np.arange(1), xp=jnp))


@given(
    st.sampled_from(["constant", "linear", "exponential", "cosine"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 7, 1000]),
)
def test_numpy_and_jax_agree_and_stay_between_the_ends(shape, steps, cycle):
    schedule = Schedule(shape, 1.0, 0.05, over=0.5, cycle=cycle, restart=(0.7,))
    count = np.array([steps], np.uint32)
    host = schedule.at(count, 10_000, np.arange(1))
    device = at_on_a_device(schedule)(count)
    np.testing.assert_allclose(host, device, rtol=2e-5, atol=1e-6)
    assert host.dtype == np.float32
    assert (host >= 0.05 - 1e-6).all()
    assert (host <= 1.0 + 1e-6).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(shape="steps"), "constant, linear, exponential or cosine"),
        (dict(shape="linear", start=1.0), "needs an end"),
        (dict(over=0.0), "share in"),
        (dict(over=1.5), "share in"),
        (dict(cycle=-1), "cycle must be"),
        (dict(shape="exponential", start=1.0, end=0.0), "above 0"),
    ],
)
def test_impossible_schedules_are_refused(wrong, says):
    with pytest.raises(BadConfig, match=says):
        Schedule(**wrong)
