"""IQN: its loss and its network by hand, what it learns of a known spread, its runs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from one_program import as_programs
from tiny_runs import Arms, crash_at, settings

from millpond import BadConfig, Field, Spec
from millpond.agents import IQN, IQNSettings, Network, Optimizer
from millpond.agents.iqn import chance_of
from millpond.agents.losses import quantile_huber
from millpond.metrics import read_metrics
from millpond.rows import Batch, Draw, host_batch
from millpond.schedule import constant
from millpond.train import Run, train

SPEC = Spec(Field("float32", (3,)), Field("int32", (), 0, 2))
NOW = {"rate": 0.1, "beta": 1.0}
PLAIN = Optimizer("sgd", constant(0.1), clip=0.0)


def batch_of(number: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return host_batch(SPEC, 2, number)._replace(
        obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        next_obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        action=rng.integers(0, 3, number).astype(np.int32),
        reward=rng.normal(size=number).astype(np.float32),
        discount=np.where(rng.random(number) < 0.3, 0, 0.9).astype(np.float32),
        mask=np.ones(number, bool),
        weight=rng.random(number).astype(np.float32),
        draw=Draw(np.zeros(number, np.int32), rng.integers(0, 99, number)),
    )


def agent_of(network: Network | None = None, **changes) -> IQN:
    changes = dict(optimizer=PLAIN, quantiles=5, goals=4, acting=6, cosines=7) | changes
    agent = IQN(IQNSettings(**changes), network or Network(width=8), SPEC, 2)
    return as_programs(agent, "init", "update", "values", "quantiles", "best")


def apart(state):
    """Target and online network differ, or double would be no different."""
    moved = jax.tree.map(lambda p: p + 0.3 * np.cos(9 * np.asarray(p)), state.params)
    return state._replace(target=moved)


def cost_by_hand(quantile, share, goal, kappa):
    """The sum over quantiles of the mean over samples, in float64, one pair at a time."""
    total = 0.0
    for value, below in zip(map(float, quantile), map(float, share), strict=True):
        of_one = 0.0
        for sample in map(float, goal):
            error = sample - value
            far = abs(error) > kappa
            size = kappa * (abs(error) - kappa / 2) if far else error**2 / 2
            of_one += (1 - below if error < 0 else below) * size / kappa
        total += of_one / len(goal)
    return total


@examples(max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([0.01, 1, 100]))
def test_quantile_huber_is_the_sum_by_hand(seed, kappa, size):
    rng = np.random.default_rng(seed)
    quantile, goal = (rng.normal(size=(2, 3)) * size).astype(np.float32), rng.normal(size=(2, 3))
    goal, share = goal.astype(np.float32), rng.random((2, 3)).astype(np.float32)
    goal[0, 0] = quantile[0, 0]  # an error of 0
    got = quantile_huber(jnp.asarray(quantile), jnp.asarray(share), jnp.asarray(goal), kappa)
    wanted = [cost_by_hand(*row, kappa) for row in zip(quantile, share, goal, strict=True)]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_network_is_features_times_cosines():
    agent = agent_of(Network(width=8, depth=1, norm=False, dueling=True))
    params = jax.tree.map(
        lambda p: p + 0.1 * jnp.cos(jnp.arange(p.size, dtype=np.float32)).reshape(p.shape),
        agent.init(jax.random.key(0)).params,
    )
    rng = np.random.default_rng(0)
    obs, share = rng.normal(size=(4, 2, 3)).astype(np.float32), rng.random((4, 5))
    plain = jax.tree.map(lambda p: np.asarray(p, np.float64), params)

    def dense(x, name):
        return x @ plain[name]["kernel"] + plain[name]["bias"]

    def by_hand(share):
        seen = np.maximum(0, dense(obs.reshape(4, 6), "Dense_0"))
        waves = np.cos(np.pi * np.arange(1, 8) * share[..., None])
        x = seen[:, None] * np.maximum(0, dense(waves, "place"))
        x = np.maximum(0, dense(x, "Dense_1"))
        values = dense(x, "values")
        return dense(x, "state_value") + values - values.mean(-1, keepdims=True)

    got = agent.quantiles(params, obs, share.astype(np.float32))
    np.testing.assert_allclose(got, by_hand(share), rtol=1e-4, atol=1e-5)
    sixths = np.broadcast_to((np.arange(6) + 0.5) / 6, (4, 6))
    mean = by_hand(sixths).mean(1)
    np.testing.assert_allclose(agent.values(params, obs), mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(agent.best(params, obs), mean.argmax(-1))
    assert [len(layer) for layer in agent.activity(params, obs)] == [8, 8]


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_is_that_of_the_goals_by_hand(double):
    agent, batch = agent_of(double=double, reward_scale=2.0, kappa=0.5), batch_of(7)
    state = apart(agent.init(jax.random.key(1)))
    asking, sampling = jax.random.split(chance_of(state, batch))
    share, sample = jax.random.uniform(asking, (7, 5)), jax.random.uniform(sampling, (7, 4))
    chooser = agent.values(state.params if double else state.target, batch.next_obs)
    best = np.asarray(chooser).argmax(-1)
    after = np.asarray(agent.quantiles(state.target, batch.next_obs, sample))
    here = np.asarray(agent.quantiles(state.params, batch.obs, share))
    costs, errors = [], []
    for i in range(7):
        goal = 2.0 * batch.reward[i] + batch.discount[i] * after[i, :, best[i]]
        mine = here[i, :, batch.action[i]]
        costs.append(batch.weight[i] * cost_by_hand(mine, share[i], goal, 0.5))
        errors.append(abs(mine.mean() - goal.mean()))
    new, learned = agent.update(state, batch, NOW)
    np.testing.assert_allclose(learned.numbers["loss"], np.mean(costs), rtol=1e-5)
    np.testing.assert_allclose(learned.priority, errors, rtol=1e-4, atol=1e-6)
    moved = jax.tree.map(lambda t, p: t + 0.005 * (p - t), state.target, new.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), new.target, moved
    )


def test_shares_are_drawn_for_every_update_and_agent():
    agent, batch = agent_of(), batch_of(7)
    state = agent.init(jax.random.key(1))
    keys = {
        tuple(np.asarray(jax.random.key_data(chance_of(one, other))))
        for one in (state, state._replace(updates=jnp.uint32(1)))
        for other in (batch, batch_of(7, seed=1))
    }
    assert len(keys) == 4
    rows = batch.draw.row  # the same rows, drawn from a device: high word and low word
    words = np.stack([rows >> 32, rows & 0xFFFFFFFF], -1).astype(np.uint32)
    other = batch._replace(draw=batch.draw._replace(row=words))
    assert (chance_of(state, other) == chance_of(state, batch)).all()


def test_masked_rows_change_nothing_and_bad_ones_stop_it():
    agent, batch = agent_of(), batch_of(6)
    state = agent.init(jax.random.key(0))
    mask = np.array([1, 1, 0, 1, 0, 1], bool)
    wild = np.where(mask, batch.reward, 1e6).astype(np.float32)
    one, _ = agent.update(state, batch._replace(mask=mask), NOW)
    two, _ = agent.update(state, batch._replace(mask=mask, reward=wild), NOW)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    bad, _ = agent.update(state, batch._replace(reward=wild * np.inf), NOW)
    assert bool(bad.bad)
    jax.tree.map(np.testing.assert_array_equal, bad._replace(bad=state.bad), state)


def test_it_learns_how_rewards_are_spread():
    """Action 0 pays 0 or 4 by a coin, 1 pays 1, 2 pays anything from -1 to 1; then it ends."""
    agent = agent_of(Network(width=32), optimizer=Optimizer("adam"), quantiles=16, goals=1)
    rng, number = np.random.default_rng(0), 1_000
    action = rng.integers(0, 3, (number, 128), np.int32)
    paid = [4.0 * (rng.random(action.shape) < 0.5), np.ones(action.shape)]
    paid.append(rng.uniform(-1, 1, action.shape))
    reward = np.choose(action, paid).astype(np.float32)
    same = batch_of(128)
    same = same._replace(obs=np.ones_like(same.obs), weight=np.ones(128, np.float32))

    @jax.jit
    def learn(state, action, reward):
        def one(state, row):
            batch = same._replace(action=row[0], reward=row[1], discount=np.zeros(128, np.float32))
            return agent.update(state, batch, {"rate": 3e-3, "beta": 1.0})[0], None

        return jax.lax.scan(one, state, (action, reward))[0]

    state = learn(agent.init(jax.random.key(0)), action, reward)
    share = np.array([[0.1, 0.25, 0.75, 0.9]], np.float32)
    found = np.asarray(agent.quantiles(state.params, same.obs[:1], share))[0]
    wanted = np.array([[0, 1, -0.8], [0, 1, -0.5], [4, 1, 0.5], [4, 1, 0.8]])
    np.testing.assert_allclose(found, wanted, atol=0.35)
    np.testing.assert_allclose(agent.values(state.params, same.obs[:1])[0], [2, 1, 0], atol=0.3)


def small(**changes):
    rule = Optimizer("adam", constant(0.01))
    learning = IQNSettings(batch=8, min_fill=64, capacity=512, updates=2, n_step=2, optimizer=rule)
    every = dict(steps=800, log_every=200, eval_every=800, checkpoint_every=800, resume_every=200)
    base = dict(agent="iqn", learning=learning, stack=1, sampler="prioritized", **every)
    return settings("arms", Arms(pay=(0.1, -0.2, 1.0, 0.4), boost=1), **base | changes)


@pytest.mark.parametrize("replay", ["pond", pytest.param("host", marks=pytest.mark.full)])
def test_it_learns_and_resumes_exactly(tmp_path, replay, compiled_once):
    whole, crashed = (Run.create(tmp_path / n, small(replay=replay)) for n in ("whole", "crashed"))
    digest = train(whole)
    (last,) = read_metrics(whole.metrics, "eval")
    assert last["returns"] == [1.0]
    crash_at(crashed, 600)
    assert train(crashed) == digest


def test_settings_that_cannot_work_are_refused():
    cases = {
        "IQN: quantiles must be at least 1": dict(quantiles=0),
        "IQN: goals must be at least 1": dict(goals=-1),
        "IQN: kappa must be above 0": dict(kappa=0.0),
        "got nan": dict(kappa=float("nan")),
        "IQN: tau must lie": dict(tau=0.0),
        "IQN: min_fill 9 is more than the capacity 8": dict(min_fill=9, capacity=8),
    }
    for said, wrong in cases.items():
        with pytest.raises(BadConfig, match=said):
            IQNSettings(**wrong)
    with pytest.raises(BadConfig, match=r"network.memory: agent iqn learns from single rows"):
        dataclasses.replace(small(), network=Network(memory=4))
