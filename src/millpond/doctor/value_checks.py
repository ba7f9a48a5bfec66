"""What values say of how they were learned: which equation they obey.

Values that were learned rightly are about `reward + gamma * value of what comes next`. Values that
were learned by another rule obey that other rule better. Nothing of the learner is needed for it:
the parameters and some rows tell, whatever the code was that made them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from ..rows import TERMINATED, TRUNCATED
from .play import Play
from .probe import Probe
from .verdict import Verdict, green, red, unknown

_MOST = 3_000  # transitions of each policy
_EARLY = 2_000  # updates
_SURE = 8.0


class _Fit(NamedTuple):
    """Transitions of one policy, and what its values say of them."""

    q: np.ndarray  # [rows, actions]
    action: np.ndarray
    reward: np.ndarray  # as the loss should see it
    raw: np.ndarray
    after: np.ndarray  # greedy value of what comes next
    over: np.ndarray  # terminated
    cut: np.ndarray  # truncated
    block: np.ndarray


def bellman(probe: Probe) -> Verdict:
    """Values against their own successors: rewards enter as they should, and so does the future."""
    name = "bellman-fit"
    if probe.saved.params is None:
        return unknown(name, probe.saved.why or "no checkpoint yet")
    if not probe.discrete or probe.agent.memory:
        return unknown(name, "only agents without memory that value actions can be asked so")
    if probe.updates < _EARLY or not _had_time(probe):
        return unknown(name, f"too early: {probe.updates:,} updates say little about values")
    stored = probe.saved.play is not None
    told: list[str] = []
    for policy in range(min(probe.settings.policies, 4)):
        fit = _stored(probe, policy) if stored else _played(probe, policy)
        if fit is None or len(fit.reward) < 500:
            return unknown(name, "too few rows")
        found = _judge(probe, policy, fit, name)
        if found.fired:
            return found
        told.append(found.message)
    return green(name, told[0] if told else "")


def _had_time(probe: Probe) -> bool:
    """Whether the future has had time to come into the values through the target network."""
    learning: Any = probe.settings.learning
    every, tau = getattr(learning, "target_every", 0), getattr(learning, "tau", None)
    if every:
        return probe.updates >= 20 * every
    return tau is None or probe.updates * tau >= 20


def _fit(probe: Probe, policy: int, play: Play, stacks: Any, keep: np.ndarray) -> _Fit | None:
    """Of rows bool[time - 1, streams] that are steps whose next row is there."""
    time, stream = np.nonzero(keep)
    if not len(time):
        return None
    some = np.random.default_rng(policy).permutation(len(time))[:_MOST]
    time, stream = time[some], stream[some]
    params = probe.policy(probe.saved.params, policy)
    here = jax.tree.map(lambda leaf: leaf[time, stream], stacks)
    next_ = jax.tree.map(lambda leaf: leaf[time + 1, stream], stacks)
    q, after = probe.values(params, here), probe.values(params, next_).max(1)
    window, scale = probe.settings.window, probe.settings.learns.reward_scale
    raw = play.reward[time, stream]
    clipped = np.clip(raw, -window.reward_clip, window.reward_clip) if window.reward_clip else raw
    byte = play.byte[time, stream]
    return _Fit(
        q.astype(np.float64), play.action[time, stream].astype(int), clipped * scale, raw,
        after.astype(np.float64), (byte & TERMINATED) != 0, (byte & TRUNCATED) != 0, stream,
    )  # fmt: skip


def _stored(probe: Probe, policy: int) -> _Fit | None:
    play = probe.saved.play
    assert play
    mine = np.zeros(play.byte.shape[1], bool)
    mine[play.of_policy(policy)] = True
    known = probe.stored_known
    keep = play.follows & known[:-1] & known[1:] & mine
    return _fit(probe, policy, play, probe.stored_stacks, keep)


def _played(probe: Probe, policy: int) -> _Fit | None:
    game = probe.game
    play = game.play
    mine = np.zeros(play.byte.shape[1], bool)
    mine[play.of_policy(policy)] = True
    flat = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]), game.stacks)
    return _fit(probe, policy, play, flat, play.follows & mine)


def _judge(probe: Probe, policy: int, fit: _Fit, name: str) -> Verdict:
    gamma = probe.settings.window.gamma
    q = fit.q[np.arange(len(fit.action)), fit.action]
    goal = fit.reward + gamma * ~fit.over * fit.after
    weights, errors = _regress(q, np.stack([fit.reward, ~fit.over * fit.after, np.ones(len(q))], 1))
    rewarded = int((fit.reward != np.median(fit.reward)).sum())
    numbers: dict[str, Any] = dict(policy=policy, rows=len(q), rewarded=rewarded)
    numbers |= dict(
        weight_of_reward=round(float(weights[0]), 3), its_error=round(float(errors[0]), 4)
    )
    numbers |= dict(weight_of_future=round(float(weights[1]), 3), gamma=gamma)
    if rewarded < 30:
        return green(name, "rewards are too rare to tell how they enter", **numbers)
    if weights[0] < -0.3 and weights[0] < -_SURE * errors[0]:
        return red(
            name,
            f"values fall where rewards rise (weight {weights[0]:.2f}, should be near 1)",
            "rewards enter with the wrong sign: look at the env, the rows and the target",
            **numbers,
        )
    if weights[0] > 2.5 and weights[0] > 2 + _SURE * errors[0]:
        return red(
            name,
            f"rewards enter values {weights[0]:.1f} times as large as the loss should see them",
            "reward_scale or reward_clip are not applied, or applied in two places",
            **numbers,
        )
    square = (q - goal) ** 2
    other = _other_action(fit, goal)
    if other is not None:
        wrong, ratio = other
        numbers |= dict(shift=wrong, ratio=round(ratio, 3))
        return red(
            name,
            f"the values of action a + {wrong} fit the rows of action a best: they are mixed up",
            "look at the action that the loss picks (chosen) and the one that is stored",
            **numbers,
        )
    learned = weights[0] > 0.3
    if learned and gamma >= 0.5 and _better((q - fit.reward) ** 2, square, fit.block, 0.4):
        ratio = float(((q - fit.reward) ** 2).mean() / square.mean())
        return red(
            name,
            f"values are the next reward alone (error {ratio:.0%} of that with a "
            f"future of {gamma:g})",
            "nothing is bootstrapped: look at discount and the target network in the goal",
            **numbers, ratio=round(ratio, 3),
        )  # fmt: skip
    if learned and weights[1] > 0.5:
        for rows, goals, what, remedy in (
            (fit.over, fit.reward + gamma * fit.after, "go on behind terminations",
             "set the discount to 0 where an episode terminated"),
            (fit.cut & ~fit.over, fit.reward, "stop at truncations",
             "bootstrap from the true final observation of a truncated episode"),
        ):  # fmt: skip
            if rows.sum() >= 100:
                alike = (q - goals)[rows] ** 2
                if _better(alike, square[rows], fit.block[rows], 0.4):
                    message = (
                        f"values {what} (error {alike.mean() / square[rows].mean():.0%} "
                        "of the right one)"
                    )
                    return red(name, message, remedy, **numbers)
    told = f"reward enters by {weights[0]:.2f}, the future by {weights[1]:.2f} (gamma {gamma:g})"
    return green(name, told, **numbers)


def _regress(goal: np.ndarray, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of least squares and their standard errors."""
    gram = design.T @ design + 1e-9 * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, design.T @ goal)
    noise = ((goal - design @ weights) ** 2).mean()
    return weights, np.sqrt(np.diag(np.linalg.inv(gram)) * noise)


def _better(one: np.ndarray, than: np.ndarray, block: np.ndarray, ratio: float) -> bool:
    """Whether errors are that much smaller, over streams too."""
    if one.mean() >= ratio * than.mean():
        return False
    each = np.bincount(block, than - one)[np.bincount(block) > 0]
    if len(each) < 4:
        return False
    return bool(each.mean() > 5 * each.std(ddof=1) / np.sqrt(len(each)))


def _other_action(fit: _Fit, goal: np.ndarray) -> tuple[int, float] | None:
    """The shift of actions whose values fit far better than those of the actions taken."""
    rows, actions = np.arange(len(fit.action)), fit.q.shape[1]
    own = (fit.q[rows, fit.action] - goal) ** 2
    for shift in range(1, actions):
        one = (fit.q[rows, (fit.action + shift) % actions] - goal) ** 2
        if _better(one, own, fit.block, 0.5):
            return shift, float(one.mean() / own.mean())
    return None
