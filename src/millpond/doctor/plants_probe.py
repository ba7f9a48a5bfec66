"""`PROBE_PLANTS`: bugs in envs, replay, learning and acting that counters do not show.

Each says which checks may name it. One that `outlives` the run is still in the code when the doctor
looks, as a bug in your own env or agent is; the others are gone by then, and only what the
run has left behind can tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from ..agents import DQNSettings, Network, PQNSettings
from ..agents.optimizer import Optimizer
from ..agents.sac import SACSettings
from ..envs.pendulum import Pendulum
from ..samplers import Prioritized
from ..schedule import constant, linear
from ..train import Settings
from . import (
    sabotage_agent,
    sabotage_control,
    sabotage_env,
    sabotage_own,
    sabotage_replay,
    sabotage_steps,
)
from .plants import HEALTHY, Plant

_DQN: Any = HEALTHY.learning
FUSED = dataclasses.replace(
    HEALTHY,
    learning=dataclasses.replace(_DQN, capacity=2_048, update_every=1),
    mode="fused",
    envs=16,
    steps=3_200,
    eval_every=3_200,
    checkpoint_every=1_600,
    resume_every=3_200,
    log_every=320,
)
PQN = dataclasses.replace(
    FUSED,
    agent="pqn",
    learning=PQNSettings(
        rollout=8,
        minibatches=4,
        epochs=2,
        gamma=0.8,
        reward_scale=0.1,
        epsilon=linear(1.0, 0.1, over=0.5),
        optimizer=Optimizer(rate=constant(1e-3)),
    ),
)


# What follows from many faults: a policy that learned nothing, or of which little is left.
_FOLLOWS = ("greedy-actions", "dormant-units")


def _with(settings: Settings = FUSED, **changes: Any) -> Settings:
    return dataclasses.replace(settings, learning=dataclasses.replace(settings.learning, **changes))


def _plant(
    name: str,
    *named_by: str,
    patch: Callable[[], Any] = contextlib.nullcontext,
    settings: Settings = FUSED,
    outlives: bool = True,
    may: tuple[str, ...] = (),
) -> Plant:
    """The first check must fire; the others named may."""
    fires, *others = named_by or ("",)
    others += [*may, *(_FOLLOWS if fires else ())]
    return Plant(name, fires, (*others,), settings, patch=patch, outlives=outlives, probed=True)


def _sampled(sampler: Any) -> Settings:
    """By your own sampler."""
    where = f"{type(sampler).__module__}:{type(sampler).__name__}"
    return dataclasses.replace(FUSED, sampler=where, sampling=sampler)


PRIORITISED = dataclasses.replace(FUSED, sampler="prioritized", sampling=Prioritized(beta=1.0))
SAC = dataclasses.replace(
    FUSED,
    env="pendulum",
    world=Pendulum(),
    agent="sac",
    learning=SACSettings(batch=64, min_fill=64, capacity=4_096, reward_scale=0.1),
    envs=8,
    steps=2_400,
    stack=1,
    eval_every=2_400,
    eval_episodes=16,
    eval_turns=200,
    checkpoint_every=1_200,
    resume_every=2_400,
)
MEMORY = dataclasses.replace(
    FUSED,
    learning=DQNSettings(batch=8, min_fill=256, capacity=4_096, length=8, burn_in=2),
    network=Network(width=32, memory=16),
    stack=1,
)

_E, _R, _A, _O = sabotage_env, sabotage_replay, sabotage_agent, sabotage_own
_S, _C = sabotage_steps, sabotage_control
PROBE_PLANTS = (
    _plant("healthy, fused"),
    _plant("healthy, fused PQN", settings=PQN),
    _plant("healthy, fused, prioritised", settings=PRIORITISED),
    _plant("healthy, fused SAC", settings=SAC),
    _plant("healthy, fused, with memory", settings=MEMORY),
    # environments
    _plant("constant rewards", "env-rewards", patch=_E.constant_reward),
    _plant("no rewards", "env-rewards", patch=_E.no_reward),
    _plant("constant rewards, PQN", "env-rewards", patch=_E.constant_reward, settings=PQN),
    _plant("late rewards", "reward-timing", patch=_E.late_rewards),
    _plant("late rewards, PQN", "reward-timing", patch=_E.late_rewards, settings=PQN),
    _plant("late observations", "action-effect", patch=_E.late_observations),
    _plant("actions without effect", "action-effect", patch=_E.actions_ignored),
    _plant("actions are twins", "action-effect", patch=_E.actions_are_twins),
    _plant("nothing is seen", "env-observations", "layers-move", patch=_E.nothing_seen),
    _plant("the clock terminates", "env-ends", patch=_E.clock_terminates),
    _plant("one key for all envs", "env-seeds", "env-copies", patch=_E.one_key_for_all),
    _plant("never reset", "env-ends", "env-fresh-start", "env-resets", "train-and-eval",
           patch=_E.never_reset),
    _plant("half reset", "env-fresh-start", "env-resets", patch=_E.half_reset),
    _plant("rewards negated in rows", "env-rows", "env-references", patch=_E.negated_rewards),
    _plant("rewards bounded in rows", "env-rows", patch=_E.bounded_rewards),
    _plant("ends swapped in rows", "env-rows", "env-ends", patch=_E.swapped_ends),
    _plant("another action in rows", "env-rows", "exploration", "acting-weights",
           patch=_E.another_action_stored),
    _plant("evaluation is easier", "train-and-eval", patch=_E.easier_evaluation),
    # replay
    _plant("next_obs is obs", "replay-transitions", patch=_R.same_next_obs),
    _plant("next_obs of another row", "replay-transitions", patch=_R.mixed_next_obs),
    _plant("stacks newest first", "replay-transitions", patch=_R.reversed_stacks),
    _plant("actions of other rows", "replay-transitions", patch=_R.mixed_actions),
    _plant("returns of other rows", "replay-transitions", patch=_R.mixed_rewards),
    _plant("a discount of 0", "replay-transitions", patch=_R.no_discount),
    _plant("truncations stop", "replay-transitions", patch=_R.truncations_stop),
    _plant("the same draw", "replay-draws", patch=_R.same_draw),
    _plant("old rows only", "replay-draws", patch=_R.old_rows_only),
    _plant("rows of few envs only", "replay-draws", patch=_R.one_env_only),
    _plant("stored rewards negated, gone by now", "stored-rows", "bellman-fit",
           patch=_R.negated_when_stored, outlives=False),
    _plant("stored actions shifted, gone by now", "action-labels", "stored-rows", "acting-weights",
           patch=_R.shifted_when_stored, outlives=False),
    _plant("stored rows are copies, gone by now", "env-copies", "acting-weights", "stored-rows",
           "action-labels", patch=_R.copied_when_stored, outlives=False),
    _plant("stored rewards lost, gone by now", "stored-rows", "env-rewards",
           patch=_R.not_rewarded_when_stored, outlives=False),
    # learning
    _plant("a still target", "target-network", "update-audit", patch=_A.still_target),
    _plant("a still target, gone by now", "target-network", patch=_A.still_target, outlives=False),
    _plant("the target is the online network", "target-network", "update-audit",
           patch=_A.target_is_online),
    _plant("a target ten times too slow", "update-audit", "target-network", patch=_A.slow_target),
    _plant("no bootstrap in the goal", "update-audit", "bellman-fit", patch=_A.no_bootstrap),
    _plant("rewards left out of the goal", "update-audit", patch=_A.rewards_left_out),
    _plant("rewards negated in the goal", "update-audit", "bellman-fit", patch=_A.rewards_negated),
    _plant("bootstrap from the online network", "update-audit", patch=_A.bootstrap_online),
    _plant("terminations ignored", "update-audit", patch=_A.terminations_ignored),
    _plant("the first action is learned", "update-audit", "layers-move", "bellman-fit",
           patch=_A.first_action_learned),
    _plant("steps go uphill", "update-audit", "update-norm", "process-health", "reward-scale",
           patch=_A.uphill),
    _plant("a frozen layer", "layers-move", "update-audit", patch=_A.frozen_layer),
    _plant("updates are lost", "layers-move", "update-norm", "update-audit", "target-network",
           patch=_A.updates_lost),
    _plant("dead units", "dormant-units", patch=_A.dead_units),
    _plant("goals without a future, PQN", "update-audit", "bellman-fit",
           patch=_A.goals_without_future, settings=PQN),
    _plant("goals negated, PQN", "update-audit", "bellman-fit",
           patch=_A.goals_negated, settings=PQN),
    # acting
    _plant("nobody explores", "exploration", "acting-weights", patch=_A.always_greedy),
    _plant("exploring twice as much", "exploration", patch=_A.explores_twice),
    _plant("the worst action, PQN", "exploration", "train-and-eval", patch=_A.worst_action,
           settings=PQN),
    _plant("always one action", "exploration", "env-rewards", "acting-weights",
           patch=_A.one_action),
    _plant("exploring is the first action", "exploration", patch=_A.biased_exploration),
    _plant("stacks are never cleared", "stacks-acted-on", patch=_A.stacks_never_cleared),
    _plant("first parameters act, gone by now", "acting-weights", patch=_A.first_parameters_act,
           settings=dataclasses.replace(FUSED, seed=_A.OLD_SEED), outlives=False),
    # settings
    _plant("a gamma of 0.1", "settings-fit", settings=_with(gamma=0.1, n_step=1)),
    _plant("n-step sums of 24 rows", "settings-fit", settings=_with(n_step=24)),
    _plant("a batch of 2", "settings-fit", settings=_with(batch=2)),
    _plant("random to the end", "settings-fit", settings=_with(epsilon=constant(1.0))),
    _plant("never exploring", "settings-fit", settings=_with(epsilon=constant(0.01))),
    _plant("a learning rate of 1e-9", "layers-move", "update-audit",
           settings=_with(optimizer=Optimizer(rate=constant(1e-9)))),
    # of your own: env, wrapper, agent
    _plant("rewards are sums so far", "env-rewards", "reward-timing", patch=_O.summed_rewards),
    _plant("agents get each other's rewards", "env-rewards", patch=_O.rewards_of_the_other),
    _plant("an episode ends with the next one's beginning", "env-rows", patch=_O.final_is_reset),
    _plant("rows hold what came next", "env-rows", "reward-timing", "action-effect",
           "env-fresh-start", "stacks-acted-on", patch=_O.rows_hold_what_came_next),
    _plant("evaluation numbers actions otherwise", "train-and-eval",
           patch=_O.evaluation_remaps_actions),
    _plant("evaluation sees a mirrored picture", "train-and-eval",
           patch=_O.evaluation_sees_mirrored),
    _plant("the future is discounted twice", "update-audit", patch=_O.gamma_twice),
    _plant("bootstrap from the worst action", "update-audit", patch=_O.worst_future),
    _plant("rewards normalised by their batch", "update-audit",
           patch=_O.rewards_normalised_by_batch),
    _plant("the next observation is not looked at", "update-audit", patch=_O.next_is_not_seen),
    _plant("the optimizer forgets", "update-audit", patch=_O.optimizer_forgets),
    _plant("steps are cut to nothing", "layers-move", "update-audit", patch=_O.tiny_steps),
    _plant("one discount more than rewards", "replay-transitions", patch=_O.one_discount_more),
    _plant("the same chance in every turn", "exploration", patch=_O.one_key_for_all_turns),
    _plant("all envs explore together", "exploration", patch=_O.envs_explore_together),
    _plant("the last action is never taken", "exploration", "train-and-eval",
           patch=_O.last_action_never),
    _plant("newest frame first, to act", "stacks-acted-on", patch=_O.acts_on_reversed_stacks),
    # thought up later, by somebody who knew the checks
    _plant("rewards drown in noise", "env-rewards", patch=_O.noisy_rewards),
    _plant("agents move each other", "action-effect", patch=_O.agents_move_each_other),
    _plant("one view for all agents", "env-observations", patch=_O.one_view_for_all),
    _plant("the world stands still", "env-observations", "action-effect", patch=_O.stands_still),
    _plant("part of what is seen is not stored", "stored-rows", "bellman-fit",
           patch=_R.part_of_what_is_seen_lost, outlives=False),
    _plant("another env's observations stored", "action-labels", "acting-weights", "stored-rows",
           patch=_R.seen_by_another_env, outlives=False),
    _plant("ends are not stored", "stored-rows", patch=_R.ends_lost_when_stored, outlives=False),
    _plant("stored rewards rounded", "stored-rows", patch=_R.rewards_rounded_when_stored,
           outlives=False),
    _plant("priorities are lost", "replay-priorities", patch=_R.priorities_lost,
           settings=PRIORITISED),
    _plant("priorities inverted", "replay-priorities", patch=_R.priorities_inverted,
           settings=PRIORITISED),
    _plant("weights inverted", "replay-priorities", patch=_R.weights_inverted,
           settings=PRIORITISED),
    _plant("few of a batch are learned from", "update-audit", patch=_S.few_learned_from),
    _plant("weights decay", "update-audit", "layers-move", patch=_S.weights_decay),
    _plant("the rate thirtyfold", "update-audit", "update-norm", "reward-scale", "layers-move",
           patch=_S.rate_many_times),
    _plant("steps are noise", "update-audit", "update-norm", "reward-scale",
           patch=_S.noise_in_steps),
    _plant("goals bounded", "update-audit", patch=_S.goals_bounded),
    _plant("one goal for all", "update-audit", "bellman-fit", patch=_S.one_goal_for_all),
    _plant("goals are not held", "update-audit", "update-norm", "reward-scale", "layers-move",
           patch=_S.goals_not_held),
    _plant("rows are mixed", "update-audit", patch=_S.rows_mixed),
    _plant("epsilon is 0", "settings-fit", "greedy-actions",
           settings=_with(epsilon=constant(0.0))),
    _plant("a memory never kept", "memory-acted-with", patch=_O.memory_never_kept,
           settings=MEMORY),
    _plant("a memory never emptied", "memory-acted-with", patch=_O.memory_never_emptied,
           settings=MEMORY),
    _plant("the first policy acts for all", "exploration", "acting-weights",
           patch=_A.first_policy_acts_for_all),
    _plant("one beginning for all policies", "layers-move", patch=_A.one_beginning_for_all),
    _plant("one env explores", "exploration", "acting-weights", patch=_A.one_env_explores),
    _plant("half of evaluation is idle", "train-and-eval", patch=_O.half_of_evaluation_idle),
    _plant("the higher critic", "update-audit", patch=_C.higher_critic, settings=SAC),
    _plant("no future, SAC", "update-audit", patch=_C.no_future, settings=SAC),
    _plant("rewards negated, SAC", "update-audit", patch=_C.negated, settings=SAC),
    _plant("entropy costs, SAC", "update-audit", "temperature", "critic-values",
           patch=_C.entropy_costs, settings=SAC),
    _plant("an actor that goes downhill", "update-audit", "policy-sees", "saturated-actions",
           patch=_C.actor_downhill, settings=SAC),
    _plant("still targets, SAC", "target-network", "update-audit", patch=_C.still_targets,
           settings=SAC),
    _plant("a third of the actions", "exploration", "env-observations", "update-audit",
           patch=_C.narrow_actions,
           settings=SAC),
    _plant("a ring of four turns", "settings-fit", settings=_with(capacity=64, min_fill=16)),
    _plant("an update in 50 turns", "settings-fit", settings=_with(update_every=50)),
    # of the same kind as faults that somebody else thought up
    _plant("rewards have the wrong sign", "env-references", patch=_E.rewards_flipped),
    _plant("paid for standing still", "env-dead-ends", "env-rewards", "env-observations",
           patch=_E.paid_for_standing_still),
    _plant("tiny observations", "env-observations", patch=_E.seen_in_tiny_numbers, settings=SAC),
    _plant("one number in millions", "env-observations", "policy-sees", "saturated-actions",
           "update-audit", "critic-values", patch=_E.one_number_in_millions, settings=SAC),
    _plant("a number is masked", "env-observations", patch=_E.a_number_is_masked, settings=SAC),
    _plant("half of the range", "action-range", patch=_E.half_of_the_range, settings=SAC),
    _plant("no correction for tanh", "update-audit", patch=_C.no_correction_for_tanh,
           settings=SAC),
    _plant("the temperature goes the wrong way", "update-audit", "temperature",
           patch=_C.temperature_the_wrong_way, settings=SAC),
    _plant("critics on raw actions", "update-audit", patch=_C.critics_on_raw_actions,
           settings=SAC),
    _plant("a policy without noise", "update-audit", patch=_C.never_noisy, settings=SAC),
    _plant("rewards drown in entropy", "update-audit", settings=_with(SAC, reward_scale=1e-5)),
    _plant("the largest value of the batch", "update-audit", patch=_S.largest_of_the_batch),
    _plant("every pair of rows", "update-audit", patch=_S.every_pair_of_rows),
    _plant("copied the wrong way", "update-audit", "target-network", "layers-move",
           "acting-weights",
           patch=_S.copied_the_wrong_way, settings=_with(target_every=16)),
    _plant("sums across ends", "replay-transitions", patch=_R.sums_across_ends,
           settings=_with(n_step=4)),
    _plant("the oldest rows, by your own sampler", "replay-draws",
           settings=_sampled(_R.OldestTwentieth())),
    _plant("one env, by your own sampler", "replay-draws",
           settings=_sampled(_R.FirstEnvOnly())),
    _plant("one row, by your own sampler", "replay-draws",
           settings=_sampled(_R.OneRowPerBatch())),
    _plant("the last choice never", "exploration", patch=_A.last_choice_never),
    _plant("evaluation in another scale", "train-and-eval",
           patch=_A.evaluated_in_another_scale),
    _plant("returns across ends, PQN", "update-audit", patch=_A.returns_across_ends, settings=PQN),
    _plant("a learning rate of 1", "settings-fit", "update-norm", "layers-move", "reward-scale",
           "update-audit", "acting-weights", "bellman-fit",
           settings=_with(optimizer=Optimizer(rate=constant(1.0)))),
    _plant("learning begins late", "replay-fill", settings=_with(min_fill=2_000)),
    _plant("gradients cut to nothing", "layers-move",
           settings=_with(optimizer=Optimizer("sgd", rate=constant(1e-3), clip=1e-4))),
)  # fmt: skip
