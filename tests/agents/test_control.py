"""SAC and TD3 against float64 arithmetic of another kind, and their promises."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_program import as_programs
from scipy import integrate, stats

from millpond import BadConfig, Field, Spec
from millpond.agents import SAC, TD3, ActionBox, Network, Optimizer, SACSettings, TD3Settings
from millpond.agents.actor_critic import norm
from millpond.agents.control import (
    correlated,
    polyak,
    saturated,
    smoothed,
    squashed,
    temperature_loss,
    twin_target,
)
from millpond.rows import Batch, Draw, host_batch
from millpond.schedule import constant

LOW, HIGH = [-2.0, 0.1], [2.0, 0.7]
SPEC = Spec(Field("float32", (3,)), Field("float32", (2,), LOW, HIGH))
SMALL = Network("mlp", width=8, depth=2, norm=False)
SGD = Optimizer("sgd", constant(0.1), clip=0.0)
PLAYED = ("act", "best")
NOW = dict(rate=0.1, actor_rate=0.07, temperature_rate=0.05, noise=0.1, beta=0.7)
NOW = {name: np.float32(value) for name, value in NOW.items()}  # no two rates are alike
RULES = dict(optimizer=SGD, actor_optimizer=SGD)


@functools.cache
def sac(**changes):
    usual = dict(RULES, temperature_optimizer=SGD, reward_scale=2.0, temperature=0.4)
    return as_programs(SAC(SACSettings(**usual | changes), SMALL, SPEC, 2), *PLAYED)


@functools.cache
def td3(**changes):
    usual = dict(RULES, target_noise=0.3, noise_clip=0.35, delay=3, reward_scale=2.0)
    return as_programs(TD3(TD3Settings(**usual | changes), SMALL, SPEC, 2), *PLAYED)


@functools.cache
def update_of(agent):
    return jax.jit(agent.update)


@functools.cache
def fresh(agent, seed=1):
    return jax.jit(agent.init)(jax.random.key(seed))


BOTH = pytest.mark.parametrize("make", [sac, td3])


def batch_of(number: int = 6, seed: int = 0, **changes) -> Batch:
    rng = np.random.default_rng(seed)
    draw = Draw(np.zeros(number, np.int32), np.arange(number), np.ones(number, np.float32))
    batch = host_batch(SPEC, 2, number)._replace(
        obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        next_obs=rng.normal(size=(number, 2, 3)).astype(np.float32),
        action=rng.uniform(LOW, HIGH, (number, 2)).astype(np.float32),
        reward=rng.normal(size=number).astype(np.float32),
        discount=np.where(rng.random(number) < 0.3, 0, 0.9).astype(np.float32),
        mask=np.ones(number, bool),
        weight=rng.uniform(0.2, 1, number).astype(np.float32),
        draw=draw,
    )
    return batch._replace(**changes)


def begun(agent, seed=1):
    """As after some updates: target and networks differ, actions are no longer uniform."""
    state = fresh(agent, seed)
    target = jax.tree.map(lambda p: p + 0.3 * np.cos(9 * np.asarray(p)), state.target)
    return state._replace(target=target, params=state.params._replace(begun=jnp.array(True)))


def layers(params, *parts):
    """The networks again, in float64 NumPy."""
    x = np.concatenate([np.asarray(p, np.float64).reshape(len(p), -1) for p in parts], 1)
    last = "action" if "action" in params else "value"
    for name in ("Dense_0", "Dense_1", last):
        x = x @ np.asarray(params[name]["kernel"], np.float64) + np.asarray(params[name]["bias"])
        x = x if name == last else np.maximum(x, 0)
    return x


def critic(params, number, obs, action):
    return layers(jax.tree.map(lambda p: p[number], params), obs, action)[:, 0]


def leads_downhill(loss_of, before, after, rate):
    """The step from `before` to `after` goes down the slope of that loss, at that rate."""
    before, after = (jax.tree.map(np.float64, params) for params in (before, after))
    leaves, tree = jax.tree.flatten(before)
    step = np.concatenate(
        [(a - b).ravel() for a, b in zip(leaves, jax.tree.leaves(after), strict=True)]
    )
    for seed in range(3):
        rng = np.random.default_rng(seed)
        way = [rng.normal(size=leaf.shape) for leaf in leaves]
        flat = np.concatenate([one.ravel() for one in way])
        moved = [
            tree.unflatten([leaf + size * one for leaf, one in zip(leaves, way, strict=True)])
            for size in (1e-5, -1e-5)
        ]
        slope = (loss_of(moved[0]) - loss_of(moved[1])) / 2e-5
        np.testing.assert_allclose(step @ flat, rate * slope, rtol=5e-3, atol=2e-4)


def inward(action):
    low, high = np.array(LOW), np.array(HIGH)
    return (np.asarray(action, np.float64) - (high + low) / 2) / ((high - low) / 2)


# --- plain functions, beside scipy --------------------------------------------------------------


def test_log_probabilities_of_squashed_gaussians():
    """By the change of variables in float64, from the very numbers that are drawn."""
    rng = np.random.default_rng(0)
    mean, log_std, normal = rng.normal(0, 2, (3, 200, 3)).astype(np.float32)
    action, found = squashed(mean, log_std, normal)
    wide = [np.asarray(x, np.float64) for x in (mean, log_std, normal)]
    before = wide[0] + np.exp(wide[1]) * wide[2]
    # log(1 - tanh^2) = -2 log cosh, which np.logaddexp has without cancelling.
    slope = -2 * (np.logaddexp(before, -before) - math.log(2))
    wanted = (stats.norm.logpdf(before, wide[0], np.exp(wide[1])) - slope).sum(-1)
    np.testing.assert_allclose(action, np.tanh(before), atol=2e-6)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.5), (0.7, 1.5), (-1.0, 0.1)])
def test_the_density_integrates_to_one(mean, std):
    """A whole probability over [-1, 1], whatever was squashed."""
    normal = np.linspace(-7, 7, 2001)
    shape = (2001, 1)
    given = (np.full(shape, mean), np.full(shape, math.log(std)), normal.reshape(shape))
    _, log_prob = squashed(*(np.float32(one) for one in given))
    before = mean + std * normal
    width = np.exp(-2 * (np.logaddexp(before, -before) - math.log(2)))  # of actions, d tanh / dx
    assert integrate.trapezoid(np.exp(np.float64(log_prob)) * width, before) == pytest.approx(
        1, abs=1e-4
    )


@pytest.mark.parametrize("far", [20.0, -20.0, 200.0, -3000.0])
def test_log_probabilities_are_finite_far_out_and_so_are_their_gradients(far):
    def log_prob(mean):
        return squashed(mean, jnp.float32([0.0]), jnp.float32([0.5]))[1]

    value, slope = jax.value_and_grad(log_prob)(jnp.float32([far]))
    wanted = stats.norm.logpdf(0.5) - 2 * (math.log(2) - abs(far + 0.5))
    assert float(value) == pytest.approx(wanted, rel=1e-5)
    assert float(slope[0]) == pytest.approx(2 * math.copysign(1, far), rel=1e-5)


def test_targets_take_the_lower_critic():
    rng = np.random.default_rng(1)
    reward, discount, bonus = rng.normal(size=(3, 50)).astype(np.float32)
    after = rng.normal(size=(2, 50)).astype(np.float32)
    found = twin_target(reward, discount, after, bonus)
    each = zip(reward, discount, after.T, bonus, strict=True)
    wanted = [float(r) + float(d) * (min(map(float, a)) + float(b)) for r, d, a, b in each]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_target_noise_is_clipped_twice():
    action = np.float32([[-0.9, 0.0, 0.95, 0.3]])
    normal = np.float32([[-0.5, 10.0, 1.0, -0.25]])
    found = smoothed(action, normal, 0.4, 0.5)
    np.testing.assert_allclose(found, [[-1.0, 0.5, 1.0, 0.2]], atol=1e-6)


def test_polyak_is_an_average_that_forgets():
    target, params = {"a": jnp.float32([0.0, 4.0])}, {"a": jnp.float32([1.0, -4.0])}
    for _ in range(10):
        target = polyak(target, params, 0.1)
    wanted = np.array([1, -4]) + (np.array([0, 4]) - np.array([1, -4])) * 0.9**10
    np.testing.assert_allclose(target["a"], wanted, rtol=1e-5)


def test_the_temperature_rises_where_there_is_too_little_entropy():
    """d loss / d log temperature = entropy - target: below the target, descent raises it."""
    for log_prob in (-1.5, 0.5, 3.0):
        slope = jax.grad(lambda t, lp=log_prob: temperature_loss(t, jnp.float32(lp), -2.0))(0.3)
        assert float(slope) == pytest.approx(-log_prob - -2.0)


def test_saturated_counts_what_is_near_a_bound():
    assert saturated(jnp.float32([[0.995, -1.0], [0.98, 0.0]])) == 0.5


def test_correlated_noise_is_normal_at_every_turn():
    rng, rho = np.random.default_rng(0), 0.9
    noise, turns = np.zeros((4000, 2), np.float32), []
    for _ in range(40):
        noise = np.asarray(correlated(noise, np.float32(rng.normal(size=noise.shape)), rho))
        turns.append(noise)
    found = np.array(turns)
    assert np.abs(found.std(1) - 1).max() < 0.06, "from the first turn on"
    assert np.abs(found.mean(1)).max() < 0.08
    for lag in (1, 5):
        product = (found[lag:] * found[:-lag]).mean()
        assert product == pytest.approx(rho**lag, abs=0.03)


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high"),
    [(-2, 2), ([-1, 0.1], [3, 0.7]), ([-1e30, 5], [1e30, 5]), (-3.4e38, 3.4e38), (1e-9, 3e-9)],
)
def test_actions_go_out_and_come_back(low, high):
    box = ActionBox(Field("float32", (2,), low, high), "sac")
    inside = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(np.float32)
    inside[0], inside[1] = 1, -1
    outside = np.asarray(box.outward(inside))
    low, high = (np.broadcast_to(np.float32(bound), (2,)) for bound in (low, high))
    assert ((low <= outside) & (outside <= high)).all(), "rounding never oversteps"
    assert np.allclose(outside[:2], [high, low], rtol=1e-6)
    back = np.asarray(box.inward(outside))
    wide = high > low
    np.testing.assert_allclose(back[:, wide], inside[:, wide], atol=2e-5)
    assert (back[:, ~wide] == 0).all(), "what has no width says nothing"


@pytest.mark.parametrize(
    ("low", "high", "which"),
    [(None, None, 0), (-1, None, 0), ([-1, -np.inf], [1, 1], 1), (-1e300, 1e300, 0)],
)
@pytest.mark.parametrize("kind", [SAC, TD3])
def test_infinite_bounds_are_refused(low, high, which, kind):
    spec = Spec(Field("float32", (3,)), Field("float32", (2,), low, high))
    words = rf"agent {kind.name}: needs a lowest and a highest action .* for number {which} of"
    with pytest.raises(BadConfig, match=words):
        kind(kind.Settings(), SMALL, spec, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SACSettings(temperature=0.0), "SAC: temperature must be above 0"),
        (lambda: SACSettings(temperature=math.inf), "SAC: temperature must be above 0"),
        (lambda: SACSettings(entropy=math.nan), "SAC: entropy must be a number"),
        (lambda: SACSettings(tau=0.0), r"SAC: tau must lie in \(0, 1\]"),
        (lambda: SACSettings(correlation=1.0), r"SAC: correlation must lie in \[0, 1\)"),
        (lambda: TD3Settings(delay=0), "TD3: delay must be at least 1"),
        (lambda: TD3Settings(target_noise=-0.1), "TD3: target_noise and noise_clip must be 0"),
        (lambda: TD3Settings(noise_clip=math.nan), "TD3: target_noise and noise_clip must be 0"),
        (lambda: TD3Settings(batch=0), "TD3: batch must be at least 1"),
        (lambda: SACSettings(min_fill=9, capacity=8), "SAC: min_fill 9 is more than the capacity"),
        (lambda: SAC(SACSettings(), Network(dueling=True), SPEC, 1), "dueling network values"),
        (lambda: SAC(SACSettings(), SMALL, Spec(SPEC.obs, Field("int32")), 1), "real vectors"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(BadConfig, match=words):
        make()


# --- whole updates, beside float64 --------------------------------------------------------------


def noise_of(agent, state, number):
    """The normal numbers that this update draws."""
    return [np.asarray(jax.random.normal(key, (6, 2))) for key in agent._keys(state, number)]


def check_sac_by_the_textbook(agent, update):
    """One update's losses, priorities, temperature and target, beside float64 of another kind."""
    batch, state = batch_of(), begun(agent)
    new, learned = update(state, batch, NOW)
    noise_after, noise = noise_of(agent, state, 2)

    def draw(actor, obs, normal):
        mean, log_std = np.split(layers(actor, obs), 2, 1)
        before = mean + np.exp(log_std) * normal
        slope = -2 * (np.logaddexp(before, -before) - math.log(2))
        density = stats.norm.logpdf(before, mean, np.exp(log_std))
        return np.tanh(before), (density - slope).sum(1)

    action, log_prob = draw(state.params.actor, batch.next_obs, noise_after)
    after = [critic(state.target.critics, i, batch.next_obs, action) for i in range(2)]
    goal = 2 * batch.reward + batch.discount * (np.minimum(*after) - 0.4 * log_prob)
    critics_by_the_textbook(state, new, learned, batch, goal)

    def loss(actor):
        action, log_prob = draw(actor, batch.obs, noise)
        value = np.minimum(*(critic(new.params.critics, i, batch.obs, action) for i in range(2)))
        return (0.4 * log_prob - value).mean(), log_prob

    wanted, log_prob = loss(state.params.actor)
    numbers = learned.numbers
    np.testing.assert_allclose(numbers["actor_loss"], wanted, rtol=1e-4)
    np.testing.assert_allclose(numbers["entropy"], -log_prob.mean(), rtol=1e-4)
    leads_downhill(lambda actor: loss(actor)[0], state.params.actor, new.params.actor, 0.07)
    # Descent by 0.05 along entropy - target, which is -2 for two numbers.
    wanted = math.log(0.4) - 0.05 * (-log_prob.mean() + 2)
    np.testing.assert_allclose(new.params.log_temperature, wanted, rtol=1e-4)
    follows_by_tau(agent, state, new)
    reports_its_change(state, new, learned)


