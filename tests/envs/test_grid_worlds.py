"""Treasurehunt and staghunt against their rules in plain Python, turn by turn, cell by cell."""

from __future__ import annotations

import sys
from functools import cache

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid_oracle import KINDS, Prey, StagOracle, TreasureOracle, scene
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from scipy import stats

from millpond import BadConfig, Flag, HostPond, SpecMismatch
from millpond.envs import Env, VectorEnv, adapters, grid, spec_of
from millpond.envs.adapters import GridGymnasium, GridPettingZoo
from millpond.envs.staghunt import Staghunt, StagState
from millpond.envs.treasurehunt import Treasurehunt, TreasureState

UP, DOWN, LEFT, RIGHT, ATTACK = range(5)
# Crowded ones: most moves meet something, and boards fill up to the last cell.
HUNTS = {
    "default": Treasurehunt(),
    "small": Treasurehunt.small(),
    "crowded": Treasurehunt(size=6, agents=10, spawn=0.3, turns=60, radius=3, wall=-2.0),
}
STAGS = {
    "default": Staghunt(),
    "crowded": Staghunt(size=5, agents=3, hares=4, stags=2, respawn=0.5, turns=60, radius=1),
}
TINY = Treasurehunt(size=5, spawn=0.0, turns=3)
DUEL = Staghunt(size=5, hares=1, stags=1, respawn=0.0, turns=3)


@cache
def played(env: Env, num: int = 64):
    """`num` whole episodes as NumPy, time first: states and obs (one more), actions, outcomes."""

    def turn(state, key):
        one, two = jax.random.split(key)
        action = jax.random.randint(one, (num, env.num_agents), 0, 8)
        # Half of the turns an agent attacks, where it can.
        action = jnp.minimum(action, ATTACK) if env.num_actions > ATTACK else action % 4
        after, outcome = jax.vmap(env.step)(state, action, jax.random.split(two, num))
        return after, (after, jax.vmap(env.observe)(after), action, outcome)

    def run(key):
        one, two = jax.random.split(key)
        first = jax.vmap(env.reset)(jax.random.split(one, num))
        _, rest = jax.lax.scan(turn, first, jax.random.split(two, env.turns))
        return first, jax.vmap(env.observe)(first), rest

    first, saw, (states, obs, action, outcome) = jax.jit(run)(jax.random.key(1))
    join = lambda a, b: np.concatenate([np.asarray(a)[None], np.asarray(b)])
    return (
        jax.tree.map(join, first, states),
        join(saw, obs),
        *jax.tree.map(np.asarray, (action, outcome)),
    )


def cell(place, size: int):
    return None if place < 0 else divmod(int(place), size)


def items_of(board, size: int) -> dict:
    kinds = KINDS["treasure"]
    return {cell(i, size): kinds[k] for i, k in enumerate(board.tolist()) if k > 2}


def names(view, world: str):
    """A view's kinds by name; exactly one per cell."""
    assert view.dtype == bool
    assert (view.sum(-1) == 1).all()
    return [[KINDS[world][k] for k in line] for line in view.argmax(-1).tolist()]


@pytest.mark.parametrize("env", HUNTS.values(), ids=HUNTS)
def test_treasurehunt_plays_by_its_rules(env):
    states, obs, actions, outcome = played(env)
    values = {"wall": env.wall, "gem": env.gem, "food": env.food, "bone": env.bone}
    total = 0
    for i in range(6):
        board, places = states.board[:, i], states.places[:, i]
        oracle = TreasureOracle(env.size, [cell(p, env.size) for p in places[0]])
        assert len(set(oracle.agents)) == env.agents
        assert items_of(board[0], env.size) == {}
        for t in range(env.turns):
            for agent in range(env.agents):
                assert names(obs[t, i, agent], "treasure") == oracle.view(agent, env.radius)
            rewards = oracle.play(actions[t, i].tolist(), values)
            assert outcome.reward[t, i].tolist() == rewards
            assert [cell(p, env.size) for p in places[t + 1]] == oracle.agents
            total += oracle.appear(items_of(board[t + 1], env.size), set(env.items))
    assert total > 20
    assert_truncates(outcome, states.turn, env.turns)


