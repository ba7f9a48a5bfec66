"""The goals of an update against those worked out here, and which known mistake explains them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..agents import AgentState, Rollout
from .probe import Probe
from .verdict import Verdict, red


def wrong_errors(
    probe: Probe, state: AgentState, batch: Any, found: np.ndarray, name: str
) -> Verdict | None:
    """Temporal-difference errors against those worked out here, and which other rule they fit."""
    settings: Any = probe.settings.learning
    mask = np.asarray(batch.mask)
    rows, action = np.arange(len(mask)), np.asarray(batch.action)
    here = probe.values(state.params, batch.obs)
    online, target = (
        probe.values(state.params, batch.next_obs),
        probe.values(state.target, batch.next_obs),
    )
    now = probe.values(state.target, batch.obs)
    reward, discount = np.asarray(batch.reward), np.asarray(batch.discount)
    scaled = reward * settings.reward_scale
    q = here[rows, action]
    double, single = target[rows, online.argmax(1)], target.max(1)
    right = scaled + discount * (double if settings.double else single)
    gamma = probe.settings.window.gamma ** np.asarray(batch.steps)
    actions = here.shape[1]
    others = {
        f"the value of the action {shift} before the one taken is learned": (
            here[rows, (action - shift) % actions], right)
        for shift in range(1, min(actions, 9))
    }  # fmt: skip
    rules = others | {
        "nothing is bootstrapped": (q, scaled),
        "the future is not discounted": (q, scaled + (discount > 0) * double),
        "the value of the action taken before is bootstrapped from, not of the best one next": (
            q, scaled + discount * target[rows, action]),
        "the mean value of all actions is bootstrapped from": (
            q, scaled + discount * target.mean(1)),
        "the online network is bootstrapped from, not the target": (
            q, scaled + discount * online.max(1)),
        "the rule of double learning is the other one": (
            q, scaled + discount * (single if settings.double else double)),
        "terminations do not stop the bootstrap": (q, scaled + gamma * double),
        "rewards are not scaled": (q, reward + discount * double),
        "rewards are left out": (q, discount * double),
        "rewards have the wrong sign": (q, -scaled + discount * double),
        "the value of another action is learned": (here.max(1), right),
        "the first action's value is learned whatever was done": (here[:, 0], right),
        "the future is discounted twice": (q, scaled + discount * gamma * double),
        "the worst action's value is bootstrapped from": (q, scaled + discount * target.min(1)),
        "the value of the present is bootstrapped from, not of what comes next": (
            q, scaled + discount * now[rows, here.argmax(1)]),
        "rewards are normalised by their batch": (
            q, (scaled - scaled.mean()) / (scaled.std() + 1e-6) + discount * double),
        "rewards are clipped to -1 and 1": (q, np.clip(scaled, -1, 1) + discount * double),
    }  # fmt: skip
    wrong = _off(np.abs(q - right), found, mask)
    numbers: dict[str, Any] = dict(transitions=int(mask.sum()), wrong=round(wrong, 4))
    flows = _flows(probe, state, batch)
    if wrong < 0.02:
        if not flows:
            return None
        remedy = "hold the goal fixed: jax.lax.stop_gradient(goal)"
        return red(name, "the gradient flows through the goal", remedy, **numbers)
    fits = {what: _off(np.abs(a - b), found, mask) for what, (a, b) in rules.items()}
    best = min(fits, key=lambda what: fits[what])
    numbers |= dict(explained=fits[best] < 0.02)
    cause = best if fits[best] < 0.02 else _in_parts(probe, state, batch, scaled, discount * double)
    cause += "; the gradient flows through the goal, too" if flows else ""
    message = f"{wrong:.0%} of the update's errors are not reward + discount * value - q: {cause}"
    return red(name, message, "look at the goal in the agent's update (td_target)", **numbers)


def _flows(probe: Probe, state: AgentState, batch: Any) -> bool:
    """Whether the goals that errors are taken to change with the parameters that are trained."""
    now = {name: value[0] for name, value in probe.now.items()}
    loss = probe.agent.loss(state, batch, now)[0]

    def goals(params: Any) -> Any:
        q, error = loss(params)[1]
        return ((q - error) * jax.random.normal(jax.random.key(4), q.shape)).sum()

    slope = jax.jit(jax.grad(goals))(state.params)
    steep = max(float(np.abs(np.asarray(leaf)).max()) for leaf in jax.tree.leaves(slope))
    return steep > 1e-4


def _in_parts(
    probe: Probe, state: AgentState, batch: Any, reward: np.ndarray, future: np.ndarray
) -> str:
    """What a goal that is no known mistake is made of, by least squares."""
    now = {name: value[0] for name, value in probe.now.items()}
    q, error = jax.jit(lambda one, rows: probe.agent.loss(one, rows, now)[0](one.params)[1])(
        state, batch
    )
    mask = np.asarray(batch.mask)
    goal = (np.asarray(q, np.float64) - np.asarray(error))[mask]
    right = (reward + future)[mask]
    if _off(right, goal, np.ones(len(goal), bool)) < 0.02:
        return "the goals are right, but the values compared with them are not those of the actions"
    low, high = float(goal.min()), float(goal.max())
    if high - low < 1e-3 * np.ptp(right):
        return f"every transition of the batch has the same goal, {low:.3g}"
    if _off(np.clip(right, low, high), goal, np.ones(len(goal), bool)) < 0.02:
        return f"goals are bounded to {low:.3g} and {high:.3g}"
    design = np.stack([reward, future, np.ones(len(reward))], 1)[mask].astype(np.float64)
    weights = np.linalg.lstsq(design, goal, rcond=None)[0]
    left = float(
        ((goal - design @ weights) ** 2).sum() / max(((goal - goal.mean()) ** 2).sum(), 1e-12)
    )
    return (
        f"the goal is about {weights[0]:.2f} times the reward and {weights[1]:.2f} times the "
        f"discounted value of what comes next, {weights[2]:+.2g} (1, 1 and 0 are right); "
        f"{left:.0%} of it is something else"
    )


def wrong_goals(probe: Probe, rollout: Rollout, worth: np.ndarray, name: str) -> Verdict | None:
    """Lambda-returns worked out here, from the last row backwards."""
    settings: Any = probe.settings.learning
    found = np.asarray(probe.agent.goals(rollout))
    reward = np.asarray(rollout.reward, np.float64)
    if settings.reward_clip:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    over, cut = np.asarray(rollout.terminated), np.asarray(rollout.truncated)
    step = (np.asarray(rollout.flags) & 2) == 0

    def returns(scale: float = settings.reward_scale, gamma: float = settings.gamma,
                stop: bool = True, lam: float = settings.lam,
                cuts: bool = True) -> np.ndarray:  # fmt: skip
        goal, later = np.zeros(reward.shape), worth[-1].astype(np.float64)
        for time in range(len(reward) - 1, -1, -1):
            ahead = worth[time + 1]
            ends = cuts & (over[time] | cut[time])
            mixed = np.where(ends, ahead, (1 - lam) * ahead + lam * later)
            later = reward[time] * scale + gamma * np.where(over[time] & stop, 0, mixed)
            goal[time] = later
        return goal

    rules = {
        "nothing is bootstrapped": returns(gamma=0.0),
        "terminations do not stop the bootstrap": returns(stop=False),
        "returns run on across the ends of episodes, into the next one": returns(
            stop=False, cuts=False
        ),
        "returns run on across truncations, into the next episode": returns(cuts=False),
        "rewards are not scaled": returns(1.0),
        "rewards are left out": returns(0.0),
        "rewards have the wrong sign": returns(-settings.reward_scale),
        "lambda is 0": returns(lam=0.0),
        "lambda is 1": returns(lam=1.0),
    }
    wrong = _off(returns(), found, step)
    if wrong < 0.02:
        return None
    fits = {what: _off(goal, found, step) for what, goal in rules.items()}
    best = min(fits, key=lambda what: fits[what])
    cause = best if fits[best] < 0.02 else _on_a_line(returns()[step], found[step])
    message = f"{wrong:.0%} of the goals are not the lambda-returns of their rows: {cause}"
    return red(
        name, message, "look at goals in the agent, and at lambda_returns", wrong=round(wrong, 4)
    )


def _on_a_line(right: np.ndarray, found: np.ndarray) -> str:
    """Goals that are the right ones times a number plus another."""
    slope, offset = np.polyfit(right.ravel(), np.asarray(found, np.float64).ravel(), 1)
    if _off(slope * right + offset, found, np.ones(right.shape, bool)) > 0.02:
        return "no known mistake explains them"
    scaled = f"they are {slope:.3g} times these {offset:+.3g}"
    standard = abs(slope * right.std() - 1) < 0.05 and abs(found.mean()) < 0.05
    return f"{scaled}: standardised over the rollout" if standard else scaled


def _off(wanted: np.ndarray, found: np.ndarray, mask: np.ndarray) -> float:
    scale = 1e-3 + 1e-2 * np.abs(wanted)
    return float((np.abs(wanted - found) > scale)[mask].mean())