def critics_by_the_textbook(state, new, learned, batch, goal):
    """Their loss, mean value, priorities and step, given what they should have aimed at."""

    def errors(critics):
        q = [critic(critics, i, batch.obs, inward(batch.action)) for i in range(2)]
        return np.array(q) - goal

    def loss(critics):
        return (0.5 * errors(critics) ** 2 * batch.weight**0.7).mean(1).sum()

    before = state.params.critics
    np.testing.assert_allclose(learned.numbers["loss"], loss(before), rtol=1e-4)
    np.testing.assert_allclose(learned.numbers["q"], (errors(before) + goal).mean(), rtol=1e-4)
    np.testing.assert_allclose(learned.priority, np.abs(errors(before)).mean(0), rtol=1e-4)
    leads_downhill(loss, before, new.params.critics, 0.1)


def test_sac_learns_from_the_textbooks_losses():
    check_sac_by_the_textbook(sac(), update_of(sac()))


def check_td3_by_the_textbook(agent, update):
    """One update that is due: losses, priorities, steps and target."""
    batch, state = batch_of(), begun(agent)
    # So that noise leads some actions out of bounds, and the next update is due.
    target = state.target._replace(actor=jax.tree.map(lambda p: 1.5 * p, state.target.actor))
    state = state._replace(updates=jnp.uint32(2), target=target)
    new, learned = update(state, batch, NOW)
    (noise,) = noise_of(agent, state, 1)
    action = np.tanh(layers(state.target.actor, batch.next_obs))
    free = action + np.clip(0.3 * noise, -0.35, 0.35)
    assert (np.abs(free) > 1).any()
    assert (np.abs(0.3 * noise) > 0.35).any()
    after = [critic(state.target.critics, i, batch.next_obs, np.clip(free, -1, 1)) for i in (0, 1)]
    goal = 2 * batch.reward + batch.discount * np.minimum(*after)
    critics_by_the_textbook(state, new, learned, batch, goal)

    def loss(actor):
        action = np.tanh(layers(actor, batch.obs))
        return -critic(new.params.critics, 0, batch.obs, action).mean()

    np.testing.assert_allclose(learned.numbers["actor_loss"], loss(state.params.actor), rtol=1e-4)
    leads_downhill(loss, state.params.actor, new.params.actor, 0.07)
    follows_by_tau(agent, state, new)
    reports_its_change(state, new, learned)


