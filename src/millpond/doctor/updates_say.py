"""One update taken apart: its errors recomputed, its direction, what it does to the target.

The run's own agent updates a copy of its saved state, by the code of today.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, PQN, AgentState, QAgent, Replayed, Rollout
from ..agents.optimizer import Optimizer
from ..engine.make_agent import make_agent
from .probe import Probe
from .verdict import Verdict, green, red, unknown

_BATCH = 256


def update_audit(probe: Probe) -> Verdict:
    """Errors as recomputed, loss falls along the step, the target moves by its rule."""
    name, state = "update-audit", probe.saved.state
    if state is None:
        return unknown(name, probe.saved.why or "no state was saved yet")
    if not isinstance(probe.agent, QAgent):
        return unknown(
            name, f"{probe.settings.section} is not taken apart, only agents with values of actions"
        )
    if isinstance(probe.settings.learns, Replayed):
        return _replayed(probe, state, name)
    return _rollout(probe, state, name)


def _one(state: Any, policy: int = 0) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[policy]), state)


def _now(probe: Probe, **other: float) -> dict[str, Any]:
    return {name: jnp.float32(value[0]) for name, value in probe.now.items()} | {
        name: jnp.float32(value) for name, value in other.items()
    }


def _replayed(probe: Probe, state: AgentState, name: str) -> Verdict:
    pond = probe.saved.pond
    if pond is None or not probe.saved.rings:
        return unknown(name, "no replay was saved to draw a batch from (a Lake, or shards)")
    if not bool(np.asarray(pond.can_sample(probe.saved.rings[0]))):
        return unknown(name, "the saved replay is too small to draw from")
    one = _one(state)
    sample = jax.jit(pond.sample, static_argnums=2)
    _, batch = sample(probe.saved.rings[0], jax.random.key(3), _BATCH)
    if float(np.asarray(batch.mask).mean()) < 0.5:
        return unknown(name, "the saved replay is too small to draw from")
    new, learned = jax.jit(probe.agent.update)(one, batch, _now(probe))
    if (found := _counts(probe, state, name)) is not None:
        return found
    if isinstance(probe.agent, DQN) and not probe.agent.memory:
        found = _errors(probe, one, batch, np.asarray(learned.priority), name)
        if found is not None:
            return found
    if (found := _target(probe, one, new, name)) is not None:
        return found

    def program(agent: Any) -> Any:
        update = jax.jit(agent.update)
        return lambda at: update(at, batch, _now(probe, rate=1.0, beta=1.0))

    return _descent(probe, one, program, name)


def _errors(
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
    rules = {
        "nothing is bootstrapped": (q, scaled),
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
    if wrong < 0.02:
        return None
    fits = {what: _off(np.abs(a - b), found, mask) for what, (a, b) in rules.items()}
    best = min(fits, key=lambda what: fits[what])
    cause = best if fits[best] < 0.02 else f"none of {len(rules)} known mistakes explains them"
    message = f"{wrong:.0%} of the update's errors are not reward + discount * value - q: {cause}"
    return red(name, message, "look at the goal in the agent's update (td_target)", **numbers)


def _counts(probe: Probe, state: AgentState, name: str) -> Verdict | None:
    """An optimizer's own count of steps, where its rule keeps one, must be that of the updates."""
    rule = getattr(probe.settings.learning, "optimizer", None)
    if not isinstance(rule, Optimizer) or probe.updates < 20 * rule.accumulate:
        return None
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.optimizer)]
    counts = [leaf for leaf in leaves if leaf.dtype.kind in "iu" and leaf.ndim == 1]
    if not counts or max(int(count.min()) for count in counts) >= 0.5 * probe.updates:
        return None
    most = max(int(count.min()) for count in counts)
    return red(
        name,
        f"the optimizer has counted {most:,} steps in {probe.updates:,} updates: it begins again "
        "all the time, without its averages of the gradient",
        "keep the optimizer's state from update to update; make it in init alone",
        counted=most,
        updates=probe.updates,
    )


def _off(wanted: np.ndarray, found: np.ndarray, mask: np.ndarray) -> float:
    scale = 1e-3 + 1e-2 * np.abs(wanted)
    return float((np.abs(wanted - found) > scale)[mask].mean())


def _target(probe: Probe, before: AgentState, after: AgentState, name: str) -> Verdict | None:
    """The target must move by tau towards the new parameters, or be copied when it is due."""
    if before.target is None or not hasattr(probe.settings.learning, "syncs"):
        return None
    settings: Any = probe.settings.learning
    every = getattr(settings, "target_every", 0)
    due = not every or int(after.updates) % every == 0
    rate = (1.0 if every else settings.tau) if due else 0.0
    flat = [np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(t)])
            for t in (before.target, after.params, after.target)]  # fmt: skip
    old, online, new = flat
    wanted = rate * (online - old)
    length = float((wanted**2).sum())
    gone = float(((new - old) @ (online - old)) / max(((online - old) ** 2).sum(), 1e-30))
    size = 1e-6 * np.sqrt((old**2).sum())
    if np.sqrt(((new - old - wanted) ** 2).sum()) > 0.02 * np.sqrt(length) + size:
        return red(
            name,
            f"one update moves the target network {gone:.3g} of the way to the online "
            f"one, {rate:g} is asked for",
            "let the agent's update alone change the target, once",
            moved=gone, wanted=rate,
        )  # fmt: skip
    return None


