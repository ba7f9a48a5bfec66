"""Agents against values worked out by an independent oracle, and their promises."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_program import as_programs

from millpond import BadConfig, Field, Spec
from millpond.agents import (
    DQN,
    PQN,
    DQNSettings,
    Minibatch,
    Network,
    Optimizer,
    PQNSettings,
    Rollout,
)
from millpond.agents.losses import lambda_returns
from millpond.agents.networks import patches
from millpond.rows import BORDER, Batch, Draw, host_batch
from millpond.schedule import constant

SPEC = Spec(Field("float32", (3,)), Field("int32", (), 0, 2))
SMALL = Network("mlp", width=8, depth=1)
PLAIN = Optimizer("sgd", constant(0.1), clip=0.0)

NOW = {"rate": 0.1, "beta": 1.0}


def batch_of(number: int, seed: int = 0, **changes) -> Batch:
    rng = np.random.default_rng(seed)
    batch = host_batch(SPEC, 2, number)
    draw = Draw(np.zeros(number, np.int32), np.arange(number), np.ones(number, np.float32))
    batch = batch._replace(
        obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        next_obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        action=rng.integers(0, 3, number).astype(np.int32),
        reward=rng.normal(size=number).astype(np.float32),
        discount=np.where(rng.random(number) < 0.3, 0, 0.9).astype(np.float32),
        mask=np.ones(number, bool),
        weight=np.ones(number, np.float32),
        draw=draw,
    )
    return batch._replace(**changes)


@functools.cache
def agent_of(**changes) -> DQN:
    agent = DQN(DQNSettings(**{"optimizer": PLAIN, **changes}), SMALL, SPEC, 2)
    return as_programs(agent, "init", "update", "values")


def moved_apart(state):
    """Target and online network differ, or double DQN would be no different from DQN."""
    return state._replace(target=jax.tree.map(_moved, state.params))


def _moved(leaf):
    return leaf + 0.3 * np.cos(9 * np.asarray(leaf))


def same(found, expected):
    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)

    jax.tree.map(close, found, expected)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_dqn_loss_is_the_textbook_one(double, loss):
    agent = agent_of(double=double, loss=loss, reward_scale=2.0)
    state, batch = moved_apart(agent.init(jax.random.key(1))), batch_of(7)
    q = np.asarray(agent.values(state.params, batch.obs))
    online = np.asarray(agent.values(state.params, batch.next_obs))
    target = np.asarray(agent.values(state.target, batch.next_obs))
    losses, errors = [], []
    for i in range(7):
        best = int(np.argmax(online[i] if double else target[i]))
        goal = 2.0 * batch.reward[i] + batch.discount[i] * target[i, best]
        error = q[i, batch.action[i]] - goal
        small = abs(error) <= 1 or loss == "squared"
        losses.append(0.5 * error**2 if small else abs(error) - 0.5)
        errors.append(abs(error))
    _, learned = agent.update(state, batch, NOW)
    np.testing.assert_allclose(learned.numbers["loss"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(learned.priority, errors, rtol=1e-4, atol=1e-6)


def test_masked_and_weighted_rows_count_as_they_should():
    agent, batch = agent_of(), batch_of(6)
    state = agent.init(jax.random.key(0))
    mask = np.array([1, 1, 0, 1, 0, 1], bool)
    wild = batch.reward.copy()
    wild[~mask] = 1e6  # means nothing, so it must change nothing
    one, _ = agent.update(state, batch._replace(mask=mask), NOW)
    two, _ = agent.update(state, batch._replace(mask=mask, reward=wild), NOW)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    weight = np.array([0.25, 1, 1, 1, 1, 1], np.float32)
    half, _ = agent.update(state, batch._replace(weight=weight), {"rate": 0.1, "beta": 0.5})
    root, _ = agent.update(state, batch._replace(weight=np.sqrt(weight)), NOW)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), half.params, root.params)


def test_the_target_network_has_one_owner_and_one_rule():
    soft, hard = agent_of(tau=0.25), agent_of(target_every=3)
    state = moved_apart(soft.init(jax.random.key(0)))
    after, _ = soft.update(state, batch_of(4), NOW)
    expected = jax.tree.map(lambda t, p: t + 0.25 * (p - t), state.target, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after.target, expected)
    assert int(after.synced) == 1
    state = moved_apart(hard.init(jax.random.key(0)))
    for number in range(1, 7):
        before = state.target
        state, _ = hard.update(state, batch_of(4, number), NOW)
        wanted = state.params if number % 3 == 0 else before
        jax.tree.map(np.testing.assert_array_equal, state.target, wanted)
        assert int(state.synced) == number // 3


def test_accumulated_gradients_equal_the_large_batch():
    whole, parts = agent_of(), agent_of(optimizer=dataclasses.replace(PLAIN, accumulate=4))
    batch = batch_of(32)
    one, _ = whole.update(whole.init(jax.random.key(2)), batch, NOW)
    state = parts.init(jax.random.key(2))
    first = state.params
    for part in range(4):
        jax.tree.map(np.testing.assert_array_equal, state.params, first)
        piece = jax.tree.map(lambda leaf, p=part: leaf[8 * p : 8 * p + 8], batch)
        frozen = state._replace(target=first)  # the large batch saw one target throughout
        state, _ = parts.update(frozen, piece, NOW)
    same(state.params, one.params)


LAMBDA_RETURNS = jax.jit(lambda_returns)


def lambda_oracle(reward, terminated, truncated, border, value, gamma, lam):
    """Forward view: for every row, the weighted sum of all n-step returns to the episode's end."""
    time = len(reward)
    goals = np.zeros(time)
    for t in range(time):
        if border[t]:
            continue
        total, factor, weight, found = 0.0, 1.0, 1.0, 0.0
        for k in range(t, time):
            total += factor * reward[k]
            factor *= gamma
            last = terminated[k] or truncated[k] or k == time - 1
            bootstrap = 0.0 if terminated[k] else factor * value[k + 1]
            share = weight if last else weight * (1 - lam)
            found += share * (total + bootstrap)
            weight *= lam
            if last:
                break
        goals[t] = found
    return goals


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.floats(0, 1), st.sampled_from([0.0, 0.65, 1.0]))
def test_lambda_returns_are_the_forward_view_at_every_border(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    time = 12
    reward, value = rng.normal(size=time), rng.normal(size=time + 1)
    terminated, truncated, border = (np.zeros(time, bool) for _ in range(3))
    for t in range(time):
        border[t] = t > 0 and (terminated[t - 1] or truncated[t - 1])
        if not border[t] and rng.random() < 0.35:
            (terminated if rng.random() < 0.5 else truncated)[t] = True
        if border[t]:
            reward[t] = 0.0
    ended = terminated | truncated
    facts = reward.astype(np.float32), terminated, ended, value.astype(np.float32)
    got = LAMBDA_RETURNS(*facts, gamma, lam)
    expected = lambda_oracle(reward, terminated, truncated, border, value, gamma, lam)
    np.testing.assert_allclose(np.asarray(got)[~border], expected[~border], rtol=2e-4, atol=2e-4)


def rollout_of(time: int, envs: int, seed: int = 0) -> Rollout:
    rng = np.random.default_rng(seed)
    flags = np.zeros((time, envs), np.uint8)
    flags[rng.random((time, envs)) < 0.2] = BORDER
    return Rollout(
        obs=rng.normal(size=(time, envs, 2, 3)).astype(np.float32),
        action=rng.integers(0, 3, (time, envs)).astype(np.int32),
        reward=rng.normal(size=(time, envs)).astype(np.float32),
        terminated=rng.random((time, envs)) < 0.2,
        truncated=np.zeros((time, envs), bool),
        flags=flags,
        value=rng.normal(size=(time + 1, envs)).astype(np.float32),
    )


@functools.cache
def pqn_of(**changes) -> PQN:
    options = {"rollout": 8, "minibatches": 2, "epochs": 2, "optimizer": PLAIN, **changes}
    agent = PQN(PQNSettings(**options), SMALL, SPEC, 2)
    return as_programs(agent, "init", "learn", "update", "goals")


def test_pqn_does_not_learn_from_border_rows():
    agent, rollout = pqn_of(), rollout_of(8, 4)
    state, key = agent.init(jax.random.key(0)), jax.random.key(3)
    border = rollout.flags == BORDER
    noise = np.where(border[..., None, None], 100.0, rollout.obs).astype(np.float32)
    one, _, _ = agent.learn(state, rollout, NOW, key)
    two, _, _ = agent.learn(state, rollout._replace(obs=noise), NOW, key)
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
    assert int(one.updates) == 4


def test_pqn_sees_every_row_once_per_epoch():
    """One epoch of plain gradient descent with one minibatch is one gradient over all rows."""
    agent, rollout = pqn_of(minibatches=1, epochs=1), rollout_of(8, 4)
    state = agent.init(jax.random.key(0))
    learned, _, _ = agent.learn(state, rollout, NOW, jax.random.key(1))
    flat = [leaf.reshape(32, *leaf.shape[2:]) for leaf in (rollout.obs, rollout.action)]
    goal = np.asarray(agent.goals(rollout)).reshape(32)
    whole = Minibatch(*flat, goal, (rollout.flags == 0).reshape(32))
    straight, _ = agent.update(state, whole, 0.1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        learned.params,
        straight.params,
    )


@pytest.mark.full
def test_several_agents_in_one_program_are_the_same_agents():
    agent, keys = pqn_of(), jax.random.split(jax.random.key(5), 3)
    rollouts = [rollout_of(8, 4, seed) for seed in range(3)]
    together = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *rollouts)
    states = jax.vmap(agent.init)(keys)
    many, _, _ = jax.vmap(agent.learn, in_axes=(0, 1, None, 0))(states, together, NOW, keys)
    for i, rollout in enumerate(rollouts):
        one, _, _ = agent.learn(agent.init(keys[i]), rollout, NOW, keys[i])
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=1e-5),
            many.params,
            one.params,
        )


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_a_bad_gradient_changes_nothing_and_stays_found(poison):
    agent = agent_of(loss="squared")
    good = batch_of(4)
    state, _ = agent.update(agent.init(jax.random.key(0)), good, NOW)
    bad = good._replace(reward=np.array([0, poison, 0, 0], np.float32))
    after, _ = agent.update(state, bad, NOW)
    assert bool(after.bad)
    jax.tree.map(np.testing.assert_array_equal, after._replace(bad=state.bad), state)
    later, _ = agent.update(after, good, NOW)
    assert bool(later.bad)
    jax.tree.map(np.testing.assert_array_equal, later.params, state.params)


