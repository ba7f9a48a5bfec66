"""The T-maze against one in plain Python; what can be had in it with memory and without."""

from __future__ import annotations

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tiny_runs import settings

from millpond.envs import Env, GridGymnasium, TMaze, VectorEnv, make_env
from millpond.errors import BadConfig
from millpond.rows import BORDER, FIRST
from millpond.train import Referee

ENV = TMaze(shortest=1, longest=3, turns=6)
FORWARD, LEFT, RIGHT = 0, 1, 2


class Walk:
    """One episode, by the rules as they are written."""

    def __init__(self, env: TMaze, length: int, side: int) -> None:
        self.env, self.length, self.side = env, length, side
        self.place = self.turn = 0

    def sees(self) -> list[bool]:
        sign = self.turn == 0
        at_end = self.place == self.length
        return [sign and self.side == LEFT, sign and self.side == RIGHT, not at_end, at_end]

    def act(self, action: int) -> tuple[float, bool, bool]:
        self.turn += 1
        late = self.turn == self.env.turns
        if self.place == self.length:
            if action == FORWARD:
                return self.env.bump, False, late
            return (self.env.reward if action == self.side else 0.0), True, False
        if action == FORWARD:
            self.place += 1
            return 0.0, False, late
        return self.env.bump, False, late


def test_it_plays_by_its_rules():
    envs, number = VectorEnv(ENV, 64), 64
    state, step = jax.jit(envs.reset)(jax.random.key(0)), jax.jit(envs.step)
    rng, walks, seen = np.random.default_rng(0), {}, set()
    ends = {"right": 0, "wrong": 0, "late": 0}
    for turn in range(60):
        lengths, sides = np.asarray(state.inner.length), np.asarray(state.inner.side)
        for env in np.flatnonzero(np.asarray(state.flags) == FIRST):
            walks[env] = Walk(ENV, int(lengths[env]), int(sides[env]))
            seen.add((int(lengths[env]), int(sides[env])))
        before = np.asarray(state.flags)
        action = rng.choice(3, size=(1, number), p=(0.6, 0.2, 0.2)).astype(np.int32)
        state, rows = step(state, action, jax.random.key(turn))
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[0], rows)
        for env, walk in walks.items():
            assert rows.obs[env].tolist() == walk.sees()
            if before[env] == BORDER:
                continue
            reward, terminated, truncated = walk.act(int(action[0, env]))
            assert rows.reward[env] == np.float32(reward)
            assert (rows.terminated[env], rows.truncated[env]) == (terminated, truncated)
            ends["right"] += terminated and reward > 0
            ends["wrong"] += terminated and reward == 0
            ends["late"] += truncated
    assert seen == {(length, side) for length in (1, 2, 3) for side in (LEFT, RIGHT)}
    assert min(ends.values()) > 10, ends


def test_without_memory_half_is_the_best_and_with_it_all():
    of = settings("tmaze", ENV, stack=1, eval_turns=20)
    guessed = Referee(of, 1000).watch("guesser")
    assert set(np.unique(guessed.returns)) == {0.0, 1.0}
    assert abs(guessed.mean()[0] - 0.5) < 4 * 0.5 / np.sqrt(1000)
    assert (guessed.lengths <= ENV.longest + 1).all()
    game = GridGymnasium(ENV)
    for seed in range(8):
        obs, _ = game.reset(seed=seed)
        side, total, ended = LEFT if obs[0] else RIGHT, 0.0, False
        while not ended:
            obs, reward, ended, truncated, _ = game.step(side if obs[3] else FORWARD)
            assert not truncated
            total += float(reward)
        assert total == ENV.reward


def test_it_is_a_gymnasium_env_and_can_be_seen():
    assert isinstance(make_env("tmaze"), Env)
    gymnasium.register("TMaze-v0", lambda **options: GridGymnasium(ENV, **options))
    try:
        check_env(gymnasium.make("TMaze-v0", render_mode="rgb_array").unwrapped)
    finally:
        del gymnasium.registry["TMaze-v0"]
    state = ENV.reset(jax.random.key(0))
    start = ENV.render(state)
    assert start.shape == (112, 112, 3)
    assert (ENV.render(state._replace(place=1)) != start).any()
    assert (ENV.render(state._replace(side=LEFT + RIGHT - state.side)) != start).any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(shortest=0), "shortest must be a whole number of at least 1, got 0"),
        (dict(longest=0), "longest must be a whole number of at least 1, got 0"),
        (dict(turns=3), "turns must be more than longest, .* got 3 and 3"),
        (dict(reward=float("nan")), "reward must be a finite number"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, says):
    with pytest.raises(BadConfig, match=says):
        dataclasses.replace(ENV, **wrong)