@pytest.mark.parametrize("env", STAGS.values(), ids=STAGS)
def test_staghunt_plays_by_its_rules(env):
    states, obs, actions, outcome = played(env)
    values, kinds = {"hare": env.hare, "stag": env.stag}, ["hare"] * env.hares
    kinds += ["stag"] * env.stags
    came = 0
    counted = jax.vmap(jax.vmap(env.counts))(
        jax.tree.map(lambda leaf: leaf[:-1], states), jax.tree.map(lambda leaf: leaf[1:], states)
    )["stags"]
    assert counted.any()
    for i in range(6):
        at = lambda t, i=i: [cell(p, env.size) for p in states.prey[t, i]]
        agents = [cell(p, env.size) for p in states.places[0, i]]
        prey = [Prey(k, c) for k, c in zip(kinds, at(0), strict=True)]
        oracle = StagOracle(env.size, agents, prey)
        assert len({*agents, *at(0)}) == env.agents + len(kinds)
        for t in range(env.turns):
            for agent in range(env.agents):
                assert names(obs[t, i, agent], "stag") == oracle.view(agent, env.radius)
            alive = [one for one in oracle.prey if one.cell is not None]
            rewards = oracle.play(actions[t, i].tolist(), values, env.hunters)
            assert outcome.reward[t, i].tolist() == rewards
            fell = [one for one in alive if one.cell is None and one.kind == "stag"]
            assert counted[t, i] == len(fell)
            assert [cell(p, env.size) for p in states.places[t + 1, i]] == oracle.agents
            came += oracle.return_prey(at(t + 1))[1]
    assert came > 5
    assert_truncates(outcome, states.turn, env.turns)


def assert_truncates(outcome, turn, turns: int) -> None:
    assert not outcome.terminated.any()
    assert (outcome.truncated.sum(0) == 1).all()
    assert outcome.truncated[turns - 1].all()
    assert (turn == np.arange(turns + 1)[:, None]).all()


# Chance


def test_items_appear_as_often_as_they_should():
    env = HUNTS["default"]
    board = played(env)[0].board
    before, after = board[:-1] > 2, board[1:] > 2
    new = after & ~before
    chances = new | (board[1:] == grid.EMPTY)
    test = stats.binomtest(int(new.sum()), int(chances.sum()), env.spawn)
    assert test.pvalue > 1e-3, test
    kinds = np.bincount(board[1:][new], minlength=6)[3:]
    assert stats.chisquare(kinds).pvalue > 1e-3
    inside = grid.walled(env.size) == grid.EMPTY
    where, expected = new.sum((0, 1))[inside], chances.sum((0, 1))[inside]
    assert stats.chisquare(where, expected * where.sum() / expected.sum()).pvalue > 1e-3
    # Cells are independent: the number per turn spreads as a binomial does.
    mean = chances.sum(2) * env.spawn
    spread = (new.sum(2) - mean) ** 2 / (mean * (1 - env.spawn))
    assert abs(spread.mean() - 1) < 5 * np.sqrt(2 / spread.size)


def test_dead_prey_returns_as_often_as_it_should():
    for env in STAGS.values():
        prey = played(env)[0].prey
        dead, back = prey[:-1] < 0, prey[1:] >= 0
        test = stats.binomtest(int((dead & back).sum()), int(dead.sum()), env.respawn)
        assert dead.sum() > 1000
        assert test.pvalue > 1e-3, test


def test_starts_are_uniform_over_distinct_cells():
    env = STAGS["default"]
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(3), 8000))
    cells = np.concatenate([states.places, states.prey], 1)
    inside = np.flatnonzero(grid.walled(env.size) == grid.EMPTY)
    assert (np.sort(cells, 1)[:, 1:] > np.sort(cells, 1)[:, :-1]).all()
    for who in range(cells.shape[1]):
        found = np.bincount(cells[:, who], minlength=env.size**2)
        assert found.sum() == found[inside].sum()
        assert stats.chisquare(found[inside]).pvalue > 1e-4, who


def test_random_words_are_random():
    keys = jax.random.split(jax.random.key(0), 2000)
    words = np.asarray(jax.jit(jax.vmap(lambda key: grid.words(key, 64)))(keys))
    assert len(np.unique(words)) > words.size - 20
    for shift in (0, 12, 24):
        found = np.bincount((words >> shift).ravel() & 255, minlength=256)
        assert stats.chisquare(found).pvalue > 1e-3
    bits = (words[..., None] >> np.arange(32)) & 1
    for other in (np.roll(bits, 1, 1), np.roll(bits, 1, 0)):  # the next cell, the next key
        agree = (bits == other).mean((0, 1))
        assert np.abs(agree - 0.5).max() < 5 * 0.5 / np.sqrt(words.size)


def test_chance_is_exact_at_its_ends():
    words = jnp.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    assert not grid.happens(words, 0.0).any()
    assert grid.happens(words, 1.0).all()
    assert grid.happens(words, 0.5).tolist() == [True, True, False, False]


