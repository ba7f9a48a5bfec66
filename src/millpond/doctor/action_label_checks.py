"""Whether the actions in stored rows do what the same actions do now."""

from __future__ import annotations

import numpy as np

from .play import Play
from .verdict import Verdict, green, red, unknown

_LEAST = 1_000  # rows to fit and to judge with
_MOST = 8_000
_WIDTH = 240  # features times actions, of a model
_SURE = 6.0  # standard errors over streams and stretches of time


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