def _descent(probe: Probe, state: AgentState, program: Any, name: str) -> Verdict:
    """`program(agent)(state)` gives the state after and what was learned. A tiny "
    "step of plain gradient descent must lower the loss of the very same rows."""
    rule = getattr(probe.settings.learning, "optimizer", None)
    if not isinstance(rule, Optimizer):
        return green(name, "its errors and target are as recomputed")
    size = float(
        np.sqrt(sum(float((np.asarray(p) ** 2).sum()) for p in jax.tree.leaves(state.params)))
    )
    plain = dataclasses.replace(
        probe.settings.learning, optimizer=Optimizer("sgd", clip=1e-3 * size)
    )
    agent = make_agent(dataclasses.replace(probe.settings, learning=plain))
    begin = state._replace(optimizer=plain.optimizer.init(state.params))
    learn = program(agent)
    moved, said = learn(begin)
    again = learn(begin._replace(params=moved.params))[1]
    before, after = float(said.numbers["loss"]), float(again.numbers["loss"])
    numbers = dict(loss=before, after_a_small_step=after)
    if not np.isfinite(before):
        return red(
            name, "the loss of a stored batch is no finite number", "see env-rewards", **numbers
        )
    if before > 1e-8 and after > before * (1 + 1e-6):
        return red(
            name,
            "a small step along the gradient raises the loss of the same rows: "
            f"{before:.4g} to {after:.4g}",
            "the gradient has the wrong sign, or belongs to another loss",
            **numbers,
        )
    if before > 1e-6 and after >= before * (1 - 1e-7):
        message = f"a step along the gradient leaves the loss at {before:.4g}: it has no gradient"
        return red(name, message, "something stops the gradient, or masks every row", **numbers)
    return green(
        name,
        f"errors as recomputed; a small step lowers the loss {before:.4g} to {after:.4g}",
        **numbers,
    )


def _rollout(probe: Probe, state: AgentState, name: str) -> Verdict:
    """The same of an agent that learns from what was just played."""
    if probe.settings.network.memory:
        return unknown(name, "agents with memory are not taken apart")
    one, game, settings = _one(state), probe.game, probe.settings
    turns = min(settings.learns.turns, len(game.chosen) - 1)
    envs = game.chosen.shape[2]
    learns: Any = settings.learns
    parts = learns.parts
    turns -= turns * envs % parts and turns * envs % parts // max(1, envs)
    while turns and turns * envs % parts:
        turns -= 1
    if not turns:
        return unknown(name, f"{envs} envs cannot be cut into {parts} minibatches here")

    def mine(leaf: Any, more: int = 0) -> Any:
        return jnp.asarray(np.asarray(leaf)[: turns + more, 0])

    stacks = jax.tree.map(lambda leaf: mine(leaf, 1), game.stacks)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacks)
    worth = np.asarray(probe.agent.worth(one.params, flat)).reshape(turns + 1, envs)
    rows = game.rows
    rollout = Rollout(
        jax.tree.map(lambda leaf: leaf[:-1], stacks), mine(rows.action), mine(rows.reward),
        mine(rows.terminated), mine(rows.truncated), mine(rows.flags), jnp.asarray(worth),
    )  # fmt: skip
    if (found := _counts(probe, state, name)) is not None:
        return found
    if isinstance(probe.agent, PQN) and (found := _goals(probe, rollout, worth, name)) is not None:
        return found
    key = jax.random.key(5)

    def program(agent: Any) -> Any:
        learn = jax.jit(agent.learn)
        return lambda at: learn(at, rollout, _now(probe, rate=1.0), key)[:2]

    return _descent(probe, one, program, name)


def _goals(probe: Probe, rollout: Rollout, worth: np.ndarray, name: str) -> Verdict | None:
    """Lambda-returns worked out here, from the last row backwards."""
    settings: Any = probe.settings.learning
    found = np.asarray(probe.agent.goals(rollout))
    reward = np.asarray(rollout.reward, np.float64)
    if settings.reward_clip:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    over, cut = np.asarray(rollout.terminated), np.asarray(rollout.truncated)
    step = (np.asarray(rollout.flags) & 2) == 0

    def returns(scale: float = settings.reward_scale, gamma: float = settings.gamma,
                stop: bool = True, lam: float = settings.lam) -> np.ndarray:  # fmt: skip
        goal, later = np.zeros(reward.shape), worth[-1].astype(np.float64)
        for time in range(len(reward) - 1, -1, -1):
            ahead = worth[time + 1]
            mixed = np.where(over[time] | cut[time], ahead, (1 - lam) * ahead + lam * later)
            later = reward[time] * scale + gamma * np.where(over[time] & stop, 0, mixed)
            goal[time] = later
        return goal

    rules = {
        "nothing is bootstrapped": returns(gamma=0.0),
        "terminations do not stop the bootstrap": returns(stop=False),
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
    cause = best if fits[best] < 0.02 else f"none of {len(rules)} known mistakes explains them"
    message = f"{wrong:.0%} of the goals are not the lambda-returns of their rows: {cause}"
    return red(
        name, message, "look at goals in the agent, and at lambda_returns", wrong=round(wrong, 4)
    )
