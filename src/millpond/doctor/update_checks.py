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
from ..agents.actor_critic import ActorCritic
from ..agents.optimizer import Optimizer
from ..agents.target_agent import TargetAgent
from ..engine.make_agent import make_agent
from .critic_checks import critics
from .goal_checks import wrong_errors, wrong_goals
from .parameter_checks import followed
from .probe import Probe
from .step_checks import lowered, mixed_rows, slopes_of, unheard_rows, wrong_step
from .verdict import Verdict, green, red, unknown

_BATCH = 256


def update_audit(probe: Probe) -> Verdict:
    """Errors as recomputed, loss falls along the step, the target moves by its rule."""
    name, state = "update-audit", probe.saved.state
    if state is None:
        return unknown(name, probe.saved.why or "no state was saved yet")
    if not isinstance(probe.agent, QAgent | ActorCritic):
        return unknown(name, f"{probe.settings.section} is not taken apart: it is not one of ours")
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
    _, batch = probe.saved.sample(probe.saved.rings[0], jax.random.key(3), _BATCH)
    if float(np.asarray(batch.mask).mean()) < 0.5:
        return unknown(name, "the saved replay is too small to draw from")
    new, learned = probe.update(one, batch, _now(probe))
    if isinstance(probe.agent, ActorCritic):
        found = _target(probe, one, new, name)
        return found or critics(probe, one, batch, _now(probe, beta=1.0), name)
    if (found := _counts(probe, state, name)) is not None:
        return found
    if (found := _errors(probe, one, batch, learned, name)) is not None:
        return found
    if (found := _target(probe, one, new, name)) is not None:
        return found
    if (found := _copied(probe, one, batch, name)) is not None:
        return found
    step = _step(probe, (one, new), batch, name)
    if step is not None and step.evidence.get("explained"):
        return step

    def program(agent: Any) -> Any:
        update = jax.jit(agent.update)
        return lambda at, rate: update(at, batch, _now(probe, rate=rate, beta=1.0))

    found = _descent(probe, one, program, name)
    return found if found.fired else step or found


def _errors(probe: Probe, state: AgentState, batch: Any, learned: Any, name: str) -> Verdict | None:
    """Of agents without memory: which rows count, and whether errors are those of each row."""
    agent, error = probe.agent, None
    if not isinstance(agent, TargetAgent) or agent.memory:
        return None
    if isinstance(agent, DQN):
        error = wrong_errors(probe, state, batch, np.asarray(learned.priority), name)
        if error is not None and error.evidence.get("explained"):
            return error
    by_weight = slopes_of(agent, state, batch, _now(probe))[1]
    found = unheard_rows(by_weight, batch, learned, name)
    if found is None and isinstance(agent, DQN):
        found = mixed_rows(agent, state, batch, _now(probe, beta=1.0), name)
    return found or error


def _step(
    probe: Probe, states: tuple[AgentState, AgentState], batch: Any, name: str
) -> Verdict | None:
    """Of agents whose loss can be asked for: how far one update moves the parameters."""
    if not isinstance(probe.agent, TargetAgent):
        return None
    rule, now = probe.settings.learning, _now(probe)
    gradient = slopes_of(probe.agent, states[0], batch, now)[0]
    return wrong_step(rule.optimizer, gradient, *states, float(now["rate"]), name)


def _counts(probe: Probe, state: AgentState, name: str) -> Verdict | None:
    """An optimizer's own count of steps, where its rule keeps one, must be that of the updates."""
    rule = getattr(probe.settings.learning, "optimizer", None)
    if not isinstance(rule, Optimizer) or probe.updates < 20 * rule.accumulate:
        return None
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.optimizer)]
    counts = [leaf for leaf in leaves if leaf.dtype.kind in "iu" and leaf.ndim == 1]
    least = 0.5 * probe.updates / rule.accumulate
    if not counts or max(int(count.min()) for count in counts) >= least:
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


