"""Whether rewards and observations belong to the action beside them, or to the one before.

Two linear models of what was seen and done compete on rows that neither was fitted to: one takes
the action of the same row, the other that of the row before. Pure functions of a `Play`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .play import Play
from .verdict import Verdict, green, red, unknown

_LEAST = 1_000  # rows to fit and to judge with
_MOST = 8_000
_FEATURES = 512  # of an observation, those that vary most
_WIDTH = 240  # features times actions, of a model
_FREE = 0.5  # share of the actions' variance that what is seen does not decide
_SURE = 6.0  # standard errors over streams and stretches of time


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


def late_reward(play: Play, found: Pairs | None) -> Verdict:
    """The reward of a row must be predicted better by that row than by the one before."""
    name = "reward-timing"
    if found is None or len(np.unique(found.block)) < 8:
        return unknown(name, f"too few rows of {play.source}, or actions are real vectors")
    goal, test = found.reward, ~found.fit
    total = float(((goal[test] - goal[found.fit].mean()) ** 2).sum())
    if total < 1e-9 or (goal != np.median(goal)).sum() < 50:
        return unknown(name, f"rewards of {play.source} hardly vary: nothing can be seen")
    own = telling(found, found.here, found.acted, goal)
    old = telling(found, found.before, found.acted_before, goal)
    same = errors(by_action(found.here[:, own], found.acted), goal, found.fit)
    past = errors(by_action(found.before[:, old], found.acted_before), goal, found.fit)
    gain, sure = gain_of(past, same, found.block[test], total)
    explained = 1 - past.sum() / total, 1 - same.sum() / total
    numbers = dict(by_row_before=round(explained[0], 3), by_own_row=round(explained[1], 3))
    numbers |= dict(rows=int(test.sum()), standard_errors=round(sure, 1))
    if gain > 0.15 and sure > _SURE and explained[1] < 0.5 * explained[0]:
        return red(
            name,
            f"rewards of {play.source} follow the row before ({explained[0]:.0%} explained, "
            f"{explained[1]:.0%} by their own): they are late by one",
            "store the reward that step(action) returned beside that action and its observation",
            **numbers,
        )
    return green(name, f"their own row explains {max(explained[1], 0):.0%}, the one before "
                 f"{max(explained[0], 0):.0%}", **numbers)  # fmt: skip


def freedom(found: Pairs, here: np.ndarray) -> float:
    """The share of the actions' variance that what is seen does not decide; 0: always greedy."""
    chosen = np.eye(int(found.acted.max()) + 1)[found.acted]
    total = ((chosen[~found.fit] - chosen[found.fit].mean(0)) ** 2).sum()
    return float(errors(here, chosen, found.fit).sum() / max(total, 1e-12))


def effect(play: Play, found: Pairs | None) -> Verdict:
    """What is seen next must depend on the action, and on that of this row rather than the last."""
    name = "action-effect"
    if found is None or len(np.unique(found.block)) < 8:
        return unknown(name, f"too few rows of {play.source}, or actions are real vectors")
    counts = np.bincount(found.acted)
    if (counts > 0.02 * len(found.acted)).sum() < 2:
        return unknown(name, f"{play.source} hardly tries more than one action: see acting")
    test = ~found.fit
    some = varied(found)
    here = found.here[:, some]
    goal = np.concatenate([found.after[:, some[:-1]], found.reward[:, None]], -1)
    total = float(((goal[test] - goal[found.fit].mean(0)) ** 2).sum())
    none = errors(here, goal, found.fit)
    same = errors(by_action(here, found.acted), goal, found.fit)
    past = errors(by_action(here, found.acted_before), goal, found.fit)
    block = found.block[test]
    gain, sure = gain_of(same, none, block, total)
    behind, as_sure = gain_of(past, same, block, total)
    late = errors(by_action(here, found.acted_after), goal, found.fit)
    ahead, so_sure = gain_of(late, np.minimum(none.mean(), same.mean()) + 0 * none, block, total)
    free = freedom(found, here)
    numbers = dict(gain=round(gain, 4), standard_errors=round(sure, 1))
    numbers |= dict(of_action_before=round(behind, 4), of_action_after=round(ahead, 4))
    numbers |= dict(free=round(free, 3))
    if behind > 0.02 and as_sure > _SURE:
        return red(
            name,
            f"what {play.source} saw next follows the action before: observations or actions "
            "are late by one",
            "observe after the step, and store each action beside what was seen when it was chosen",
            **numbers,
        )
    # Whoever acts greedily shows by the next action what is seen next, and by this one nothing.
    if ahead > 0.02 and so_sure > _SURE and gain < 0.2 * ahead and free > _FREE:
        return red(
            name,
            f"what {play.source} saw next follows the action of the row after: actions are "
            "stored one row late",
            "store each action beside what was seen when it was chosen",
            **numbers,
        )
    return green(name, f"the action explains {max(gain, 0):.1%} more of what comes next", **numbers)