# Meetings: the drawn row lies under the upper wall, the two rows below it are empty.


def drawn(env, row: str, below: str = "...") -> tuple[list, dict, object]:
    """Agents, things and the env's state of a drawing."""
    size, agents, things = scene(f"##### #{row}# #{below}# #...# #####")
    index = lambda c: c[0] * size + c[1]
    places = np.array([index(c) for c in agents], np.int32)
    if isinstance(env, Staghunt):
        prey = [index(c) for kind in ("hare", "stag") for c in things if things[c] == kind]
        return agents, things, StagState(places, np.array(prey, np.int32), np.int32(0))
    board = grid.walled(size)
    for c, kind in things.items():
        board[index(c)] = KINDS["treasure"].index(kind)
    board[places] = grid.AGENT
    return agents, things, TreasureState(board, places, np.int32(0))


@cache
def stepper(env):
    return jax.jit(lambda state, action: env.step(state, action, jax.random.key(0)))


def turn_of(env, state, *actions: int):
    return jax.tree.map(np.asarray, stepper(env)(state, np.array(actions, np.int32)))


@pytest.mark.parametrize(
    ("before", "actions", "after", "rewards"),
    [
        ("0g1", (RIGHT, LEFT), ".01", [10, 0]),  # both want it: the first in the list has it
        ("1g0", (LEFT, RIGHT), "10.", [10, 0]),
        ("01.", (RIGHT, LEFT), "01.", [0, 0]),  # no swapping
        ("10.", (RIGHT, RIGHT), ".10", [0, 0]),  # into the cell just left
        ("01.", (RIGHT, RIGHT), "0.1", [0, 0]),  # not into one that is left later
        ("10g", (RIGHT, RIGHT), ".10", [10, 0]),  # what the other took was not under it before
        ("0f1", (UP, UP), "0f1", [-1, -1]),
        ("0f1", (LEFT, LEFT), "01.", [-1, 5]),
        ("0b1", (RIGHT, UP), ".01", [-10, -1]),
    ],
)
def test_meetings_on_a_treasurehunt(before, actions, after, rewards):
    state, outcome = turn_of(TINY, drawn(TINY, before)[2], *actions)
    agents, things, _ = drawn(TINY, after)
    assert [cell(p, 5) for p in state.places] == agents
    assert items_of(state.board, 5) == things
    assert outcome.reward.tolist() == rewards


@pytest.mark.parametrize(
    ("row", "below", "actions", "rewards", "falls"),
    [
        ("0h.", "..1", (ATTACK, UP), [1, 0], "h"),  # one attacker takes a hare
        ("0h1", "..s", (ATTACK, ATTACK), [1, 1], "h"),  # each attacker has it; one is no two
        ("0s1", "..h", (ATTACK, ATTACK), [5, 6], "sh"),  # a stag takes both; 1 is by the hare too
        ("0s1", "h..", (UP, ATTACK), [0, 0], ""),  # one is not enough, and nothing is taken
        ("0s.", "h.1", (ATTACK, UP), [1, 0], "h"),  # beside the stag in time, but it did not attack
        ("0.s", "h.1", (RIGHT, ATTACK), [0, 0], ""),
        ("h..", "s01", (ATTACK, ATTACK), [0, 0], ""),  # the corner above is not adjacent
        ("0h.", "1s.", (RIGHT, RIGHT), [0, 0], ""),  # prey blocks
        ("01h", "s..", (RIGHT, UP), [0, 0], ""),  # agents and walls block, at no cost
    ],
)
def test_attacks_on_a_staghunt(row, below, actions, rewards, falls):
    agents, things, state = drawn(DUEL, row, below)
    after, outcome = turn_of(DUEL, state, *actions)
    if ATTACK not in actions:
        assert [cell(p, 5) for p in after.places] == agents
    assert outcome.reward.tolist() == rewards
    assert [kind for kind, place in zip("hs", after.prey, strict=True) if place < 0] == sorted(
        falls
    )
    if "h" not in falls:
        assert cell(after.prey[0], 5) in things
    assert DUEL.counts(state, after)["stags"] == falls.count("s")


# Rows


