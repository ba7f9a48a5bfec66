"""gymnax, Brax and MuJoCo Playground beside an oracle that plays each by hand, step by step."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond import BadConfig, HostPond, Window
from millpond.agents import DQNSettings, Network
from millpond.envs import Env, VectorEnv, action_of, any_action, make_env, spec_of
from millpond.envs.hosted import HostedVector
from millpond.metrics import read_metrics
from millpond.rows import BORDER, FIRST
from millpond.train import Referee, Run, Settings, train
from millpond.train.presets import settings_for

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other packages about themselves
ENVS = 3


class Hand(NamedTuple):
    """Another package's env by its own words: pure functions over a state of one env."""

    reset: Callable[[Any], tuple[Any, Any]]  # key -> state, obs
    step: Callable[[Any, Any, Any], tuple]  # key, state, action -> state, obs, reward, two ends


class Case(NamedTuple):
    env: Any
    hand: Callable[[Any], Hand]
    ends: set[str]
    turns: int = 60


def gymnax_by_hand(env: Any) -> Hand:
    """By gymnax's own step, whose autoreset tells the ends and the final observation apart."""
    import gymnax

    game, params = gymnax.make(env.id)
    if env.max_episode_steps:
        params = params.replace(max_steps_in_episode=env.max_episode_steps)

    def step(key, state, action):
        _, after, reward, _, _ = game.step_env(key, state, action, params)
        told = game.step(key, state, action, params)[-1]
        # Chance differs between the two, because gymnax's step splits the key: what is compared
        # with it are envs whose steps leave nothing to chance.
        assert set(told) >= {"terminated", "truncated", "final_observation"}
        ended = told["terminated"], told["truncated"]
        return after, told["final_observation"], reward, *ended

    return Hand(lambda key: game.reset_env(key, params)[::-1], step)


def brax_by_hand(env: Any) -> Hand:
    """By Brax's own `EpisodeWrapper`, which counts and truncates."""
    from brax import envs

    backend = {"backend": env.backend} if env.backend else {}
    game = envs.create(env.id, env.episode_length, env.action_repeat, auto_reset=False, **backend)

    def step(key, state, action):
        after = game.step(state, action)
        truncated = after.info["truncation"] > 0
        return after, after.obs, after.reward, (after.done > 0) & ~truncated, truncated

    def reset(key):
        state = game.reset(key)
        return state, state.obs

    return Hand(reset, step)


def playground_by_hand(env: Any) -> Hand:
    """By the same wrapper of Brax, with which Playground trains."""
    from brax.envs.wrappers.training import EpisodeWrapper
    from mujoco_playground import registry

    game = registry.load(env.id, config_overrides={"impl": "jax"})
    game = EpisodeWrapper(game, env.episode_length, env.action_repeat)

    def step(key, state, action):
        after = game.step(state, action)
        truncated = after.info["truncation"] > 0
        return after, after.obs, after.reward, (after.done > 0) & ~truncated, truncated

    def reset(key):
        state = game.reset(key)
        return state, state.obs

    return Hand(reset, step)


def cases() -> dict[str, tuple[str, Callable[[], Case]]]:
    """By name: the package that it needs, and how it is made."""

    def of(name: str, hand: Any, ends: set[str], **changes: Any) -> Callable[[], Case]:
        return lambda: Case(dataclasses.replace(make_env(name), **changes), hand, ends)

    both, clock = {"terminated", "truncated"}, {"truncated"}
    gym, brax, play = gymnax_by_hand, brax_by_hand, playground_by_hand
    return {
        "gymnax-ends": ("gymnax", of("gymnax:CartPole-v1", gym, both, max_episode_steps=15)),
        "gymnax-real": ("gymnax", of("gymnax:Pendulum-v1", gym, clock, max_episode_steps=9)),
        "gymnax-car": (
            "gymnax",
            of("gymnax:MountainCarContinuous-v0", gym, clock, max_episode_steps=20),
        ),
        "brax-clock": ("brax", of("brax:fast", brax, clock, episode_length=7)),
        "brax-repeat": ("brax", of("brax:fast", brax, clock, episode_length=7, action_repeat=2)),
        "brax-ends": ("brax", of("brax:inverted_pendulum", brax, both, episode_length=12)),
        "playground": (
            "mujoco_playground",
            of("playground:CartpoleBalance", play, clock, episode_length=8),
        ),
    }


@pytest.fixture(params=cases(), scope="module")
def case(request) -> Case:
    package, make = cases()[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package)
        return make()