def test_td3_learns_from_the_textbooks_losses():
    check_td3_by_the_textbook(td3(), update_of(td3()))


def follows_by_tau(agent, state, new):
    def check(before, after, params):
        wanted = np.float64(before) + 0.005 * (np.float64(params) - np.float64(before))
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-7)

    learned = new.params._replace(log_temperature=None, begun=None)
    if isinstance(agent, SAC):
        learned = learned._replace(actor=None)  # nobody asks for it
    jax.tree.map(check, state.target, new.target, learned)
    assert int(new.updates) == int(state.updates) + 1


def reports_its_change(state, new, learned):
    """How far actor and critics moved, as a share of their size."""
    before, after = (
        np.concatenate([np.float64(leaf).ravel() for leaf in jax.tree.leaves(params[:2])])
        for params in (state.params, new.params)
    )
    wanted = np.linalg.norm(after - before) / np.linalg.norm(before)
    np.testing.assert_allclose(learned.numbers["change"], wanted, rtol=1e-4)


def test_td3s_actor_and_targets_wait_for_their_turn():
    check_that_td3_waits(td3(), update_of(td3()))


def check_that_td3_waits(agent, update):
    """The critics learn at every update, the actor and the targets at every third."""
    batch, state, changed = batch_of(), fresh(agent, 0), []
    for _ in range(6):
        before, (state, _) = state, update(state, batch, NOW)
        changed.append(
            [
                not all(map(np.array_equal, *map(jax.tree.leaves, pair)))
                for pair in (
                    (before.params.critics, state.params.critics),
                    (before.params.actor, state.params.actor),
                    (before.target, state.target),
                )
            ]
        )
    assert changed == [[True, False, False]] * 2 + [[True] * 3] + [[True, False, False]] * 2 + [
        [True] * 3
    ]
    assert (int(state.updates), int(state.synced)) == (6, 2)
    assert agent.settings.syncs(6) == 2


