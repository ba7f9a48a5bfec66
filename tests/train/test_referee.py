"""The referee: envs whose returns are known give exactly these, by every kind of player."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from tiny_runs import Arms, HostArms, settings

from millpond.engine.make_agent import make_agent
from millpond.train import Referee, Scores
from millpond.train.film import play

ARMS = Arms(pay=(0.25, 1.0, -0.5), agents=2, turns=3)
OF = settings("arms", ARMS, members=2, stack=1)
EPISODES = 5


def always(of, arms):
    """Parameters [policies] under which policy i always pulls arms[i]."""
    keys = jax.random.split(jax.random.key(0), of.policies)
    shapes = jax.eval_shape(jax.vmap(make_agent(of).init), keys).params
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    wanted = np.eye(of.world.num_actions, dtype=np.float32)[list(arms)]
    biases = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if leaf.shape == wanted.shape and "bias" in jax.tree_util.keystr(path)
    ]
    assert len(biases) == 1
    return jax.tree.map(lambda leaf: wanted if leaf is biases[0] else leaf, params)


def same(one: Scores, other: Scores) -> None:
    np.testing.assert_array_equal(one.returns, other.returns)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    assert one.unfinished == other.unfinished


@pytest.mark.parametrize("world", [ARMS, HostArms(ARMS)], ids=["device", "host"])
def test_greedy_returns_are_exact_for_every_policy(world):
    """Policy = member * agents + agent; the second agent earns twice as much."""
    of = settings("arms", world, members=2, stack=1)
    referee, arms = Referee(of, EPISODES), (1, 0, 2, 1)
    scores = referee.play(always(of, arms))
    expected = [3 * ARMS.pay[arm] * (1, 2)[policy % 2] for policy, arm in enumerate(arms)]
    np.testing.assert_array_equal(scores.returns, np.repeat([expected], EPISODES, 0).T)
    np.testing.assert_array_equal(scores.lengths, np.full((4, EPISODES), 3))
    assert scores.unfinished == 0
    assert type(scores.unfinished) is int
    np.testing.assert_array_equal(scores.mean(), np.float32(expected))
    np.testing.assert_array_equal(scores.error(), np.zeros(4))
    same(referee.play(always(of, arms)), scores)
    assert referee.play(always(of, (0, 0, 0, 0))).returns.max() == 1.5


@pytest.mark.parametrize("world", [ARMS, HostArms(ARMS)], ids=["device", "host"])
def test_episodes_that_are_too_long_are_counted(world):
    of = settings("arms", world, members=2, stack=1, eval_turns=2)
    scores = Referee(of, EPISODES).watch("best")
    assert scores.unfinished == 4 * EPISODES
    np.testing.assert_array_equal(scores.returns[:, 0], np.float32([-1, -2, -1, -2]))
    np.testing.assert_array_equal(scores.lengths, np.full((4, EPISODES), 2))


def test_references_play_in_every_agents_place():
    referee = Referee(OF, EPISODES)
    best = referee.watch("best")
    np.testing.assert_array_equal(best.returns[:, 0], np.float32([-1.5, -3, -1.5, -3]))
    chance = referee.watch("random")
    same(referee.watch("random"), chance)
    possible = {a + b + c for a in ARMS.pay for b in ARMS.pay for c in ARMS.pay}
    for policy in range(4):
        assert set((chance.returns[policy] / (1, 2)[policy % 2]).tolist()) <= possible
    assert len(np.unique(chance.returns)) > 2
    with pytest.raises(KeyError, match="arms has no reference 'forager'; it has random, best"):
        referee.watch("forager")


def test_uneven_episodes_count_once_each():
    """One episode per env and not the first ones to end, so short ones do not count more often."""
    world = dataclasses.replace(ARMS, turns=6, uneven=True)
    of = settings("arms", world, stack=1)
    scores = Referee(of, 64).play(always(of, (1, 1)))
    lengths = scores.lengths[0]
    assert set(lengths) == {1, 2, 3, 4, 5, 6}
    np.testing.assert_array_equal(scores.lengths[1], lengths)
    np.testing.assert_array_equal(scores.returns, [lengths, 2 * lengths])
    error = scores.error()
    assert error[0] == pytest.approx(lengths.std(ddof=1) / 8)
    other = Referee(dataclasses.replace(of, seed=5), 64).play(always(of, (1, 1)))
    same(other, scores)
    host = Referee(settings("arms", HostArms(world), stack=1), 64).play(always(of, (1, 1)))
    assert set(host.lengths[0]) == {1, 2, 3, 4, 5, 6}
    np.testing.assert_array_equal(host.returns, [host.lengths[0], 2 * host.lengths[0]])
    both = np.hypot(error[0], host.error()[0])
    assert abs(host.mean()[0] - scores.mean()[0]) < 5 * both


@dataclass(frozen=True)
class CountedArms(Arms):
    """Counts turns, and twice as many halves of them."""

    def counts(self, before, after):
        turns = after.turn - before.turn
        return {"turns": turns, "halves": 2 * turns}


def test_events_are_counted_until_each_episode_ends():
    """Past its end an env begins another episode, while others still play; that counts no more."""
    of = settings("arms", CountedArms(agents=2, turns=6, uneven=True), members=2, stack=1)
    scores = Referee(of, 64).watch("best")
    assert len(np.unique(scores.lengths)) == 6
    np.testing.assert_array_equal(scores.counts["turns"], scores.lengths[::2])
    np.testing.assert_array_equal(scores.counts["halves"], 2 * scores.lengths[::2])
    assert scores.events()["turns"] == pytest.approx(scores.lengths[::2].mean(1).tolist())
    assert Referee(OF, EPISODES).watch("best").counts == {}


@dataclass(frozen=True)
class FilmArms(HostArms):
    """Can be rendered only if it was built for that, as Gymnasium's envs."""

    film: bool = False

    def vector(self, num_envs: int, seed: int):
        assert self.film
        return super().vector(num_envs, seed)


def test_a_film_shows_every_turn_of_one_episode():
    of = settings("arms", FilmArms(ARMS), members=2, stack=1)
    pictures = play(of, always(of, (1, 0, 2, 1)), turns=10)
    assert [picture.max() for picture in pictures] == [0, 1, 2, 3]
    assert len(play(of, always(of, (1, 0, 2, 1)), turns=1)) == 2
