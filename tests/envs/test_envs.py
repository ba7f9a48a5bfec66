"""Every env faces one suite; then what is particular to MinAtar, Atari, Gymnasium and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from millpond import BadConfig, BadState, Field, HostPond, Rows
from millpond.envs import Env, HostEnv, HostVector, Outcome, VectorEnv, make_env, spec_of
from millpond.envs import atari as atari_module
from millpond.envs import gym as gym_module
from millpond.envs import minatar as minatar_module
from millpond.envs.atari import Atari
from millpond.envs.gym import GymEnv
from millpond.envs.hosted import HostedVector
from millpond.envs.minatar import MinAtar
from millpond.envs.pendulum import Pendulum
from millpond.rows import BORDER, FIRST

NUM_ENVS, STEPS = 3, 400


class Walk(NamedTuple):
    count: Any
    length: Any
    stops: Any  # terminates, else truncates
    key: Any  # a typed key inside the state: it must survive export


@dataclass(frozen=True)
class Scripted:
    """Two agents; each episode draws its length, 1 ... `longest`, and how it ends."""

    longest: int = 5
    name: str = "scripted"
    num_agents: int = 2
    num_actions: int = 3
    frames_per_step: int = 1

    @property
    def observation(self):
        return Field("float32", (4,))

    @property
    def extras(self):
        return {}

    @property
    def references(self):
        return {}

    def reset(self, key):
        length, stops, state = jax.random.split(key, 3)
        length = jax.random.randint(length, (), 1, self.longest + 1)
        return Walk(jnp.int32(0), length, jax.random.bernoulli(stops), state)

    def step(self, state, action, key):
        state = state._replace(count=state.count + 1, key=jax.random.fold_in(state.key, 1))
        end = state.count >= state.length
        reward = action * 10 + jax.random.uniform(key) + 1
        return state, Outcome(reward, end & state.stops, end & ~state.stops)

    def observe(self, state):
        noise = jax.random.uniform(state.key)
        facts = jnp.stack([state.count, state.length, state.stops, noise]).astype(np.float32)
        return jnp.stack([facts, facts + 100])

    def render(self, state):
        return np.full((8, 8, 3), int(state.count), np.uint8)


class Uneven(gymnasium.Env):
    """A 2x2 Box of actions, no element with the bounds of another, none with 0 inside all."""

    action_space = Box(np.array([[0.1, -3], [-1, 2]]), np.array([[0.7, -1], [1, 9]]), dtype=float)
    observation_space = Box(-np.inf, np.inf, (5,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._seen(self.np_random.uniform(size=4)), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.turn += 1
        return self._seen(action.ravel()), 1.0, self.turn >= 6, False, {}

    def _seen(self, rest):
        return np.array([self.turn, *rest], np.float32)


gymnasium.register("MillpondTest/Uneven-v0", Uneven)


@dataclass
class Case:
    env: Any
    is_reset: Callable[[np.ndarray], bool]  # of one agent's observation
    ends: set[str]  # how episodes must have ended within STEPS
    saves: bool = False

    def vector(self, num_envs: int = NUM_ENVS, seed: int = 0) -> HostVector:
        if isinstance(self.env, HostEnv):
            return self.env.vector(num_envs, seed)
        return HostedVector(self.env, num_envs, seed)


def breakout_start(obs):
    return obs[:, :, 3].sum() == 30 and obs[3, :, 1].sum() == 1 and obs[9, 4, 0]


BREAKOUT = Atari("breakout", noops=0, fire_reset=False, max_frames=900)


@cache
def atari_start() -> np.ndarray:
    return BREAKOUT.vector(1, 99).obs[0, 0]


CASES = {
    "scripted": Case(Scripted(), lambda o: o[0] in (0, 100), {"terminated", "truncated"}, True),
    "minatar-breakout": Case(MinAtar("breakout"), breakout_start, {"terminated"}, True),
    "minatar-asterix": Case(
        MinAtar("asterix"), lambda o: o.sum() == 1 and o[5, 5, 0], {"terminated"}, True
    ),
    "atari": Case(BREAKOUT, lambda o: (o == atari_start()).all(), {"terminated", "truncated"}),
    "gym": Case(GymEnv("CartPole-v1"), lambda o: (np.abs(o) <= 0.05).all(), {"terminated"}),
    "gym-limit": Case(
        GymEnv("CartPole-v1", max_episode_steps=12),
        lambda o: (np.abs(o) <= 0.05).all(),
        {"terminated", "truncated"},
    ),
    "pendulum": Case(Pendulum(turns=30), lambda o: abs(o[2]) <= 1, {"truncated"}, True),
    "gym-real": Case(
        GymEnv("Pendulum-v1", max_episode_steps=30), lambda o: abs(o[2]) <= 1, {"truncated"}
    ),
    "gym-uneven": Case(GymEnv("MillpondTest/Uneven-v0"), lambda o: o[0] == 0, {"terminated"}),
}


@pytest.fixture(params=CASES, scope="module")
def case(request) -> Case:
    return CASES[request.param]


def actions(case: Case, steps: int, num_envs: int = NUM_ENVS, seed: int = 0) -> np.ndarray:
    shape, random = (steps, case.env.num_agents, num_envs), np.random.default_rng(seed)
    action = spec_of(case.env).action
    if action.dtype.kind == "f":
        return random.uniform(action.low, action.high, (*shape, *action.shape)).astype(np.float32)
    return random.integers(0, case.env.num_actions, shape, dtype=np.int32)


def play(case: Case, vector: HostVector, steps: int, seed: int = 0) -> list[Rows]:
    return [vector.step(a) for a in actions(case, steps, vector.num_envs, seed)]


def same(a: Rows, b: Rows) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in leaves)


@pytest.fixture(scope="module")
def history(case) -> Rows:
    """STEPS turns of seed 0: rows [time, agents, env]."""
    vector = case.vector()
    rows = play(case, vector, STEPS)
    vector.close()
    return jax.tree.map(lambda *each: np.stack(each), *rows)


# --- the contract ---


def test_kind(case):
    assert isinstance(case.env, Env) != isinstance(case.env, HostEnv)
    assert hash(case.env) == hash(replace(case.env))
    assert case.env == replace(case.env)


def test_a_ring_takes_the_rows(case, history):
    spec = spec_of(case.env)
    for agent in range(case.env.num_agents):
        rows = jax.tree.map(lambda leaf, a=agent: leaf[:, a], history)
        pond = HostPond(spec, NUM_ENVS * STEPS, NUM_ENVS)
        for t in range(STEPS):  # one turn at a time, as a loop would: continuity is checked
            pond.add(jax.tree.map(lambda leaf, t=t: leaf[t], rows))
        batch = pond.sample(32)
        assert batch.mask.all()
        assert batch.obs.dtype == spec.obs.dtype


def test_types_and_shapes(case, history):
    spec, lead = spec_of(case.env), (STEPS, case.env.num_agents, NUM_ENVS)
    expected = {
        "obs": (spec.obs.dtype, spec.obs.shape),
        "action": (spec.action.dtype, spec.action.shape),
        "reward": (np.float32, ()),
        "terminated": (np.bool_, ()),
        "truncated": (np.bool_, ()),
        "flags": (np.uint8, ()),
    }
    for name, (dtype, shape) in expected.items():
        value = getattr(history, name)
        assert value.dtype == dtype, name
        assert value.shape == (*lead, *shape), name
    assert set(history.extras) == set(spec.extras)
    for name, value in history.extras.items():
        assert (value.dtype, value.shape) == (spec.extras[name].dtype, lead)


def test_every_end_has_its_border(case, history):
    ended = history.terminated | history.truncated
    border, first = (history.flags & BORDER) != 0, (history.flags & FIRST) != 0
    for name in ("terminated", "truncated"):
        assert getattr(history, name).any() == (name in case.ends), name
    assert (border[1:] == ended[:-1]).all()
    assert (first[1:] == border[:-1]).all()
    assert first[0].all()
    assert not border[0].any()
    assert not (ended & border).any()
    assert (history.reward[border] == 0).all()
    dummy = spec_of(case.env).action.lowest()
    assert (history.action[border] == dummy).all()
    assert dummy.shape or dummy == 0
    for value in history.extras.values():
        assert not value[border].any()


def test_first_rows_show_a_reset_and_border_rows_do_not(case, history):
    first, border = (history.flags & FIRST) != 0, (history.flags & BORDER) != 0
    assert all(case.is_reset(obs) for obs in history.obs[first])
    fresh = history.obs[1:][border[:-1]]  # what follows the border row in its stream
    final = history.obs[:-1][border[:-1]]
    assert not any(np.array_equal(a, b) for a, b in zip(final, fresh, strict=True))


def test_the_seed_decides(case):
    one, two, other = case.vector(seed=5), case.vector(seed=5), case.vector(seed=6)
    a, b, c = (play(case, vector, 60) for vector in (one, two, other))
    assert all(same(x, y) for x, y in zip(a, b, strict=True))
    assert not all(same(x, y) for x, y in zip(a, c, strict=True))


def test_neighbouring_seeds_share_no_env(case):
    """seed + i as the seed of env i would make env 1 of seed 5 the twin of env 0 of seed 6."""
    lone = actions(case, 60, 1)
    turns = np.repeat(lone, NUM_ENVS, axis=2)
    five, six = case.vector(seed=5), case.vector(seed=6)
    a = np.stack([five.step(action).obs for action in turns])
    b = np.stack([six.step(action).obs for action in turns])
    assert not np.array_equal(a[:, :, 1], b[:, :, 0])
    assert not np.array_equal(a[:, :, 0], a[:, :, 1])


def test_nothing_handed_out_changes(case):
    vector = case.vector()
    kept = []
    for action in actions(case, 50):
        mine = action.copy()
        seen = (vector.obs, vector.flags, vector.step(mine))
        mine[:] = -1
        kept += zip(jax.tree.leaves(seen), map(np.array, jax.tree.leaves(seen)), strict=True)
    assert all(np.array_equal(now, then) for now, then in kept)


def test_obs_and_flags_are_those_of_the_next_rows(case):
    vector = case.vector()
    for action in actions(case, 80):
        obs, flags = vector.obs, vector.flags
        assert obs.shape == (case.env.num_agents, NUM_ENVS, *case.env.observation.shape)
        assert flags.shape == (NUM_ENVS,)
        rows = vector.step(action)
        assert np.array_equal(rows.obs, obs)
        assert np.array_equal(rows.flags, np.broadcast_to(flags, rows.flags.shape))


def test_export_and_restore(case):
    vector = case.vector(seed=5)
    if not case.saves:
        assert vector.export() is None
        with pytest.raises(BadState, match="cannot save or restore"):
            vector.restore({})
        return
    moments, before, turns = [], [], actions(case, 150)
    for t, action in enumerate(turns):
        if t % 40 == 7 or (len(moments) < 5 and (vector.flags & (FIRST | BORDER)).any()):
            moments.append((t, vector.export()))
        before.append(vector.step(action))
    flags = {int(f) for t, _ in moments for f in before[t].flags.flat}
    assert flags == {0, FIRST, BORDER}, "in mid-episode, before a border and after one"
    for start, arrays in moments:
        assert all(type(array) is np.ndarray for array in arrays.values())
        again = case.vector(seed=77)
        again.step(actions(case, 1)[0])
        again.restore({name: array.copy() for name, array in arrays.items()})
        for t in range(start, len(turns)):
            assert same(again.step(turns[t]), before[t]), (start, t)


def test_restore_refuses_what_is_not_its_own(case):
    if not case.saves:
        pytest.skip("its state cannot be saved")
    vector, smaller = case.vector(), case.vector(NUM_ENVS - 1)
    with pytest.raises(BadState, match=r"leaf/0 is .* got"):
        vector.restore(smaller.export())
    arrays = vector.export()
    del arrays["turn"]
    with pytest.raises(BadState, match="expected an exported state"):
        vector.restore(arrays)


def test_closing_twice(case):
    vector = case.vector()
    vector.close()
    vector.close()


def test_a_picture(case):
    vector = case.vector()
    vector.step(actions(case, 1)[0])
    if isinstance(case.env, GymEnv):
        with pytest.raises(BadConfig, match="film=True"):
            vector.render()
        return
    picture = vector.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    if "minatar" in case.env.name:
        assert picture.shape[0] >= 160
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 2


# --- MinAtar ---


@pytest.mark.parametrize("game", ["breakout", pytest.param("asterix", marks=pytest.mark.full)])
def test_minatar_is_pgx_step_for_step(game):
    """Beside pgx itself, stepped by hand with the same keys: rewards, ends, final observations."""
    pgx = pytest.importorskip("pgx")
    raw, env, n = pgx.make(f"minatar-{game}"), MinAtar(game), 2
    init, step, observe = (jax.jit(jax.vmap(f)) for f in (raw.init, raw.step, raw.observe))
    envs, root = VectorEnv(env, n), jax.random.key(3)
    vector_step, split = jax.jit(envs.step), jax.jit(jax.random.split, static_argnums=1)
    state, mine = jax.jit(envs.reset)(root), init(split(root, n))
    turns, ends = np.random.default_rng(0).integers(0, env.num_actions, (200, 1, n)), 0
    for t, key in enumerate(split(root, len(turns))):
        border, action = np.asarray(state.flags) == BORDER, turns[t].astype(np.int32)
        state, rows = vector_step(state, action, key)
        stepping, resetting = split(key, 2)
        seen, then = np.asarray(observe(mine)), np.asarray(mine.terminated)
        assert np.array_equal(rows.obs[0], seen), "also at the border: the true final observation"
        assert np.array_equal(border, then)
        assert seen.any((1, 2, 3)).all(), "pgx wipes no observation"
        ends += border.sum()
        mine, fresh = step(mine, action[0], split(stepping, n)), init(split(resetting, n))
        assert np.array_equal(rows.reward[0], np.where(border, 0, mine.rewards[:, 0]))
        assert np.array_equal(rows.terminated[0], np.asarray(mine.terminated) & ~border)
        if border.any():
            mine = jax.tree.map(
                lambda a, b, w=border: np.where(w.reshape(-1, *(1,) * (b.ndim - 1)), a, b),
                fresh,
                mine,
            )
    assert ends >= 2


@pytest.mark.parametrize(
    ("game", "channels", "few"),
    [
        ("breakout", 4, 3),
        ("asterix", 4, 5),
        ("freeway", 7, 3),
        ("seaquest", 10, 6),
        ("space_invaders", 6, 4),
    ],
)
def test_minatar_games(game, channels, few):
    env = MinAtar(game)
    assert env.name == f"minatar/{game}"
    assert env.observation == Field("bool", (10, 10, channels))
    assert (env.num_actions, MinAtar(game, minimal_actions=False).num_actions) == (few, 6)
    assert MinAtar(game.replace("_", "-").upper()) == env
    picture = env.render(jax.jit(env.reset)(jax.random.key(0)))
    assert picture.shape == (240, 240, 3)
    assert not (picture == picture[0, 0]).all()


def test_freeway_ends_by_time_as_terminated():
    env = MinAtar("freeway")

    @jax.jit
    def run(key):
        def turn(state, key):
            state, outcome = env.step(state, jnp.zeros(1, np.int32), key)
            return state, (outcome.terminated, outcome.truncated)

        return jax.lax.scan(turn, env.reset(key), jax.random.split(key, 2502))[1]

    terminated, truncated = map(np.asarray, run(jax.random.key(0)))
    assert terminated.argmax() == 2500
    assert not truncated.any()


def test_minatar_may_be_used_first_inside_jit():
    minatar_module._game.cache_clear()
    env = MinAtar("breakout", sticky=0.125)
    jax.jit(lambda key: env.observe(env.reset(key)))(jax.random.key(0))
    env.step(env.reset(jax.random.key(0)), jnp.zeros(1, np.int32), jax.random.key(1))


def test_sticky_one_never_takes_an_action():
    """Every turn repeats the last action, and the first last action is to do nothing."""
    env = MinAtar("breakout", sticky=1.0)
    state, step = env.reset(jax.random.key(0)), jax.jit(env.step)
    for turn in range(4):
        state, _ = step(state, jnp.ones(1, np.int32), jax.random.key(turn))
        assert env.observe(state)[0, 9, 4, 0], "the paddle moved"


# --- HostedVector ---


def test_hosted_vector_is_vector_env():
    """The host's rows are the jitted env's own, under the keys of seed and turn."""
    case = CASES["scripted"]
    vector = case.vector(seed=5)
    seen = play(case, vector, 40)
    assert {bool(r.terminated.any()) for r in seen} == {True, False}
    rewards = np.stack([r.reward for r in seen])
    real = np.stack([r.flags for r in seen]) & BORDER == 0
    taken = np.stack([r.action for r in seen])
    # reward = 10 * action + a number in [1, 2): every agent got what its own action brought.
    assert (np.floor(rewards[real]) == 10 * taken[real] + 1).all()


def test_turns_beyond_32_bits_go_on():
    case = CASES["scripted"]
    late, later = case.vector(seed=1), case.vector(seed=1)
    arrays = late.export()
    late.restore(arrays | {"turn": np.array([5], np.int64)})
    later.restore(arrays | {"turn": np.array([5 + 2**32], np.int64)})
    a, b = play(case, late, 5), play(case, later, 5)
    assert not all(same(x, y) for x, y in zip(a, b, strict=True))
    assert later.export()["turn"][0] == 10 + 2**32


# --- Atari ---


def test_a_life_lost_is_no_end():
    env = replace(BREAKOUT, max_frames=100_000)
    vector, rng = env.vector(2, 0), np.random.default_rng(0)
    rows = [vector.step(rng.integers(0, 4, (1, 2), dtype=np.int32)) for _ in range(400)]
    lost, over, flags = (
        np.stack(x)[:, 0]
        for x in zip(*[(r.extras["life_lost"], r.terminated, r.flags) for r in rows], strict=True)
    )
    for e in range(2):
        games = np.flatnonzero(over[:, e])
        assert len(games) >= 1
        # Five lives: four go without an end, the fifth ends the game.
        assert lost[: games[0] + 1, e].sum() == 5
        assert lost[games[0], e]
        for t in np.flatnonzero(lost[: games[0], e]):
            assert not over[t, e]
            assert flags[t + 1, e] == 0, "the row after a life lost is an ordinary one"
        assert flags[games[0] + 1, e] == BORDER
    assert not np.stack([r.truncated for r in rows]).any()


@pytest.mark.parametrize("skip", [2, 4])
def test_max_frames_truncates(skip):
    env = replace(BREAKOUT, max_frames=48, frame_skip=skip)
    assert env.frames_per_step == skip
    vector = env.vector(2, 0)
    rows = [vector.step(np.zeros((1, 2), np.int32)) for _ in range(3 * (48 // skip + 1))]
    flags, truncated = np.stack([r.flags for r in rows]), np.stack([r.truncated for r in rows])
    steps = 48 // skip
    expected = np.zeros(steps + 1, np.uint8)
    expected[[0, -1]] = FIRST, BORDER
    assert (flags[:, 0, 0] == np.tile(expected, 3)).all()
    assert (np.flatnonzero(truncated[:, 0, 0]) % (steps + 1) == steps - 1).all()
    assert not any(r.terminated.any() for r in rows)


def test_rewards_are_raw():
    """A dot is worth 10: nothing may clip it."""
    vector, rng = Atari("ms_pacman").vector(2, 0), np.random.default_rng(0)
    turns = rng.integers(0, 9, (120, 1, 2), dtype=np.int32)
    assert max(vector.step(action).reward.max() for action in turns) >= 10


def test_atari_settings():
    assert Atari("Ms-Pacman").game == "ms_pacman"
    assert Atari("ms_pacman").name == "atari/ms_pacman"
    assert Atari("breakout").num_actions == 4
    assert Atari("breakout", full_actions=True).num_actions == 18
    assert Atari("breakout").observation == Field("uint8", (84, 84))
    assert Atari("breakout", noops=1, threads=1).vector(1, 0).render().shape == (336, 336, 3)


# --- Gymnasium ---


class Odd(gymnasium.Env):
    """Actions 5 ... 7, observed as float64: [the last action, turns]."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    action_space = gymnasium.spaces.Discrete(3, start=5)
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float64)

    def __init__(self, render_mode=None):
        self.render_mode, self.turns = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turns = 0
        return np.zeros(2), {}

    def step(self, action):
        self.turns += 1
        return np.array([action, self.turns], np.float64), float(action), self.turns == 4, False, {}

    def render(self):
        return np.full((4, 6, 3), self.turns, np.uint8)