@pytest.mark.full
def test_a_temperature_that_is_not_learned_stays():
    agent = sac(learn_temperature=False, temperature=0.25)
    state, learned = update_of(agent)(begun(agent), batch_of(), NOW)
    assert float(jnp.exp(state.params.log_temperature)) == pytest.approx(0.25)
    assert float(learned.numbers["temperature"]) == pytest.approx(0.25)


# --- promises -----------------------------------------------------------------------------------


@BOTH
def test_rows_that_do_not_count_change_nothing(make):
    agent = make()
    few, many = batch_of(3), batch_of(6)
    state, update = begun(agent), update_of(agent)
    many = many._replace(mask=np.array([True] * 3 + [False] * 3))
    other = many._replace(
        reward=np.where(many.mask, many.reward, 1e6).astype(np.float32),
        action=np.where(many.mask[:, None], many.action, 0.5).astype(np.float32),
    )
    one, two = (update(state, batch, NOW)[0] for batch in (many, other))
    assert len(few.mask) == 3
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        assert np.array_equal(a, b)


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_changes_nothing_for_good(make, bad):
    agent = make()
    state, batch = begun(agent), batch_of()
    update = update_of(agent)
    after, _ = update(state, batch._replace(reward=np.full(6, bad, np.float32)), NOW)
    assert bool(after.bad)
    assert int(after.updates) == int(after.synced) == 0
    later, _ = update(after, batch, NOW)
    assert bool(later.bad)
    for name in ("params", "target", "optimizer"):
        for one in (after, later):
            pair = (jax.tree.leaves(getattr(x, name)) for x in (state, one))
            assert all(map(np.array_equal, *pair)), name


