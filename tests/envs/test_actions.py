"""What an env takes: from either fact, at random, and as other libraries see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond import BadConfig, Field, SpecMismatch
from millpond.envs import (
    GridGymnasium,
    GymEnv,
    HostedVector,
    Pendulum,
    TMaze,
    action_of,
    any_action,
    bounds,
    make_env,
    spec_of,
)
from millpond.envs.pendulum import PendulumState

INF = np.inf


@dataclass(frozen=True)
class Said:
    """An env that says no more than what it takes."""

    action: Any = None
    name: str = "said"


@dataclass(frozen=True)
class Numbered:
    num_actions: int = 3
    name: str = "numbered"


def test_either_fact_makes_the_field():
    assert action_of(Numbered()) == Field("int32", (), 0, 2)
    assert action_of(TMaze()) == spec_of(TMaze()).action == Field("int32", (), 0, 2)
    real = Field("float32", (2,), [-1, 0], [1, 5])
    assert action_of(Said(real)) is real
    assert action_of(Pendulum(torque=3.0)) == Field("float32", (1,), -3, 3)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Said(), "said: it must declare its actions, by num_actions .* got neither"),
        (Said("left or right"), "got 'left or right'"),
        (Said(Field("float64", (2,))), r"float32 vectors of shape \(n,\), got float64 \(2,\)"),
        (Said(Field("float32", (2, 2))), r"got float32 \(2, 2\); flatten or number them"),
        (Said(Field("float32")), r"got float32 \(\)"),
        (Said(Field("int32", (3,), 0, 4)), r"got int32 \(3,\)"),
        (Said(Field("int32", (), 1, 4)), "integers from 0 to a maximum"),
        (Said(Field("int32", (), 0)), "integers from 0 to a maximum"),
    ],
)
def test_what_is_no_action_is_refused(env, words):
    with pytest.raises(BadConfig, match=words):
        action_of(env)


def test_at_random_is_within_bounds_and_reaches_them():
    low, high = [-1.0, 0.5, -INF, 2.0, -INF], [3.0, 0.7, INF, INF, -7.0]
    field = Field("float32", (5,), low, high)
    found = np.asarray(any_action(field, jax.random.key(0), (4000, 2)))
    assert found.shape == (4000, 2, 5)
    assert found.dtype == np.float32
    lowest, highest = bounds(field)
    assert ((lowest <= found) & (found <= highest)).all()
    assert np.allclose(found.mean((0, 1)), [1, 0.6, 0, 3, -8], atol=0.08)
    assert np.allclose(found.std((0, 1)), [4 / 12**0.5, 0.2 / 12**0.5, 1, 1, 1], atol=0.08)
    assert np.ptp(found[..., 0]) > 3.95, "all of what is bounded is reached"


def test_at_random_of_the_widest_bounds_is_finite():
    most = float(np.finfo(np.float32).max)
    found = any_action(Field("float32", (2,), -most, most), jax.random.key(1), (100,))
    assert jnp.isfinite(found).all()
    assert (found < 0).any()
    assert (found > 0).any()


def test_whole_numbers_at_random_are_those_of_randint():
    key = jax.random.key(5)
    found = any_action(Field("int32", (), 0, 6), key, (50,))
    assert np.array_equal(found, jax.random.randint(key, (50,), 0, 7, np.int32))


def test_bounds_beyond_float32_are_infinite():
    low, high = bounds(Field("float32", (1,), -1e300, 1e300))
    assert (low, high) == (-INF, INF)


# --- Pendulum beside Gymnasium's ---


def test_pendulum_is_gymnasiums_step_for_step():
    """From the same state, under the same torque: what is seen, the reward, the end."""
    theirs, ours = gymnasium.make("Pendulum-v1"), Pendulum()
    step, see = jax.jit(ours.step), jax.jit(ours.observe)
    random, key = np.random.default_rng(0), jax.random.key(0)
    for seed in range(3):
        seen, _ = theirs.reset(seed=seed)
        for turn in range(200):
            angle, speed = theirs.unwrapped.state
            state = PendulumState(np.float32(angle), np.float32(speed), np.int32(turn))
            assert np.allclose(see(state)[0], seen, atol=2e-5)
            # Beyond the bounds too: both take them as the bound.
            torque = random.uniform(-3, 3, (1, 1)).astype(np.float32)
            state, outcome = step(state, torque, key)
            seen, reward, terminated, truncated, _ = theirs.step(torque[0])
            assert np.allclose(see(state)[0], seen, atol=2e-5)
            # At the lowest point, a rounding decides on which side of pi the angle is: the cost
            # is the same.
            assert np.isclose(outcome.reward[0], reward, rtol=1e-4, atol=1e-4)
            assert (bool(outcome.terminated), bool(outcome.truncated)) == (terminated, truncated)
        assert truncated
    theirs.close()


def test_pendulum_begins_as_gymnasiums():
    states = jax.vmap(Pendulum().reset)(jax.random.split(jax.random.key(1), 20_000))
    for values, most in ((states.angle, np.pi), (states.speed, 1)):
        assert np.abs(values).max() <= most
        hist = np.histogram(values, 10, (-most, most))[0]
        assert np.abs(hist - 2000).max() < 250, "all equally likely"


def test_pendulum_is_drawn_where_it_points():
    def rod(angle):
        state = PendulumState(np.float32(angle), np.float32(0), np.int32(0))
        y, x = np.nonzero(Pendulum().render(state)[..., 0] == 204)
        return x.mean() - 63.5, y.mean() - 63.5

    assert rod(0.0)[1] < -15, "upright"
    assert rod(np.pi)[1] > 15
    assert rod(np.pi / 2)[0] < -15, "a positive angle turns to the left"


@pytest.mark.parametrize("change", [{"turns": 0}, {"torque": 0.0}, {"gravity": INF}])
def test_pendulum_refuses(change):
    with pytest.raises(BadConfig, match=f"Pendulum: {next(iter(change))}"):
        Pendulum(**change)


# --- Gymnasium's side ---


def test_an_env_in_jax_as_gymnasium_has_it():
    env = GridGymnasium(Pendulum(turns=3))
    assert env.action_space == gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen)
    for action in (np.array([0.5], np.float32), env.action_space.sample()):
        seen, _, _, truncated, _ = env.step(action)
        assert not truncated
    for wrong in ([2.1], [np.nan], [0.0, 0.0], 0.0, ["up"]):
        with pytest.raises(SpecMismatch, match=r"must be 1 numbers from \[-2.0\] to \[2.0\]"):
            env.step(wrong)
    assert env.step([1])[3]


@pytest.mark.parametrize("bad", [np.nan, INF])
def test_actions_that_are_not_finite_are_refused(bad):
    vector = GymEnv("Pendulum-v1").vector(3, 0)
    action = np.zeros((1, 3, 1), np.float32)
    action[0, 2] = bad
    before = vector.obs
    with pytest.raises(SpecMismatch, match=r"gym:Pendulum-v1: the action of env 2 .* finite"):
        vector.step(action)
    assert vector.obs is before, "nothing was stepped"
    assert vector.step(np.zeros((1, 3, 1), np.float32)).flags.all()
    vector.close()


def test_actions_beyond_the_bounds_are_clipped_for_gymnasium():
    def reward(torque):
        vector = GymEnv("Pendulum-v1").vector(1, 7)
        found = vector.step(np.full((1, 1, 1), torque, np.float32)).reward[0, 0]
        vector.close()
        return found

    assert reward(5.0) == reward(2.0) != reward(1.0)


def test_a_real_vector_on_the_host():
    vector = HostedVector(make_env("pendulum"), 2, 0)
    rows = vector.step(np.array([[[0.25], [-2.0]]]))  # float64, as NumPy has it by default
    assert rows.action.dtype == np.float32
    assert rows.action.tolist() == [[[0.25], [-2.0]]]