@pytest.mark.parametrize("env", [TINY, DUEL], ids=["treasurehunt", "staghunt"])
def test_rows_of_many_envs_are_whole_episodes(env):
    num, spec = 4, spec_of(env)
    envs = VectorEnv(env, num)
    ponds = [HostPond(spec, 64, num) for _ in range(env.num_agents)]
    step, observe = jax.jit(envs.step), jax.jit(jax.vmap(env.observe, out_axes=1))
    state = jax.jit(envs.reset)(jax.random.key(0))
    first, border = int(Flag.FIRST), int(Flag.BORDER)
    for t in range(11):
        action = np.full((env.num_agents, num), 1 + t % 2, np.int32)
        final = observe(state.inner)  # before a border row resets it
        state, rows = step(state, action, jax.random.fold_in(jax.random.key(1), t))
        rows = jax.tree.map(np.asarray, rows)
        for agent, pond in enumerate(ponds):
            pond.add(jax.tree.map(lambda x, agent=agent: x[agent], rows))  # refuses a broken one
        at = t % (env.turns + 1)
        assert (rows.flags == (first if at == 0 else border if at == env.turns else 0)).all()
        assert (rows.truncated == (at == env.turns - 1)).all()
        assert not rows.terminated.any()
        np.testing.assert_array_equal(rows.obs, final)
        if at == env.turns:
            assert not rows.reward.any()
            assert not rows.action.any()
            assert (state.inner.turn == 0).all()
    assert (ponds[0].added == 11).all()


def test_an_env_says_what_it_is():
    for env in (*HUNTS.values(), *STAGS.values()):
        assert isinstance(env, Env)
        assert env.observation.shape == played(env)[1].shape[3:]
        assert (env.extras, env.frames_per_step) == ({}, 1)
    assert (Treasurehunt().name, Staghunt().name) == ("treasurehunt", "staghunt")
    assert Treasurehunt().observation.shape == (5, 5, 6)
    assert Staghunt().observation.shape == (5, 5, 5)
    small = Treasurehunt.small()
    assert (small.size, small.agents, small.turns, small.spawn) == (10, 5, 50, 0.02)
    assert small.items == ("gem",)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Treasurehunt(agents=362), r"agents = 362, but size 21 has 361 cells"),
        (lambda: Staghunt(size=4, hares=2), r"agents \+ hares \+ stags = 6, but size 4 has 4"),
        (lambda: Treasurehunt(size=2), "size must be a whole number of at least 3, got 2"),
        (lambda: Treasurehunt(agents=0), "agents must be a whole number of at least 1, got 0"),
        (lambda: Treasurehunt(turns=0), "turns must be .* at least 1"),
        (lambda: Treasurehunt(radius=1.5), "radius must be a whole number .* got 1.5"),
        (
            lambda: Treasurehunt(spawn=1.1),
            r"spawn is a probability and must lie in \[0, 1\], got 1.1",
        ),
        (lambda: Treasurehunt(spawn=float("nan")), "spawn is a probability"),
        (lambda: Treasurehunt(gem=float("inf")), "gem must be a finite number, got inf"),
        (lambda: Treasurehunt(items=()), "items must be some of gem, food, bone"),
        (lambda: Treasurehunt(items=("gem", "gem")), "each at most once"),
        (lambda: Treasurehunt(items=("gold",)), "items must be some of"),
        (lambda: Staghunt(respawn=-0.1), "respawn is a probability"),
        (lambda: Staghunt(hares=-1), "hares must be a whole number of at least 0"),
        (lambda: Staghunt(hunters=0), "hunters must be a whole number of at least 1"),
        (lambda: Staghunt(stag=float("nan")), "stag must be a finite number"),
        (lambda: GridGymnasium(TINY, render_mode="human"), "render_mode must be None or"),
    ],
)
def test_impossible_settings_are_refused(make, says):
    with pytest.raises(BadConfig, match=says):
        make()


# Scripts


def seen(env, row: str, below: str = "..."):
    return np.asarray(env.observe(drawn(env, row, below)[2]))


@pytest.mark.parametrize(
    ("env", "script", "row", "below", "actions"),
    [
        (TINY, "forager", "0.g", "..1", {RIGHT}),
        (TINY, "forager", "0bg", "..1", {DOWN}),  # around the bone
        (TINY, "forager", "f0g", "..1", {RIGHT}),  # the same way: the better one
        (TINY, "forager", "b0.", ".1.", {RIGHT}),  # neither bone nor wall nor agent
        (TINY, "forager", "0b.", "1..", {DOWN}),  # no way out: waiting costs nothing
        (DUEL, "hare", "0h.", "1.s", {ATTACK}),
        (DUEL, "hare", "0.h", "1.s", {RIGHT}),
        (DUEL, "stag", "0.h", "s1.", {ATTACK}),
        (DUEL, "stag", "0h.", "1.s", {RIGHT, DOWN}),  # blocked by hare and agent; waits
    ],
)
def test_scripts_do_what_they_say(env, script, row, below, actions):
    policy = env.references[script]
    chosen = {int(policy(seen(env, row, below), jax.random.key(k))[0]) for k in range(3)}
    assert chosen <= actions