@BOTH
def test_actions_are_uniform_until_something_was_learned(make):
    agent = make()
    state, obs = fresh(agent, 0), np.zeros((4000, 2, 3), np.float32)
    chance = agent.chance(jax.random.key(1), 4000)
    action = np.asarray(agent.act(state.params, obs, chance, NOW).action)
    for number, (low, high) in enumerate(zip(LOW, HIGH, strict=True)):
        share = (action[:, number] - low) / (high - low)
        assert stats.kstest(share, "uniform").pvalue > 0.01
    state, _ = update_of(agent)(state, batch_of(), NOW)
    after = np.asarray(agent.act(state.params, obs[:50], chance[:50], NOW).action)
    assert not np.allclose(after, action[:50])
    best = np.asarray(agent.best(state.params, obs[:50]))
    assert (best == best[0]).all(), "the same observation, the same action"
    assert ((best >= np.float32(LOW)) & (best <= np.float32(HIGH))).all()


@BOTH
def test_actions_within_bounds_however_extreme_the_parameters(make):
    agent = make()
    state = begun(agent)
    params = state.params._replace(
        actor=jax.tree.map(lambda p: np.asarray(p) * 1e3, state.params.actor)
    )
    obs = np.random.default_rng(0).normal(size=(100, 2, 3)).astype(np.float32)
    chance = agent.chance(jax.random.key(1), 100)
    for action in (agent.act(params, obs, chance, NOW).action, agent.best(params, obs)):
        assert ((action >= np.float32(LOW)) & (action <= np.float32(HIGH))).all()