def test_pqn_shows_the_minibatch_that_went_wrong():
    agent, rollout = pqn_of(minibatches=4, epochs=1), rollout_of(8, 4)
    reward = rollout.reward.copy()
    reward[3, 2] = np.nan
    flags = np.zeros_like(rollout.flags)
    broken = rollout._replace(reward=reward, flags=flags)
    state, _, evidence = agent.learn(agent.init(jax.random.key(0)), broken, NOW, jax.random.key(1))
    assert bool(state.bad)
    assert np.isnan(np.asarray(evidence.goal)).any()


@functools.cache
def of_two(agent):
    return jax.jit(jax.vmap(agent.learn, in_axes=(0, 1, None, None)))


@pytest.mark.parametrize("env", [0, 1, 2, 3])
def test_pqn_keeps_what_it_learned_before_a_bad_minibatch(env):
    """And nothing of it or after it; also where it was one policy of several."""
    agent = pqn_of(minibatches=4, epochs=2, optimizer=Optimizer("radam", constant(0.1)))
    fine, key = rollout_of(8, 4), jax.random.key(1)
    reward = fine.reward.copy()
    reward[0, env] = np.nan  # at the first turn: no other row's goal hears of it
    broken = fine._replace(reward=reward, flags=np.zeros_like(fine.flags))
    start = agent.init(jax.random.key(0))
    both = jax.tree.map(lambda a, b: np.stack([a, b], 1), fine, broken)
    starts = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), start)
    learn = of_two(agent)
    states, _, evidence = learn(starts, both, NOW, key)
    assert states.bad.tolist() == [False, True]
    assert int(states.updates[0]) == 8
    orders = []
    for one in jax.random.split(key, 2):
        orders += list(np.asarray(jax.random.permutation(one, 32)).reshape(4, 8))
    first = next(i for i, order in enumerate(orders) if env in order)
    assert int(states.updates[1]) == first
    goal, flat = np.asarray(agent.goals(broken)).reshape(32), lambda x: x.reshape(32, *x.shape[2:])
    batch = lambda o: Minibatch(flat(broken.obs)[o], flat(broken.action)[o], goal[o], o >= 0)
    expected = start
    for order in orders[:first]:
        expected, _ = agent.update(expected, batch(order), 0.1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b, rtol=2e-4, atol=1e-5),
        (states.params, states.optimizer),
        (expected.params, expected.optimizer),
    )
    np.testing.assert_array_equal(evidence.goal[1], goal[orders[first]])
    later, _, _ = learn(states, both, NOW, key)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]), later, states)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 2), (8, 4)])
