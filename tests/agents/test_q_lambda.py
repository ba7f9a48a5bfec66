"""Q(lambda) from replayed sequences: its targets by hand, its target network, its learning."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_program import as_programs
from tiny_runs import Arms, crash_at, settings

from millpond import BadConfig, Field, HostPond, Rows, Spec
from millpond.agents import Network, Optimizer, QLambda, QLambdaSettings
from millpond.metrics import read_metrics
from millpond.rows import BORDER, FIRST
from millpond.schedule import constant
from millpond.train import Run, train

SPEC = Spec(Field("float32", (3,)), Field("int32", (), 0, 1))
NOW = {"rate": 0.1, "beta": 1.0, "epsilon": 0.1}
PLAIN = Optimizer("sgd", constant(0.1), clip=0.0)


@functools.cache
def agent_of(**changes) -> QLambda:
    changes = dict(length=6, batch=4, optimizer=PLAIN) | changes
    agent = QLambda(QLambdaSettings(**changes), Network(width=8), SPEC, 1)
    return as_programs(agent, "init", "update", "values", "goals")


def batch_of(agent: QLambda, number: int = 32):
    """Sequences from streams with ends of both kinds."""
    rng, pond = np.random.default_rng(0), HostPond(SPEC, 400, 2, agent.settings.learns(1).window)
    flags = np.full(2, FIRST, np.uint8)
    for _ in range(120):
        border = flags == BORDER
        reward = np.where(border, 0, rng.normal(size=2)).astype(np.float32)
        ended = (rng.random(2) < 0.2) & ~border
        terminated = ended & (rng.random(2) < 0.5)
        obs = rng.normal(size=(2, 3)).astype(np.float32)
        pond.add(
            Rows(
                obs, rng.integers(0, 2, 2, np.int32), reward, terminated, ended & ~terminated, flags
            )
        )
        flags = np.where(ended, BORDER, np.where(border, FIRST, 0)).astype(np.uint8)
    return pond.sample(number)


@pytest.mark.parametrize("trace", ["peng", "watkins"])
def test_goals_are_the_returns_by_hand(trace):
    agent = agent_of(trace=trace, lam=0.7, gamma=0.9, reward_scale=0.5)
    params, batch = agent.init(jax.random.key(0)).params, batch_of(agent)
    q = np.asarray(agent.values(params, batch.obs.reshape(-1, 1, 3)), np.float64)
    q = q.reshape(32, 7, 2)
    got = np.asarray(agent.goals(params, batch))
    for row in range(32):
        after, greedy = None, True  # the return of the row after, if it is of the same episode
        for t in range(5, -1, -1):
            if not batch.mask[row, t]:
                after, greedy = None, True
                assert got[row, t] == 0
                continue
            best = q[row, t + 1].max()
            goal = best if after is None else 0.3 * best + 0.7 * after
            if trace == "watkins" and not greedy:
                goal = best
            goal = 0.5 * batch.reward[row, t] + (0 if batch.terminated[row, t] else 0.9) * goal
            np.testing.assert_allclose(got[row, t], goal, rtol=1e-4, atol=1e-5)
            after = goal
            greedy = q[row, t].argmax() == batch.action[row, t]


def test_the_target_network_is_copied_when_it_is_due_or_not_there():
    agent = agent_of(target_every=3)
    state, batch = agent.init(jax.random.key(0)), batch_of(agent)
    for number in range(1, 7):
        before = state.target
        state, learned = agent.update(state, batch, NOW)
        wanted = state.params if number % 3 == 0 else before
        jax.tree.map(np.testing.assert_array_equal, state.target, wanted)
        assert learned.priority.shape == (32,)
    assert int(state.synced) == agent.settings.syncs(6) == 2
    alone = agent_of(target_every=0)
    state, _ = alone.update(alone.init(jax.random.key(0)), batch, NOW)
    assert state.target is None
    assert int(state.synced) == alone.settings.syncs(1) == 0


def test_masked_rows_change_nothing_and_bad_ones_stop_it():
    agent = agent_of()
    state, batch = agent.init(jax.random.key(0)), batch_of(agent)
    wild = np.where(batch.mask, batch.action, 1 - batch.action)
    one, _ = agent.update(state, batch, NOW)
    two, _ = agent.update(state, batch._replace(action=wild), NOW)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    reward = np.array(batch.reward)
    reward[0, 0] = np.inf
    bad, _ = agent.update(state, batch._replace(reward=reward), NOW)
    assert bool(bad.bad)
    jax.tree.map(np.testing.assert_array_equal, bad.params, state.params)
    assert jnp.isfinite(one.params["values"]["kernel"]).all()


def small(**changes):
    learning = QLambdaSettings(length=4, batch=4, min_fill=64, capacity=512, updates=2)
    rule = Optimizer("adam", constant(0.01))
    learning = dataclasses.replace(learning, optimizer=rule, target_every=10)
    every = dict(steps=800, log_every=200, eval_every=800, checkpoint_every=800, resume_every=200)
    base = dict(agent="qlambda", learning=learning, stack=1, **every)
    return settings("arms", Arms(pay=(0.1, -0.2, 1.0, 0.4), boost=1), **base | changes)


@pytest.mark.parametrize("replay", ["pond", pytest.param("host", marks=pytest.mark.full)])
def test_it_learns_and_resumes_exactly(tmp_path, replay, compiled_once):
    whole, crashed = (Run.create(tmp_path / n, small(replay=replay)) for n in ("whole", "crashed"))
    digest = train(whole)
    (last,) = read_metrics(whole.metrics, "eval")
    assert last["returns"] == [1.0]
    crash_at(crashed, 600)
    assert train(crashed) == digest


def test_settings_that_cannot_work_are_refused(tmp_path):
    cases = {
        "length must be at least 1": dict(length=0),
        "trace must be peng or watkins": dict(trace="retrace"),
        "gamma and lam must lie": dict(lam=1.5),
        "learning would never start": dict(min_fill=9, capacity=8),
    }
    for said, wrong in cases.items():
        with pytest.raises(BadConfig, match=said):
            QLambdaSettings(**wrong)
    run = Run.create(
        tmp_path / "run", small(learning=QLambdaSettings(length=600, min_fill=8, capacity=2_048))
    )
    with pytest.raises(BadConfig, match="Sequence: stack 1 and length 600 span 601 rows"):
        train(run)
