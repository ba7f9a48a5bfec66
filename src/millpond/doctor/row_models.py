"""Linear models of rows: what is seen and done explains rewards and what is seen next.

Models are compared on rows that none of them was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .play import Play

_LEAST = 1_000  # rows to fit and to judge with
_MOST = 8_000
_FEATURES = 512  # of an observation, those that vary most
_WIDTH = 240  # features times actions, of a model


@dataclass(frozen=True)
class Pairs:
    """Rows whose row before is of the same episode, split in two halves by time."""

    here: np.ndarray  # float64[rows, features] with a column of ones
    before: np.ndarray
    after: np.ndarray
    acted: np.ndarray  # int[rows]
    acted_before: np.ndarray
    acted_after: np.ndarray
    reward: np.ndarray
    block: np.ndarray  # int[rows]: stretch of time and stream, for errors
    fit: np.ndarray  # bool[rows]


def pairs(play: Play, like: Play | None = None) -> Pairs | None:
    """Rows to compare models on, or None if there are too few, or actions are real vectors.

    `like` another play: with the same features, in the same scale.
    """
    if play.action.ndim != 2 or play.action.dtype.kind == "f":
        return None
    inside = np.zeros(play.byte.shape, bool)
    inside[1:-1] = play.follows[:-1] & play.follows[1:] & play.step[1:-1]
    time, stream = np.nonzero(inside)
    if len(time) < _LEAST:
        return None
    if len(time) > _MOST:
        some = np.sort(np.random.default_rng(0).choice(len(time), _MOST, replace=False))
        time, stream = time[some], stream[some]
    model = like or play
    middle, spread = model.seen.mean((0, 1)), model.seen.std((0, 1))
    wanted = np.argsort(-spread, kind="stable")[:_FEATURES]
    wanted = wanted[spread[wanted] > 0]

    def at(shift: int) -> np.ndarray:
        found = play.seen[time + shift, stream][:, wanted]
        found = np.clip((found - middle[wanted]) / spread[wanted], -10, 10)
        return np.concatenate([found, np.ones((len(found), 1))], -1).astype(np.float64)

    length = max(2, len(play.byte) // 8)
    block = (time // length) * play.byte.shape[1] + stream
    fit = np.random.default_rng(1).random(int(block.max()) + 1)[block] < 0.5
    act = play.action.astype(np.int64)
    return Pairs(
        at(0), at(-1), at(1),
        act[time, stream], act[time - 1, stream], act[time + 1, stream],
        play.reward[time, stream], block, fit,
    )  # fmt: skip


def telling(found: Pairs, features: np.ndarray, acted: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The features that go with a goal most, whatever the action, among rows to fit."""
    actions = int(found.acted.max()) + 1
    count = max(4, _WIDTH // actions)
    scores = np.zeros(features.shape[1])
    for action in range(actions):
        mine = found.fit & (acted == action)
        if mine.sum() > 20:
            score = np.abs((goal[mine] - goal[mine].mean()) @ features[mine]) / np.sqrt(mine.sum())
            scores = np.maximum(scores, score)
    scores[-1] = np.inf  # the column of ones
    return np.argsort(-scores, kind="stable")[:count]


def varied(found: Pairs) -> np.ndarray:
    """The features that vary most, as many as a model holds: they come in that order."""
    count = max(4, _WIDTH // (int(found.acted.max()) + 1))
    last = found.here.shape[1] - 1
    return np.append(np.arange(min(count, last)), last)


def by_action(features: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Features for every action apart: [rows, features * actions]."""
    actions = int(action.max()) + 1
    wide = np.zeros((len(features), actions, features.shape[1]))
    wide[np.arange(len(features)), action] = features
    return wide.reshape(len(features), -1)


def errors(design: np.ndarray, goal: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Squared errors [rows that were not fitted] of ridge regression, summed over goals."""
    goal = goal.reshape(len(goal), -1)
    known = design[fit]
    gram = known.T @ known + 1e-4 * len(known) * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, known.T @ goal[fit])
    return ((goal[~fit] - design[~fit] @ weights) ** 2).sum(1)


def model_errors(model: Pairs, test: Pairs) -> tuple[float, float]:
    """Squared errors of rewards on `test`'s unfitted rows, by `model`'s; all variance."""
    actions = int(max(model.acted.max(), test.acted.max())) + 1
    some = telling(model, model.here, model.acted, model.reward)

    def design(rows: Pairs) -> np.ndarray:
        wide = np.zeros((len(rows.here), actions, len(some)))
        wide[np.arange(len(rows.here)), rows.acted] = rows.here[:, some]
        return wide.reshape(len(rows.here), -1)

    known = design(model)[model.fit]
    gram = known.T @ known + 1e-4 * len(known) * np.eye(known.shape[1])
    weights = np.linalg.solve(gram, known.T @ model.reward[model.fit])
    goal = test.reward[~test.fit]
    wrong = ((goal - design(test)[~test.fit] @ weights) ** 2).sum()
    return float(wrong), float(((goal - goal.mean()) ** 2).sum())


def gain_of(
    better: np.ndarray, than: np.ndarray, block: np.ndarray, total: float
) -> tuple[float, float]:
    """By how much of all variance one model is better, and in how many standard errors."""
    each = np.bincount(block, than - better) / max(total, 1e-12)
    each = each[np.bincount(block) > 0]
    error = each.std(ddof=1) * np.sqrt(len(each)) if len(each) > 3 else np.inf
    return float(each.sum()), float(each.sum() / max(error, 1e-12))