def test_patches_are_a_convolution(size, stride):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 13, 16, 3)), rng.normal(size=(size, size, 3, 4))
    high, wide = (13 // stride * stride - size) // stride + 1, (16 - size) // stride + 1
    expected = np.zeros((2, high, wide, 4))
    for i in range(high):
        for j in range(wide):
            top, left = i * stride, j * stride
            block = x[:, top : top + size, left : left + size]
            expected[:, i, j] = np.einsum("bhwc,hwcf->bf", block, kernel)
    # The order of a patch: squares of stride x stride, then the pixels inside each.
    squares = kernel.reshape(size // stride, stride, size // stride, stride, 3, 4)
    flat = squares.transpose(0, 2, 1, 3, 4, 5).reshape(-1, 4)
    got = patches(jnp.asarray(x, jnp.float32), size, stride) @ flat
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(
    ("torso", "shape", "dtype"),
    [("mlp", (3,), "float32"), ("grid", (10, 10, 4), "bool"), ("nature", (84, 84), "uint8")],
)
def test_networks_take_stacks_of_what_envs_give(torso, shape, dtype, dueling):
    spec = Spec(Field(dtype, shape), Field("int32", (), 0, 4))
    agent = DQN(DQNSettings(), Network(torso, 16, dueling=dueling), spec, 2)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    obs = jax.ShapeDtypeStruct((5, 2, *shape), np.dtype(dtype))
    values = jax.eval_shape(agent.values, state.params, obs)
    assert values.shape == (5, 5)
    assert values.dtype == np.float32


def test_dueling_values_differ_from_the_state_value_by_advantages_of_mean_zero():
    agent = DQN(DQNSettings(), Network("mlp", 8, dueling=True), SPEC, 1)
    as_programs(agent, "init", "values")
    params = agent.init(jax.random.key(0)).params
    obs = np.ones((1, 1, 3), np.float32)
    before = agent.values(params, obs)
    params["state_value"]["bias"] = params["state_value"]["bias"] + 2.0
    params["values"]["bias"] = params["values"]["bias"] + 5.0  # the same for all: no advantage
    np.testing.assert_allclose(agent.values(params, obs), before + 2.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DQNSettings(loss="cubic"), "huber or squared"),
        (lambda: DQNSettings(tau=0.0), "tau"),
        (lambda: DQNSettings(min_fill=10, capacity=5), "never start"),
        (lambda: DQNSettings(batch=0), "batch"),
        (lambda: PQNSettings(lam=1.5), "lam"),
        (lambda: PQNSettings(epochs=0), "epochs"),
        (lambda: Network("transformer"), "mlp, grid or nature"),
        (lambda: Network(width=0), "width"),
        (lambda: Optimizer("magic"), "adam"),
        (lambda: Optimizer(accumulate=0), "accumulate"),
    ],
)
def test_impossible_settings_are_refused(make, says):
    with pytest.raises(BadConfig, match=says):
        make()
