"""A mixture's agents played each by a worker: as one program would, and whole after losses."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from mix_runs import mixture

from millpond.cluster.ray import Lost
from millpond.engine.checkpoint import hash_of
from millpond.errors import BadConfig, RunFailed
from millpond.mixture.remote_agents import PolicySplit, RemoteAgents, RoundWorker

SETTINGS = mixture(members=1)  # two agents


@functools.cache
def worker_of(policy: int) -> RoundWorker:
    """Compiled once for all tests."""
    return RoundWorker(SETTINGS, policy)


class Here:
    """Workers in this process; `fail` says which calls lose their worker."""

    def __init__(self, fail=lambda number: False) -> None:
        self.fail, self.calls, self.ended = fail, 0, False

    def start(self, policy):
        return worker_of(policy)

    def round(self, worker, leaves, updates):
        self.calls += 1
        return self.calls, worker, leaves, updates

    def result(self, call):
        number, worker, leaves, updates = call
        if self.fail(number):
            raise Lost("killed")
        return worker.round(leaves, updates)

    def close(self):
        self.ended = True


def play(here: Here, rounds: int = 3):
    """Some rounds: the state, all sums, and the agents."""
    agents = RemoteAgents(SETTINGS, lambda: contextlib.closing(here))
    state, told = agents.begin(agents.init(), False), []
    for _ in range(rounds):
        state, sums = agents.round(state, 2)
        told.append(sums)
    agents.close()
    assert here.ended
    return state, told, agents


def test_every_agent_plays_learns_and_stores_for_itself():
    agents = RemoteAgents(SETTINGS, lambda: contextlib.closing(Here()))
    first = agents.init()
    state, told, _ = play(Here())
    steps = np.asarray(state.acting.tally.steps)
    assert (steps > 0).all()
    assert int(state.acting.turn) == 3 * 2 * SETTINGS.learns.turns
    assert (np.asarray(agents.pond.added(state.ponds)) == 3 * 2 * SETTINGS.learns.turns).all()
    before, after = (
        np.concatenate([np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(one)], 1)
        for one in (first.agent.params, state.agent.params)
    )
    assert (before != after).any(1).all(), "an agent did not learn"
    assert len({row.tobytes() for row in after}) == 2, "two agents are the same"
    assert all(np.asarray(sums.steps).shape == (2,) for sums in told)


def test_a_lost_worker_changes_nothing():
    whole, told, _ = play(Here())
    lossy, told_again, agents = play(Here(lambda number: number in (2, 4, 5)))
    assert agents.replaced == 3
    assert hash_of(lossy) == hash_of(whole)
    assert hash_of(told_again) == hash_of(told)


def test_a_cluster_that_loses_every_worker_stops_the_run_with_a_remedy():
    with pytest.raises(RunFailed, match=r"agent 0 lost 5 workers .*killed.*millpond resume"):
        play(Here(lambda number: True))


def test_parts_are_cut_where_the_shapes_differ_and_joined_again():
    whole = {"a": np.arange(24).reshape(2, 6, 2), "b": np.int32(7), "c": np.arange(6)}
    part = {"a": np.zeros((2, 2, 2)), "b": np.int32(0), "c": np.zeros(2)}
    parts = PolicySplit(whole, part, 3)
    each = [parts.split(whole, i) for i in range(3)]
    assert each[1][0].tolist() == whole["a"][:, 2:4].tolist()
    assert [one[1] for one in each] == [7, 7, 7]
    back = parts.join(each)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), back, whole))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "ray", "transfer": "live"}, "transfer is live"),
        ({"address": "auto"}, "address is a setting of mode ray, got mode fused"),
    ],
)
def test_what_cannot_be_spread_is_refused(changes, said):
    with pytest.raises(BadConfig, match=said):
        replace(SETTINGS, **changes)