def needs(package: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def played(case):
    """Rows [turn, env] of a VectorEnv, the observation after them, and those of the oracle."""
    envs, root = VectorEnv(case.env, ENVS), jax.random.key(3)
    reset, step = jax.jit(envs.reset), jax.jit(envs.step)
    hand = case.hand(case.env)
    begin, go = jax.jit(jax.vmap(hand.reset)), jax.jit(jax.vmap(hand.step))
    split = jax.jit(jax.random.split, static_argnums=1)
    keys, action = split(root, case.turns), action_of(case.env)
    turns = np.array(any_action(action, jax.random.key(5), (case.turns, 1, ENVS)))
    # One env is pushed one way, so that what can fall does; one is not, so that it stands.
    if action.dtype.kind == "f":
        turns[:, :, 0], turns[:, :, 1] = np.broadcast_to(action.high, action.shape), 0
    state = reset(root)
    mine, obs = begin(split(root, ENVS))
    over = np.zeros(ENVS, bool)  # where the oracle begins a new episode next
    rows, oracle = [], []
    for key, chosen in zip(keys, turns, strict=True):
        state, row = step(state, chosen, key)
        rows.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), row))
        stepping, resetting = split(key, 2)
        after, seen, reward, *ends = go(split(stepping, ENVS), mine, chosen[0])
        ends = [np.asarray(end) & ~over for end in ends]
        ends[1] &= ~ends[0]
        oracle.append((np.asarray(obs), chosen[0], np.where(over, 0, reward), *ends, over))
        fresh, first = begin(split(resetting, ENVS))

        def pick(new, old, over=over):
            new, old = np.asarray(new), np.asarray(old)
            return np.where(over.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        plain = jax.tree.structure(after)
        mine = jax.tree.map(pick, jax.tree.unflatten(plain, jax.tree.leaves(fresh)), after)
        obs, over = pick(first, seen), ends[0] | ends[1]
    return rows, oracle, np.asarray(state.obs[0])


def test_rows_are_what_the_oracle_sees(case, played):
    rows, oracle, _ = played
    found, kinds = set(), []
    for row, (obs, action, reward, terminated, truncated, over) in zip(rows, oracle, strict=True):
        np.testing.assert_allclose(row.obs, obs, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(row.action[~over], action[~over])
        np.testing.assert_allclose(row.reward, reward, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(row.terminated, terminated)
        np.testing.assert_array_equal(row.truncated, truncated)
        np.testing.assert_array_equal((row.flags & BORDER) != 0, over)
        found |= {"terminated"} if terminated.any() else set()
        found |= {"truncated"} if truncated.any() else set()
        kinds.append(row.flags)
    assert found == case.ends
    assert (np.stack(kinds) & FIRST).sum() > ENVS, "several episodes of each"


def test_the_true_final_observation_reaches_replay(case, played):
    """Every transition out of a ring, beside what the oracle saw after that very step."""
    rows, oracle, last = played
    pond = HostPond(spec_of(case.env), case.turns * ENVS, ENVS, Window(gamma=0.9))
    for row in rows:
        pond.add(row)
    batch = pond.sample(4_000)
    ended = 0
    after = [turn[0] for turn in oracle[1:]] + [last]
    starts = np.stack([~turn[-1] for turn in oracle])
    drawn = set()
    for i, (env, time) in enumerate(zip(batch.draw.stream, batch.draw.ids(), strict=True)):
        terminated, truncated = (oracle[time][k][env] for k in (3, 4))
        assert starts[time, env]
        drawn.add((time, env))
        ended += bool(truncated)
        np.testing.assert_allclose(batch.next_obs[i, 0], after[time][env], rtol=1e-4, atol=1e-4)
        assert batch.discount[i] == (0 if terminated else np.float32(0.9))
        assert batch.truncated[i] == truncated
    assert ended > 50
    assert drawn >= {tuple(at) for at in np.argwhere(starts[:-1])}, "no row was left out"


def test_it_is_an_env_with_its_facts(case):
    assert isinstance(case.env, Env)
    assert case.env == dataclasses.replace(case.env)
    assert hash(case.env) == hash(dataclasses.replace(case.env))
    assert make_env(case.env.name).id == case.env.id
    vector = HostedVector(case.env, 2, seed=1)
    chosen = np.asarray(any_action(action_of(case.env), jax.random.key(0), (5, 1, 2)))
    for one in chosen[:2]:
        vector.step(one)
    saved = vector.export()
    before = [vector.step(one) for one in chosen[2:]]
    again = HostedVector(case.env, 2, seed=9)
    again.restore(saved)
    for one, row in zip(chosen[2:], before, strict=True):
        jax.tree.map(np.testing.assert_array_equal, again.step(one), row)


@pytest.mark.parametrize(
    ("env", "package", "agent"),
    [
        ("gymnax:CartPole-v1", "gymnax", "dqn"),
        ("gymnax:Acrobot-v1", "gymnax", "dqn"),
        ("gymnax:Pendulum-v1", "gymnax", "sac"),
        ("brax:fast", "brax", "sac"),
        ("playground:CartpoleBalance", "mujoco_playground", "sac"),
    ],
)
def test_a_preset_loads_for_its_env_and_survives_json(env, package, agent):
    needs(package)
    of = settings_for(env)
    assert (of.agent, of.env) == (agent, env)
    assert Settings.from_json(json.loads(json.dumps(of.to_json()))) == of


def test_starts_are_drawn_from_states_that_were_computed_once():
    needs("brax")
    env = dataclasses.replace(make_env("brax:inverted_pendulum"), starts=4)
    keys = jax.random.split(jax.random.key(1), 64)
    reset = jax.jit(lambda keys: jax.vmap(env.observe)(jax.vmap(env.reset)(keys)))
    seen = np.unique(np.asarray(reset(keys))[:, 0], axis=0)
    assert len(seen) == 4
    fresh = dataclasses.replace(env, starts=0)
    seeds = jax.random.split(jax.random.key(0), 4)
    wanted = jax.jit(jax.vmap(fresh.reset))(seeds).inner.obs
    np.testing.assert_allclose(np.sort(seen, 0), np.sort(wanted, 0), rtol=1e-5, atol=1e-6)


def test_a_run_trains_evaluates_and_goes_on(tmp_path):
    needs("gymnax")
    learning = DQNSettings(batch=8, min_fill=32, capacity=256, update_every=4)
    env = dataclasses.replace(make_env("gymnax:CartPole-v1"), max_episode_steps=30)
    every = dict(log_every=64, eval_every=256, checkpoint_every=256, resume_every=64)
    settings = Settings(
        "gymnax:CartPole-v1",
        env,
        learning=learning,
        steps=256,
        envs=8,
        network=Network(width=8),
        eval_episodes=4,
        eval_turns=40,
        **every,
    )
    assert settings.way == "fused"
    whole, crashed = (Run.create(tmp_path / name, settings) for name in ("whole", "crashed"))
    digest = train(whole)
    (last,) = read_metrics(whole.metrics, "eval")
    assert 8 <= last["return"] <= 30

    class Stop(Exception):
        pass

    def stop(line):
        if line["kind"] == "train" and line["steps"] >= 128:
            raise Stop

    with pytest.raises(Stop):
        train(crashed, stop)
    assert train(crashed) == digest
    scores = Referee(settings, 4).watch("random")
    assert scores.returns.shape == (1, 4)


def test_what_cannot_be_is_refused_by_name():
    needs("gymnax")
    wrong = {
        "gymnax:CartPole-v2": r"gymnax has no such env; did you mean 'CartPole-v1'",
        "gymnax:": r"gymnax has no such env",
        "gymnax:MNISTBandit-bsuite": r"gymnax could not build it",
    }
    for name, said in wrong.items():
        with pytest.raises(BadConfig, match=said):
            make_env(name).observation  # noqa: B018
    env = make_env("gymnax:CartPole-v1")
    with pytest.raises(BadConfig, match="max_episode_steps must be 0"):
        dataclasses.replace(env, max_episode_steps=-1)
    with pytest.raises(BadConfig, match="cannot render single frames"):
        env.render(None)
    with pytest.raises(BadConfig, match=r"world describes gymnax:Acrobot-v1"):
        Settings("gymnax:CartPole-v1", make_env("gymnax:Acrobot-v1"))


def test_what_brax_lacks_is_refused_by_name():
    needs("brax")
    with pytest.raises(BadConfig, match=r"Brax has no env of this name; did you mean 'hopper'"):
        make_env("brax:hoper")
    env = make_env("brax:fast")
    for wrong, said in {
        "starts must be a whole number of at least 0, got -1": dict(starts=-1),
        "episode_length must be a whole number of at least 1": dict(episode_length=0),
        "action_repeat must be .* got 1.5": dict(action_repeat=1.5),
        "at most 65536 starts": dict(starts=70_000),
        "backend must be one of generalized": dict(backend="mujoco"),
    }.items():
        with pytest.raises(BadConfig, match=wrong):
            dataclasses.replace(env, **said)
    with pytest.raises(BadConfig, match=r"brax:fast: MuJoCo could not draw it: .*MUJOCO_GL"):
        env.render(jax.jit(env.reset)(jax.random.key(0)))


def test_pictures_of_a_minatar_game():
    needs("gymnax")
    env = make_env("gymnax:Breakout-MinAtar")
    picture = env.render(jax.jit(env.reset)(jax.random.key(0)))
    assert picture.shape == (240, 240, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 2
    assert jnp.asarray(picture).dtype == np.uint8
