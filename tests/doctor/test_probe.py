"""Checks of a probe on one healthy run: quiet as it is, and each fault in the code named."""

from __future__ import annotations

import pytest

from millpond.doctor import Probe
from millpond.doctor import sabotage_agent as agents
from millpond.doctor import sabotage_replay as replay
from millpond.doctor.acting_say import acted_with, collapsed, evaluation, explored
from millpond.doctor.draws_say import draws
from millpond.doctor.parameters_say import dormant, moved, target_follows
from millpond.doctor.plants_probe import FUSED, PQN
from millpond.doctor.stored_say import same_world, stacks_as_acted, training_and_evaluation
from millpond.doctor.updates_say import update_audit
from millpond.train import Run, train

pytestmark = pytest.mark.full  # each fault compiles a program of its own


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("probe") / "run", FUSED)
    train(run)
    return run


@pytest.fixture(scope="module")
def pqn(tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("probe") / "pqn", PQN)
    train(run)
    return run


CHECKS = (moved, target_follows, update_audit, explored, acted_with, collapsed, dormant, evaluation)
CHECKS += (same_world, stacks_as_acted, training_and_evaluation)


def test_a_healthy_run_is_quiet(run, pqn):
    for one in (run, pqn):
        probe = Probe.of(one)
        for verdict in (*(check(probe) for check in CHECKS), *draws(probe)):
            assert not verdict.fired, verdict


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("same_next_obs", "next_obs in"),
        ("mixed_next_obs", "next_obs in"),
        ("reversed_stacks", "obs in"),
        ("mixed_actions", "action in"),
        ("mixed_rewards", "reward in"),
        ("no_discount", "discount in"),
        ("truncations_stop", "discount in"),
        ("same_draw", "are the same"),
        ("old_rows_only", "uneven over ages"),
        ("one_env_only", "uneven over envs"),
    ],
)
def test_a_fault_of_the_replay_is_named(run, name, said):
    with getattr(replay, name)():
        found = [verdict for verdict in draws(Probe.of(run)) if verdict.fired]
    assert said in " ".join(verdict.message for verdict in found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_bootstrap", "nothing is bootstrapped"),
        ("rewards_left_out", "rewards are left out"),
        ("rewards_negated", "wrong sign"),
        ("bootstrap_online", "online network is bootstrapped"),
        ("first_action_learned", "first action's value"),
        ("uphill", "raises the loss"),
        ("slow_target", "moves the target network"),
        ("still_target", "moves the target network"),
    ],
)
def test_a_fault_of_learning_is_named(run, name, said):
    with getattr(agents, name)():
        verdict = update_audit(Probe.of(run))
    assert verdict.state == "red"
    assert said in verdict.message


@pytest.mark.parametrize(
    ("name", "said"),
    [("goals_without_future", "nothing is bootstrapped"), ("goals_negated", "lambda-returns")],
)
def test_a_fault_of_a_rollouts_goals_is_named(pqn, name, said):
    with getattr(agents, name)():
        verdict = update_audit(Probe.of(pqn))
    assert verdict.state == "red"
    assert said in verdict.message


@pytest.mark.parametrize(
    "name", ["always_greedy", "explores_twice", "worst_action", "one_action", "biased_exploration"]
)
def test_a_fault_of_acting_is_named(run, name):
    with getattr(agents, name)():
        verdict = explored(Probe.of(run))
    assert verdict.state == "red", verdict


def test_stacks_that_reach_into_the_episode_before_are_named(run):
    with agents.stacks_never_cleared():
        assert stacks_as_acted(Probe.of(run)).state == "red"
