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

from ..agents import PQNSettings
from ..agents.optimizer import Optimizer
from ..schedule import constant, linear
from ..train import Settings
from . import sabotage_agent, sabotage_env, sabotage_replay
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


_E, _R, _A = sabotage_env, sabotage_replay, sabotage_agent
PROBE_PLANTS = (
    _plant("healthy, fused"),
    _plant("healthy, fused PQN", settings=PQN),
    # environments
    _plant("constant rewards", "env-rewards", patch=_E.constant_reward),
    _plant("no rewards", "env-rewards", patch=_E.no_reward),
    _plant("constant rewards, PQN", "env-rewards", patch=_E.constant_reward, settings=PQN),
    _plant("late rewards", "reward-timing", patch=_E.late_rewards),
    _plant("late rewards, PQN", "reward-timing", patch=_E.late_rewards, settings=PQN),
    _plant("late observations", "action-effect", patch=_E.late_observations),
    _plant("actions without effect", "action-effect", patch=_E.actions_ignored),
    _plant("nothing is seen", "env-observations", "layers-move", patch=_E.nothing_seen),
    _plant("the clock terminates", "env-ends", patch=_E.clock_terminates),
    _plant("one key for all envs", "env-seeds", "env-copies", patch=_E.one_key_for_all),
    _plant("never reset", "env-ends", "env-fresh-start", "env-resets", patch=_E.never_reset),
    _plant("half reset", "env-fresh-start", "env-resets", patch=_E.half_reset),
    _plant("rewards negated in rows", "env-rows", patch=_E.negated_rewards),
    _plant("rewards bounded in rows", "env-rows", patch=_E.bounded_rewards),
    _plant("ends swapped in rows", "env-rows", "env-ends", patch=_E.swapped_ends),
    _plant("another action in rows", "env-rows", "exploration", patch=_E.another_action_stored),
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
)  # fmt: skip