def test_scripts_score_as_known():
    def score(env, script: str) -> float:
        def turn(state, key):
            one, two = jax.random.split(key)
            state, rows = envs.step(state, env.references[script](state.obs, one), two)
            return state, rows.reward

        envs = VectorEnv(env, 64)
        keys = jax.random.split(jax.random.key(2), env.turns)
        run = jax.jit(lambda key: jax.lax.scan(turn, envs.reset(key), keys)[1].sum(0).mean())
        return float(run(jax.random.key(1)))

    by_chance = played(Treasurehunt())[3].reward.sum(0).mean()
    assert score(Treasurehunt(), "forager") > 150 > 5 * by_chance
    assert 8.5 < score(Staghunt(), "hare") < 11
    assert 14 < score(Staghunt(), "stag") < 20


# Pictures and adapters


@pytest.mark.parametrize("env", [HUNTS["crowded"], STAGS["crowded"]], ids=["treasure", "stag"])
def test_pictures_show_every_kind_in_its_own_way(env):
    states, obs, *_ = played(env)
    state = jax.tree.map(lambda x: x[30, 0], states)
    image = env.render(state)
    assert (image.dtype, image.shape) == (np.uint8, (16 * env.size, 16 * env.size, 3))
    tiles = image.reshape(env.size, 16, env.size, 16, 3).swapaxes(1, 2)
    kinds = obs.shape[-1]
    board = state.board if isinstance(env, Treasurehunt) else np.asarray(env._board(state))
    looks = {
        k: {tiles[cell(p, env.size)].tobytes() for p in np.flatnonzero(board == k)}
        for k in range(kinds)
    }
    assert len(looks[grid.AGENT]) == min(env.agents, 5)  # colours
    assert all(len(looks[k]) <= 1 for k in looks if k != grid.AGENT)
    assert sum(map(len, looks.values())) == len(set().union(*looks.values()))


@pytest.mark.parametrize(
    "env", [TINY, DUEL, Treasurehunt(size=5, agents=1)], ids=["treasure", "stag", "one"]
)
def test_gymnasium_accepts_the_adapter(env):
    gymnasium.register("GridWorld-v0", entry_point=GridGymnasium, kwargs={"env": env})
    try:
        check_env(gymnasium.make("GridWorld-v0", render_mode="rgb_array").unwrapped)
    finally:
        gymnasium.registry.pop("GridWorld-v0")


def test_the_other_agents_follow_their_policy():
    env = Treasurehunt(size=5, spawn=0.0, turns=3)
    gym = GridGymnasium(env, others=lambda obs, key: jnp.full(obs.shape[:-3], LEFT))
    assert gym.render() is None
    with pytest.raises(ResetNeeded, match="call reset before step"):
        gym.step(0)
    gym.reset(seed=5)  # they start in different rows
    for turn in (1, 2, 3):
        obs, _, terminated, truncated, _ = gym.step(RIGHT)
        assert (terminated, truncated) == (False, turn == 3)
    assert gym.observation_space.contains(obs)
    # Each ran to its wall: two columns of the view are wall for agent 0, on the right.
    assert obs[:, 3:, grid.WALL].all()
    assert [int(place) % 5 for place in gym._game.state.places] == [3, 1]
    with pytest.raises(ResetNeeded, match="no episode"):
        gym.step(0)
    gym.reset()
    with pytest.raises(SpecMismatch, match="agent 0 must be an integer from 0 to 3, got 4"):
        gym.step(4)


def test_pettingzoo_accepts_the_adapter():
    pettingzoo = pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    for env in (TINY, DUEL):
        zoo = GridPettingZoo(env, render_mode="rgb_array")
        assert isinstance(zoo, GridPettingZoo)
        assert isinstance(zoo, pettingzoo.ParallelEnv)
        parallel_api_test(zoo, num_cycles=20)
        obs, _ = zoo.reset(seed=4)
        again, _ = zoo.reset(seed=4)
        assert all((obs[a] == again[a]).all() for a in zoo.possible_agents)
        assert zoo.render().shape == (80, 80, 3)
        with pytest.raises(SpecMismatch, match="one action for each"):
            zoo.step({"agent_0": 0})
        zoo.close()


def test_a_missing_pettingzoo_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    adapters._with_pettingzoo.cache_clear()
    with pytest.raises(BadConfig, match=r"pip install 'millpond\[pettingzoo\]'"):
        GridPettingZoo(TINY)