def mislabelled(stored: Play, played: Play) -> Verdict:
    """Actions in stored rows must do what the same actions do in rows that were played now."""
    name = "action-labels"
    discrete = stored.action.ndim == 2 and stored.action.dtype.kind != "f"
    if not discrete or min(stored.steps, played.steps) < _LEAST:
        return unknown(name, "too few rows to compare, or actions are real vectors")
    spread = played.seen.std((0, 1))
    actions = int(max(stored.action.max(), played.action.max())) + 1
    count = max(4, _WIDTH // actions)
    wanted = np.argsort(-spread, kind="stable")[:count]
    wanted = wanted[spread[wanted] > 0]
    middle = played.seen.mean((0, 1))

    def design(play: Play) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        time, stream = np.nonzero(play.follows)
        some = np.random.default_rng(2).permutation(len(time))[:_MOST]
        time, stream = time[some], stream[some]
        scaled = (play.seen[..., wanted] - middle[wanted]) / np.maximum(spread[wanted], 1e-8)
        here = np.concatenate([scaled[time, stream], np.ones((len(time), 1))], -1)
        return here, np.concatenate([scaled[time + 1, stream]], -1), play.action[time, stream]

    here, after, acted = design(played)
    half = len(here) // 2

    def fitted(mine: np.ndarray) -> np.ndarray:
        x = here[:half][mine].astype(np.float64)
        gram = x.T @ x + 1e-4 * len(x) * np.eye(x.shape[1])
        return np.linalg.solve(gram, x.T @ after[:half][mine])

    counts = np.bincount(acted[:half], minlength=actions)
    models = {
        action: fitted(acted[:half] == action) for action in range(actions) if counts[action] >= 100
    }
    plain = fitted(np.ones(half, bool))
    here, after, acted = here[half:], after[half:], acted[half:]  # that no model was fitted to
    today = _worth(models, plain, here, after, acted)
    usual = {
        (action, other): float(((after - here @ weights)[acted == action] ** 2).sum(1).mean())
        for action in models
        for other, weights in models.items()
    }
    here, after, acted = design(stored)
    then = _worth(models, plain, here, after, acted)
    found_alike: list[str] = []
    judged = 0
    for action in models:
        mine = acted == action
        if mine.sum() < 100 or len(models) < 2:
            continue
        judged += 1
        each = {
            other: ((after[mine] - here[mine] @ weights) ** 2).sum(1)
            for other, weights in models.items()
        }
        best = min(each, key=lambda other: float(each[other].mean()))
        margin = each[action] - each[best]
        sure = margin.mean() / max(margin.std() / np.sqrt(len(margin)), 1e-12)
        # A policy of then may go where no action's model holds: then none says anything. Nor do
        # models of two actions that do the same.
        holds = each[best].mean() < 1.5 * usual[best, best]
        apart = usual[action, best] > 1.1 * usual[action, action]
        clear = sure > 8 and margin.mean() > 0.1 * each[action].mean()
        if best != action and holds and apart and clear:
            found_alike.append(f"{action} does what {best} does")
    if not judged:
        return unknown(name, "no action was taken often enough, then and now")
    if found_alike:
        return red(
            name,
            f"of the stored actions {', '.join(found_alike)} when played now",
            "store the action that was given to env.step; if the env changed since, "
            "begin a new run",
            actions=judged,
        )
    misleads = today[0] > 0.05 and then[0] < 0 and then[1] > _SURE
    if misleads and not _same_outcomes(stored, played):
        return red(
            name,
            f"to know the action helps to say what comes next in rows played now ({today[0]:.0%} "
            f"less error) and misleads in the stored ones ({then[0]:.0%})",
            "observation, action and env of a stored row do not belong together: look at what "
            "reorders envs or columns before rows are added",
            now=round(today[0], 3), stored=round(then[0], 3),
        )  # fmt: skip
    return green(name, f"{judged} actions do now what the stored ones did", actions=judged)


def _same_outcomes(stored: Play, played: Play) -> bool:
    """Whether the same observation and action lead to the same one then and now, where both met.

    A policy of then may have gone where a linear model of now does not hold, such as to a wall.
    """

    def outcomes(play: Play) -> dict[tuple[float, int], float]:
        time, stream = np.nonzero(play.follows)
        here, after = play.hashes[time, stream], play.hashes[time + 1, stream]
        keys = zip(here.tolist(), play.action[time, stream].tolist(), strict=True)
        return dict(zip(keys, after.tolist(), strict=True))

    now, then = outcomes(played), outcomes(stored)
    both = [key for key in then if key in now]
    return len(both) >= 20 and float(np.mean([then[key] == now[key] for key in both])) > 0.8


def _worth(
    models: dict[int, np.ndarray],
    plain: np.ndarray,
    here: np.ndarray,
    after: np.ndarray,
    acted: np.ndarray,
) -> tuple[float, float]:
    """By which share the action's own model has less error than one of all, and how surely."""
    without = ((after - here @ plain) ** 2).sum(1)
    error = without.copy()
    for action, weights in models.items():
        mine = acted == action
        error[mine] = ((after[mine] - here[mine] @ weights) ** 2).sum(1)
    gain = without - error
    spread = float(gain.std() / np.sqrt(max(1, len(gain))))
    return float(gain.sum() / max(without.sum(), 1e-12)), abs(float(gain.mean())) / max(
        spread, 1e-12
    )


def timing(play: Play) -> list[Verdict]:
    """Both checks of one player's rows."""
    found = pairs(play)
    return [late_reward(play, found), effect(play, found)]
