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
from millpond.envs import Env, VectorEnv, grid, spec_of
from millpond.envs.adapters import GridGymnasium, GridPettingZoo
from millpond.envs.staghunt import Staghunt, StagState
from millpond.envs.treasurehunt import Treasurehunt, TreasureState

UP, DOWN, LEFT, RIGHT, ATTACK = range(5)
# Crowded ones: most moves meet something, and boards fill up to the last cell.
HUNTS = {
    "default": Treasurehunt(),
    "small": Treasurehunt.small(),
    "crowded": Treasurehunt(size=5, agents=5, spawn=0.3, turns=60, radius=3, wall=-2.0),
}
STAGS = {
    "default": Staghunt(),
    "crowded": Staghunt(size=5, agents=3, hares=4, stags=2, respawn=0.5, turns=60, radius=1),
}
TINY = Treasurehunt(size=5, spawn=0.0, turns=3)
DUEL = Staghunt(size=5, hares=1, stags=1, respawn=0.0, turns=3)


@cache
def played(env: Env, num: int, seed: int = 1):
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

    first, saw, (states, obs, action, outcome) = jax.jit(run)(jax.random.key(seed))
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
    states, obs, actions, outcome = played(env, 6)
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
    states, obs, actions, outcome = played(env, 6)
    values, kinds = {"hare": env.hare, "stag": env.stag}, ["hare"] * env.hares
    kinds += ["stag"] * env.stags
    came = 0
    for i in range(6):
        at = lambda t, i=i: [cell(p, env.size) for p in states.prey[t, i]]
        agents = [cell(p, env.size) for p in states.places[0, i]]
        prey = [Prey(k, c) for k, c in zip(kinds, at(0), strict=True)]
        oracle = StagOracle(env.size, agents, prey)
        assert len({*agents, *at(0)}) == env.agents + len(kinds)
        for t in range(env.turns):
            for agent in range(env.agents):
                assert names(obs[t, i, agent], "stag") == oracle.view(agent, env.radius)
            rewards = oracle.play(actions[t, i].tolist(), values, env.hunters)
            assert outcome.reward[t, i].tolist() == rewards
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
    env, num = HUNTS["default"], 64
    board = played(env, num, 2)[0].board
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
    for env, num in ((STAGS["default"], 64), (STAGS["crowded"], 64)):
        prey = played(env, num, 2)[0].prey
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
    assert outcome.reward.tolist() == rewards
    assert [kind for kind, place in zip("hs", after.prey, strict=True) if place < 0] == sorted(
        falls
    )
    if "h" not in falls:
        assert cell(after.prey[0], 5) in things