def _target(probe: Probe, before: AgentState, after: AgentState, name: str) -> Verdict | None:
    """The target must move by tau towards the new parameters, or be copied when it is due."""
    if before.target is None or not hasattr(probe.settings.learning, "syncs"):
        return None
    settings: Any = probe.settings.learning
    every = getattr(settings, "target_every", 0)
    every = every or getattr(settings, "delay", 0)
    due = not every or int(after.updates) % every == 0
    rate = (1.0 if getattr(settings, "target_every", 0) else settings.tau) if due else 0.0
    trees = before.target, followed(after.params, after.target), after.target
    flat = [np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(t)])
            for t in trees]  # fmt: skip
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


def _copied(probe: Probe, state: AgentState, batch: Any, name: str) -> Verdict | None:
    """A target that is a copy, taken every `target_every` updates, is taken when it is due."""
    every = getattr(probe.settings.learning, "target_every", 0)
    if every < 2 or state.target is None:
        return None
    new = probe.update(state._replace(updates=jnp.uint32(every - 1)), batch, _now(probe))[0]
    usual = probe.update(state._replace(updates=jnp.uint32(0)), batch, _now(probe))[0]
    to_new, to_old = (_apart(new.target, tree) for tree in (new.params, state.target))
    back, step = _apart(new.params, state.target), _apart(usual.params, state.params)
    if not _apart(state.params, state.target) or (to_new == 0 and back > 0):
        return None  # the two networks are the same, or all is well
    jumped = back <= step
    cause = (
        "the online network becomes the target, not the other way round"
        if jumped
        else ("the target stays as it was" if to_old == 0 else "the target becomes something else")
    )
    return red(
        name,
        f"every {every} updates the target should become a copy of the online network; in an "
        f"update that is due {cause}",
        "copy parameters to the target (where(due, params, target)), and leave parameters alone",
        target_to_online=to_new, target_moved=to_old,
    )  # fmt: skip


def _apart(one: Any, other: Any) -> float:
    """The distance between two trees of parameters."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return float(np.sqrt(sum(((np.asarray(a, np.float64) - b) ** 2).sum() for a, b in pairs)))


def _descent(probe: Probe, state: AgentState, program: Any, name: str) -> Verdict:
    """A tiny step of plain gradient descent must lower the loss of the very same rows.

    `program(agent)(state, rate)` gives the state after and what was learned.
    """
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
    before, after, rose = lowered(learn, begin, "loss", plain.optimizer.clip)
    numbers = dict(loss=before, after_a_small_step=after)
    if not np.isfinite(before):
        return red(
            name, "the loss of a stored batch is no finite number", "see env-rewards", **numbers
        )
    if rose:
        return red(
            name,
            "a small step along the gradient raises the loss of the same rows: "
            f"{before:.4g} to {after:.4g}",
            "the gradient has the wrong sign, or belongs to another loss",
            **numbers,
        )
    if before > 1e-6 and float(learn(begin, 1.0)[1].numbers["gradient"]) == 0:
        message = f"the loss of a stored batch is {before:.4g} and has no gradient"
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

    # Ends are where most goes wrong: the stretch with most of them, and rows after them, is taken.
    over = np.asarray(game.rows.terminated) | np.asarray(game.rows.truncated)
    ends = np.cumsum([0, *over[:, 0].sum(-1)])
    starts, half = np.arange(len(over) - turns), max(1, turns // 2)
    begin = int(np.argmax(ends[starts + half] - ends[starts]))

    def mine(leaf: Any, more: int = 0) -> Any:
        return jnp.asarray(np.asarray(leaf)[begin : begin + turns + more, 0])

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
    if (
        isinstance(probe.agent, PQN)
        and (found := wrong_goals(probe, rollout, worth, name)) is not None
    ):
        return found
    key = jax.random.key(5)

    def program(agent: Any) -> Any:
        learn = jax.jit(agent.learn)
        return lambda at, rate: learn(at, rollout, _now(probe, rate=rate), key)[:2]

    return _descent(probe, one, program, name)
