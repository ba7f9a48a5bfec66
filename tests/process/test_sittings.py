"""A run in several sittings: no actor draws the same chance twice, however often replaced."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import jax
import numpy as np
import pytest
from process_runs import ALONE, hooks, kill_actor, nothing_left_behind
from tiny_runs import dqn, settings

from millpond.engine.actor import make_actor
from millpond.engine.learner import Learner
from millpond.envs.gym import GymEnv
from millpond.process import team
from millpond.schedule import constant
from millpond.train.loop import open_loop

__all__ = ["hooks", "nothing_left_behind"]

POLE = dqn(settings("gym:CartPole-v1", GymEnv("CartPole-v1"), replay="host"), capacity=2_000)


def first_seen(loop) -> np.ndarray:
    """What the envs of a loop in this process show now."""
    return np.array(loop.envs.obs if hasattr(loop, "envs") else loop.crew.actors[0].vector.obs)


@pytest.mark.parametrize("mode", ["auto", "sequential"])
def test_envs_that_cannot_be_saved_begin_otherwise_in_every_sitting(tmp_path, mode):
    of = replace(POLE, mode=mode)
    seen, tree = [], None
    for _ in range(3):
        with open_loop(of, tmp_path) as loop:
            state = loop.init() if tree is None else loop.unpack(tree)
            seen.append(first_seen(loop))
            state, _ = loop.round(state, 2)
            tree = jax.tree.map(np.array, loop.pack(state))
    for one, two in combinations(seen, 2):
        assert (one != two).all()
    with open_loop(of, tmp_path) as loop:  # the same state once more: the same way on
        loop.unpack(tree)
        again = first_seen(loop)
    with open_loop(of, tmp_path) as loop:
        loop.unpack(tree)
        np.testing.assert_array_equal(first_seen(loop), again)


@pytest.mark.parametrize("world", ["device", "host"])
def test_no_chance_is_drawn_twice_over_incarnations_and_sittings(tmp_path, world):
    """Every action is random here, so equal actions would be equal chances."""
    of = POLE if world == "host" else settings(world=ALONE.world)
    of = dqn(replace(of, mode="sequential", envs=16), capacity=1_024, epsilon=constant(1.0))
    with Learner.opened(of, range(1), tmp_path) as learner:
        params, versions = (learner.params,), np.zeros(1, np.int64)
    acted = []

    def act(actor, cycles: int):
        for _ in range(cycles):
            acted.append(actor.cycle(params, versions).action.tobytes())

    act(make_actor(of, 0), 3)
    second = make_actor(of, 0, incarnation=1, cycle=3)
    act(second, 1)
    saved = second.export()
    resumed = make_actor(of, 0)
    resumed.restore(saved)
    act(resumed, 3)
    act(make_actor(of, 0, incarnation=1, cycle=7), 2)
    assert len(set(acted)) == len(acted) == 9


@pytest.mark.full  # by default actors are made without their processes, above
def test_a_replaced_actor_begins_otherwise_in_every_sitting(tmp_path):
    of, begun, tree = replace(ALONE, mode="lockstep"), [], None
    for _ in range(2):
        with team.open_loop(of, tmp_path) as loop:
            state = loop.init() if tree is None else loop.unpack(tree)
            state, _ = loop.round(state, 3)
            kill_actor(loop)  # in each sitting the first to be replaced
            tree = loop.pack(loop.init())
            begun.append(tree["actors"][0])
    assert [int(one["turn"]) for one in begun] == [6, 12]
    assert any((begun[0][name] != begun[1][name]).any() for name in begun[0] if "inner" in name)
