"""What is observed in sizes that a network learns badly from, and final observations."""

from __future__ import annotations

import numpy as np
import pytest

from millpond import Field, Flag, Rows, Spec, next_flags
from millpond.doctor.env_checks import shared_chance
from millpond.doctor.observation_checks import final_observations, observations
from millpond.doctor.play import Play
from millpond.doctor.reward_checks import rewards

NUMBERS, ENVS, TURNS = 4, 8, 200
SPEC = Spec(obs=Field("float32", (NUMBERS,)), action=Field("int32", (), 0, 1))


def drift(scale=1.0, reset_too_early: bool = False, clock: int = 10, seed: int = 0) -> Play:
    """Numbers that begin near 0 and drift away; every reward is 1, and the clock ends episodes."""
    rng = np.random.default_rng(seed)
    flags, age = np.full(ENVS, Flag.FIRST, np.uint8), np.zeros(ENVS, int)
    place = rng.uniform(-0.05, 0.05, (ENVS, NUMBERS))
    way = rng.choice([-1.0, 1.0], (ENVS, NUMBERS))
    taken = []
    for _ in range(TURNS):
        border = (flags & Flag.BORDER) != 0
        fresh = rng.uniform(-0.05, 0.05, (ENVS, NUMBERS))
        seen = np.where(border[:, None] & reset_too_early, fresh, place)
        age = np.where(border, 0, age + 1)
        cut, over = (age >= clock) & ~border, np.zeros(ENVS, bool)
        reward = np.where(border, 0, 1).astype(np.float32)
        action = np.zeros(ENVS, np.int32)
        taken.append(Rows((seen * scale).astype(np.float32), action, reward, over, cut, flags))
        place = np.where(border[:, None], fresh, place + way * rng.uniform(0.1, 0.2, way.shape))
        flags = next_flags(flags, over, cut)
    rows = Rows(*(np.stack(column) for column in list(zip(*taken, strict=True))[:6]))
    return Play.of(SPEC, rows, "a drifter")


@pytest.mark.parametrize("seed", range(5))
def test_numbers_of_about_one_are_well(seed):
    found = observations(drift(seed=seed))
    assert found.state == "green", found
    assert final_observations(drift(seed=seed)).state == "green"


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1e-5, "can hardly tell states apart"),
        (np.array([1, 1, 1, 1e6]), "number 3 of an observation goes up to"),
        (np.array([1, 0, 1, 1]), "1 of the 4 numbers of an observation never change (number 1"),
    ],
)
def test_sizes_that_a_network_learns_badly_from_are_named(scale, said):
    found = observations(drift(scale))
    assert found.state == "yellow"
    assert said in found.message


def test_a_final_observation_of_the_next_episode_is_named():
    found = final_observations(drift(reset_too_early=True))
    assert found.state == "red"
    assert "they belong to the next episode" in found.message


def test_a_constant_reward_is_the_task_if_others_have_seen_episodes_terminate():
    always_cut = drift()
    assert rewards(always_cut).fired
    assert rewards(always_cut, lasts=True).state == "green"


@pytest.mark.parametrize(
    ("first", "state"), [([0.0137023, -0.0230217], "yellow"), ([0, 0.5], "green")]
)
def test_resets_that_ignore_their_seed_are_told_from_a_fixed_beginning(first, state):
    begun = np.tile(np.float32(first), (16, 1, 1))
    game = drift()
    game.first[0, :] = True
    assert shared_chance(game, begun).state == state