@BOTH
def test_correlated_noise_is_an_agents_memory(make):
    agent = make(correlation=0.9)
    assert agent.memory == 2
    params, obs = begun(agent).params, np.ones((5, 2, 3), np.float32)
    normal, before = np.float32(np.full((5, 2), 0.5)), np.float32(np.full((5, 2), -1.0))
    act, after = agent.act(params, obs, normal, NOW, before)
    np.testing.assert_allclose(after, -0.9 + math.sqrt(1 - 0.81) * 0.5, rtol=1e-5)
    plain = make().act(params, obs, after, NOW)
    np.testing.assert_allclose(act.action, plain.action, rtol=1e-6)
    best, kept = agent.best(params, obs, before)
    assert np.array_equal(best, make().best(params, obs))
    assert np.array_equal(kept, before)


@BOTH
def test_every_update_draws_its_own_noise_and_every_agent_too(make):
    agent = make()
    states = [fresh(agent, seed) for seed in range(2)]
    keys = [agent._keys(state, 1)[0] for state in states]
    keys.append(agent._keys(states[0]._replace(updates=jnp.uint32(1)), 1)[0])
    data = {tuple(np.asarray(jax.random.key_data(key))) for key in keys}
    assert len(data) == 3


@BOTH
def test_adopting_takes_parameters_and_target(make):
    agent = make()
    ours, theirs = fresh(agent, 0), begun(agent, seed=5)
    ours = ours._replace(bad=jnp.array(True), updates=jnp.uint32(7))
    new = agent.adopt(ours, theirs.params, reset=True)
    assert not new.bad
    assert int(new.updates) == 7
    for a, b in zip(
        *map(jax.tree.leaves, (new.target.critics, theirs.params.critics)), strict=True
    ):
        assert np.array_equal(a, b)
    update = update_of(agent)
    assert not update(new, batch_of(), NOW)[0].bad


@BOTH
@pytest.mark.parametrize("torso", ["mlp", "grid"])
def test_layer_norm_and_other_torsos(make, torso):
    spec = Spec(Field("bool", (6, 6, 2)), SPEC.action)
    agent = type(make())(make().settings, Network(torso, 8, 1, norm=True), spec, 2)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    for params in (state.params.actor, state.params.critics):
        assert "LayerNorm_0" in params
    seen = np.zeros((4, 2, 6, 6, 2), bool)
    batch = batch_of(4)._replace(obs=seen, next_obs=seen)
    after, learned = jax.eval_shape(agent.update, state, batch, NOW)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert set(learned.numbers) == set(agent.reports)


@BOTH
def test_every_report_is_a_number_and_tiny_is_of_the_same_kind(make):
    agent = make()
    _, learned = update_of(agent)(begun(agent), batch_of(), NOW)
    assert set(learned.numbers) == set(agent.reports)  # jit sorts them
    assert all(np.isfinite(value) and value.shape == () for value in learned.numbers.values())
    small = agent.settings.tiny()
    assert type(small) is type(agent.settings)
    assert small.min_fill < small.capacity == 64
    assert dataclasses.replace(small, tau=agent.settings.tau).tau == agent.settings.tau


def test_norms_are_of_all_leaves_small_and_large():
    rng = np.random.default_rng(0)
    trees = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=(2**14 + 1,))}, [np.float64(3)]
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trees)])
    found = norm(*jax.tree.map(jnp.float32, trees))
    np.testing.assert_allclose(found, np.linalg.norm(flat), rtol=1e-6)
    np.testing.assert_allclose(norm({"a": jnp.float32([3, 4])}), 5, rtol=1e-6)
    large = jnp.ones(2**14 + 9)
    np.testing.assert_allclose(norm(large), np.sqrt(2**14 + 9), rtol=1e-6)
