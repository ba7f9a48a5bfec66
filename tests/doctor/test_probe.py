"""Checks of a probe on one healthy run: quiet as it is, and each fault in the code named."""

from __future__ import annotations

import pytest

from millpond.doctor import Probe
from millpond.doctor import sabotage_agent as agents
from millpond.doctor import sabotage_control as control
from millpond.doctor import sabotage_own as own
from millpond.doctor import sabotage_replay as replay
from millpond.doctor import sabotage_steps as steps
from millpond.doctor.acting_checks import acted_with, collapsed, evaluation
from millpond.doctor.draw_checks import draws
from millpond.doctor.exploration_checks import explored
from millpond.doctor.parameter_checks import dormant, moved, target_follows
from millpond.doctor.plants_modes import compiled_again
from millpond.doctor.plants_probe import FUSED, PQN, PRIORITISED, SAC
from millpond.doctor.priority_checks import priorities
from millpond.doctor.probe_checks import _rows, _world
from millpond.doctor.stored_row_checks import same_world, stacks_as_acted, training_and_evaluation
from millpond.doctor.update_checks import update_audit
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


@pytest.fixture(scope="module")
def prioritised(tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("probe") / "prioritised", PRIORITISED)
    train(run)
    return run


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    run = Run.create(tmp_path_factory.mktemp("probe") / "sac", SAC)
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
        ("sums_across_ends", "summed on across the end"),
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
        ("few_learned_from", "have no effect on the loss"),
        ("weights_decay", "weights decay"),
        ("rate_many_times", "applied 30 times over"),
        ("noise_in_steps", "something else: noise"),
        ("goals_bounded", "goals are bounded to"),
        ("one_goal_for_all", "has the same goal"),
        ("goals_not_held", "the gradient flows through the goal"),
        ("rows_mixed", "rows are mixed"),
        ("largest_of_the_batch", "bootstrap from one and the same value"),
        ("every_pair_of_rows", "the mean over all pairs"),
    ],
)
def test_a_fault_of_learning_is_named(run, name, said):
    with (getattr(agents, name, None) or getattr(steps, name))():
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("priorities_lost", "have the same priority"),
        ("priorities_inverted", "the wrong way round"),
        ("weights_inverted", "upside down"),
    ],
)
def test_a_fault_of_priorities_is_named(prioritised, tmp_path, name, said):
    assert priorities(Probe.of(prioritised)).state == "green"
    with getattr(replay, name)():
        run = prioritised
        if name != "weights_inverted":  # what is stored is wrong: its own run
            run = Run.create(tmp_path / "run", PRIORITISED)
            with compiled_again():
                train(run)
        verdict = priorities(Probe.of(run))
    assert verdict.state == "red"
    assert said in verdict.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("higher_critic", "the higher of the two critics"),
        ("no_future", "nothing is bootstrapped"),
        ("negated", "wrong sign"),
        ("entropy_costs", "times instead of once, with the wrong sign"),
        ("actor_downhill", "a small step of the actor raises their own loss"),
        ("still_targets", "moves the target network 0 of the way"),
    ],
)
def test_a_fault_of_an_actor_critic_is_named(sac, name, said):
    with getattr(control, name)():
        verdict = update_audit(Probe.of(sac))
    assert verdict.state == "red", verdict
    assert said in verdict.message


def test_an_actor_critic_is_quiet(sac):
    probe = Probe.of(sac)
    for verdict in (*(check(probe) for check in CHECKS), *_world(probe)):
        assert not verdict.fired, verdict
    assert {update_audit(probe).state, explored(probe).state, target_follows(probe).state} == {
        "green"
    }


def test_actions_that_do_not_reach_their_bounds_are_named(sac):
    with control.narrow_actions():
        verdict = explored(Probe.of(sac))
    assert verdict.state == "red"
    assert "reach 30%" in verdict.message


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("noisy_rewards", "env-rewards", "chance alone"),
        ("agents_move_each_other", "action-effect", "agents move each other"),
        ("one_view_for_all", "env-observations", "always see the same"),
        ("stands_still", "env-observations", "nothing that"),
    ],
)
def test_a_fault_of_an_env_is_named(run, name, check, said):
    with getattr(own, name)():
        probe = Probe.of(run)
        probe.saved.rings.clear()  # rows that were stored before the fault are another env's
        found = {one.name: one for one in _rows(probe)}
        found |= {one.name: one for one in _world(probe) if one.fired}
    assert found[check].fired, found
    assert said in found[check].message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first_policy_acts_for_all", "of them are those of policy 0"),
        ("one_env_explores", "15 of 16 envs never explore"),
    ],
)
def test_whose_actions_they_are_is_named(run, name, said):
    with getattr(agents, name)():
        verdict = explored(Probe.of(run))
    assert said in verdict.message


def test_stacks_that_reach_into_the_episode_before_are_named(run):
    with agents.stacks_never_cleared():
        assert stacks_as_acted(Probe.of(run)).state == "red"