class Seen(Odd):
    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})


class Count(Odd):
    """Observes one Discrete number, which does not begin at 0."""

    observation_space = gymnasium.spaces.Discrete(9, start=-2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return -2, {}

    def step(self, action):
        return self.turns - 2, *super().step(action)[1:]


for cls in (Odd, Seen, Count):
    gymnasium.register(f"MillpondTest/{cls.__name__}-v0", cls)


def test_actions_that_begin_elsewhere_and_64_bit_observations():
    env = GymEnv("MillpondTest/Odd-v0")
    assert env.observation == Field("float32", (2,))
    vector = env.vector(2, 0)
    rows = [vector.step(np.array([[0, 2]], np.int32)) for _ in range(5)]
    assert [r.action.tolist() for r in rows] == [[[0, 2]]] * 4 + [[[0, 0]]]
    assert rows[1].obs[0].tolist() == [[5, 1], [7, 1]]
    assert rows[1].obs.dtype == np.float32
    assert rows[1].reward.tolist() == [[5, 7]]
    assert rows[4].flags.tolist() == [[BORDER, BORDER]]
    assert rows[4].obs[0].tolist() == [[5, 4], [7, 4]]


class Plain(gymnasium.wrappers.TransformAction):
    """CartPole, registered by no one."""

    def __init__(self, render_mode=None, push=0):
        cart = gymnasium.make("CartPole-v1", render_mode=render_mode)
        super().__init__(cart, lambda action: max(push, action), cart.action_space)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_class_that_is_not_registered(vectorization):
    env = GymEnv(f"{__name__}:Plain", vectorization, max_episode_steps=3, options=("push=1",))
    assert env.num_actions == 2
    vector = env.vector(2, 0)
    rows = [vector.step(np.zeros((1, 2), np.int32)) for _ in range(4)]
    vector.close()
    assert [r.truncated.all() for r in rows] == [False, False, True, False]
    assert (rows[3].obs[0, :, 1] > 0.5).all()  # pushed to the right, three times


def test_a_gymnasium_class_without_gym_in_front_is_sent_there():
    with pytest.raises(BadConfig, match=r"is a Gymnasium env; use 'gym:.*:Plain'"):
        make_env(f"{__name__}:Plain")


def test_a_single_number_is_observed_one_hot():
    env = GymEnv("MillpondTest/Count-v0")
    assert env.observation == Field("bool", (9,))
    vector, pond = env.vector(2, 0), HostPond(spec_of(env), 100, 2)
    for turn in range(4):
        rows = vector.step(np.ones((1, 2), np.int32))
        assert rows.obs.shape == (1, 2, 9)
        state = max(turn - 1, 0)  # it counts from -2, and begins to with the second step
        assert np.argmax(rows.obs[0], -1).tolist() == [state, state]
        assert rows.obs.sum() == 2
        pond.add(jax.tree.map(lambda leaf: leaf[0], rows))
    for _ in range(8):
        rows = vector.step(np.ones((1, 2), np.int32))
        pond.add(jax.tree.map(lambda leaf: leaf[0], rows))


def test_a_film():
    vector = GymEnv("MillpondTest/Odd-v0", film=True).vector(2, 0)
    for turn in range(3):
        picture = vector.render()
        assert (picture == turn).all()
        assert picture.shape == (4, 6, 3)
        vector.step(np.zeros((1, 2), np.int32))


def test_processes_give_the_same_rows():
    env = GymEnv("CartPole-v1", max_episode_steps=12)
    case = Case(env, CASES["gym"].is_reset, set())
    other = Case(replace(env, vectorization="async"), case.is_reset, set())
    here, there = case.vector(1), other.vector(1)
    pairs = zip(play(case, here, 30), play(other, there, 30), strict=True)
    assert all(same(a, b) for a, b in pairs)
    there.close()
    there.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MinAtar("brekout"), r"no game 'brekout'; did you mean 'breakout'\?"),
        (lambda: MinAtar("breakout", sticky=1.5), "sticky is a probability"),
        (lambda: Atari("gravtar"), r"no game 'gravtar' .*did you mean 'gravitar'\?"),
        (lambda: Atari("pong", sticky=-0.1), "sticky is a probability"),
        (lambda: Atari("pong", frame_skip=0), "frame_skip must be 1 or more, got 0"),
        (lambda: Atari("pong", max_frames=0), "max_frames must be 1 or more"),
        (lambda: Atari("pong", noops=-1), "noops must be 0 or more"),
        (lambda: GymEnv("CartPol-v1"), r"did you mean 'gym:CartPole-v1'\?"),
        (lambda: GymEnv("no_such_module:Env-v0").num_actions, "gym:no_such_module:Env-v0"),
        (lambda: GymEnv("CartPole-v1", vectorization="fast"), "'sync' or 'async'"),
        (lambda: GymEnv("CartPole-v1", max_episode_steps=-1), "max_episode_steps must be 0"),
        (lambda: GymEnv("Pendulum-v1").num_actions, "needs a Discrete action space, got Box"),
        (lambda: GymEnv("MillpondTest/Seen-v0").observation, r"a dict \['a'\].*your own"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(BadConfig, match=words):
        make()


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pgx.minatar.seaquest", None)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    minatar_module._game.cache_clear()
    minatar_module._shapes.cache_clear()
    with pytest.raises(BadConfig, match=r"minatar needs pgx, .*pip install 'millpond\[minatar\]'"):
        MinAtar("seaquest").num_actions
    with pytest.raises(BadConfig, match=r"atari needs ale_py, .*pip install 'millpond\[atari\]'"):
        Atari("pong")
    monkeypatch.undo()
    assert MinAtar("seaquest").num_actions == 6, "a failure is not remembered"


@pytest.mark.parametrize("prefix", ["gymnax", "brax", "playground"])
def test_packages_of_envs_in_jax_that_are_missing_are_named(prefix, monkeypatch):
    package = "mujoco_playground" if prefix == "playground" else prefix
    monkeypatch.setitem(sys.modules, package, None)
    said = rf"needs {package}, which is not installed; run: pip install 'millpond\[{prefix}\]'"
    with pytest.raises(BadConfig, match=said):
        make_env(f"{prefix}:CartPole-v1")


def test_facts_are_built_once(monkeypatch):
    assert GymEnv("CartPole-v1").num_actions == 2
    assert Atari("breakout").num_actions == 4
    for module in (gym_module, atari_module):
        monkeypatch.setattr(module, "_make", None)
    monkeypatch.setattr(gym_module, "_build", None)
    assert GymEnv("CartPole-v1").observation.shape == (4,)
    assert Atari("breakout").num_actions == 4
