"""One update's step against the optimizer's own rule, and which rows its loss depends on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..agents import AgentState, Learned
from ..agents.optimizer import Optimizer
from .verdict import Verdict, red

_RULES: Any = {
    "adam": optax.scale_by_adam,
    "radam": optax.scale_by_radam,
    "sgd": lambda eps: optax.identity(),
}
_ROUNDED = 1e-7  # of a parameter, by adding to it in float32


def mixed_rows(agent: Any, state: AgentState, batch: Any, now: Any, name: str) -> Verdict | None:
    """The loss of a batch must be the mean, or the sum, of its rows' own.

    Of sequences the mean is over all rows that count: one with more of them weighs more.
    """

    def loss(rows: Any) -> Any:
        return agent.loss(state, rows, now)[0](state.params)

    alone = jax.tree.map(lambda leaf: leaf[:, None], batch)
    both = jax.jit(lambda alone, together: (jax.vmap(loss)(alone), loss(together)))(alone, batch)
    (each, parts), (whole, together) = jax.tree.map(lambda x: np.asarray(x, np.float64), both)
    whole, count = float(whole), _rows_of(batch)
    sums = np.array([each.mean(), (each * count).sum() / max(1, count.sum()), each.sum()])
    if (np.abs(sums - whole) < 0.02 * np.abs(sums) + 1e-6).any():
        return None
    cause, remedy = _mixed_by(agent, batch, parts, together, whole)
    return red(
        name,
        f"the loss of a batch is {whole:.4g}, the mean of its rows' own losses {sums[0]:.4g}: rows "
        f"are mixed{cause}",
        remedy,
        loss=whole, of_rows=float(sums[0]), explained=True,
    )  # fmt: skip


def _mixed_by(agent: Any, batch: Any, alone: Any, together: Any, whole: float) -> tuple[str, str]:
    """How the rows of a batch came to be mixed, if that is known, and what to look at.

    `alone` and `together` are values and errors: of each row by itself, and of the batch.
    """
    shapes = "look at the shapes of values and goals in the loss: both must be [batch]"
    size = len(batch.mask)
    if any(np.size(part) != size for part in (*alone, *together)):
        return ", as where [batch, 1] meets [batch] and becomes [batch, batch]", shapes
    (q, error), (_, among) = ([np.ravel(part) for part in both] for both in (alone, together))
    goal, goal_among = q - error, q - among
    pairs = float(np.mean(np.asarray(agent._loss(q[:, None] - goal[None]))))
    if abs(pairs - whole) < 0.02 * abs(whole):
        cause = ": it is the mean over all pairs of one row's value and another row's goal"
        return f"{cause} ([batch, 1] met [batch] and became [batch, batch])", shapes
    if np.ptp(goal_among) < 1e-3 * np.ptp(goal):
        cause = f": every transition of the batch has the same goal, {goal_among.mean():.3g}"
        return cause, "look for a mean or a maximum without an axis where goals are made"
    discount, reward = np.asarray(batch.discount), np.asarray(batch.reward, np.float64)
    ahead = discount > 0
    moved = np.abs(goal_among - goal) > 1e-3 + 0.01 * np.abs(goal)
    if ahead.sum() < 8 or not moved.any():
        return ", as where [batch, 1] meets [batch] and becomes [batch, batch]", shapes
    scale = float(getattr(agent.settings, "reward_scale", 1.0))
    after = (goal_among - scale * reward)[ahead] / discount[ahead]
    if np.ptp(after) < 0.01 * np.abs(after).max() + 1e-4:
        cause = f": all of them bootstrap from one and the same value, {after.mean():.3g}"
        remedy = "take the maximum over actions alone (axis=-1), not over the whole batch"
        return f"{cause}, instead of each from its own next observation", remedy
    remedy = "look for a maximum, mean or norm without an axis where goals are made"
    return f": {moved.mean():.0%} of the goals change with the other rows of the batch", remedy


def _rows_of(batch: Any) -> np.ndarray:
    """How many rows count of each sample: 0 or 1, or those of a sequence."""
    return np.asarray(batch.mask).reshape(len(batch.mask), -1).sum(1)


def unheard_rows(slope: np.ndarray, batch: Any, learned: Learned, name: str) -> Verdict | None:
    """Every transition whose error is not 0 must change the loss: its slope by weight [batch]."""
    wrong = (np.abs(np.asarray(learned.priority)) > 1e-4) & (_rows_of(batch) > 0)
    silent = int((slope[wrong] == 0).sum())
    # A loss that uses no weights has no slope by any of them.
    if wrong.sum() < 16 or silent < 0.1 * wrong.sum() or not slope.any():
        return None
    return red(
        name,
        f"{silent} of {wrong.sum()} transitions of a batch have no effect on the loss, whatever "
        "their error",
        "look at weights, masks and slices in the loss",
        silent=silent, transitions=int(wrong.sum()), explained=True,
    )  # fmt: skip


def wrong_step(
    rule: Optimizer, gradient: Any, before: AgentState, after: AgentState, rate: float, name: str
) -> Verdict | None:
    """Parameters must move by the rule's own step along the gradient, worked out by optax here."""
    if rule.accumulate > 1 or bool(after.bad):
        return None
    whole: Any = _RULES[rule.kind](eps=rule.eps)
    if rule.clip:
        whole = optax.chain(optax.clip_by_global_norm(rule.clip), whole)
    step = jax.jit(whole.update)(gradient, before.optimizer, before.params)[0]
    wanted = -rate * _flat(step)
    old = _flat(before.params)
    moved = _flat(after.params) - old
    size, rounding = float(np.linalg.norm(wanted)), _ROUNDED * float(np.linalg.norm(old))
    if size < 100 * rounding or np.linalg.norm(moved - wanted) < 0.05 * size + rounding:
        return None
    far = float(np.linalg.norm(moved)) / size
    cosine = float(moved @ wanted) / max(size * float(np.linalg.norm(moved)), 1e-30)
    shares, *_ = np.linalg.lstsq(np.stack([wanted, old], 1), moved, rcond=None)
    rest = moved - shares[0] * wanted - shares[1] * old
    left = float(np.linalg.norm(rest)) / max(size * far, 1e-30)
    if cosine > 0.99:
        cause = f"the learning rate {rate:.3g} is applied {far:.3g} times over"
    elif cosine < -0.99:
        cause = "it goes the other way"
    elif left < 0.1:
        cause = f"besides, every parameter changes by {shares[1]:+.2%} of itself: weights decay"
    else:
        cause = f"{min(left, 1):.0%} of it is something else: noise, or only some layers move"
    return red(
        name,
        f"one update moves the parameters {far:.3g} times as far as {rule.kind}'s step along the "
        f"loss's gradient, at a cosine of {cosine:.2f} to it: {cause}",
        "look at what changes the gradient or the step between the loss and the parameters",
        far=round(far, 4), cosine=round(cosine, 4), decay=round(float(shares[1]), 6),
        explained=abs(cosine) > 0.99 or left < 0.1,
    )  # fmt: skip


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def slopes_of(agent: Any, state: AgentState, batch: Any, now: Any) -> tuple[Any, np.ndarray]:
    """Gradients of the agent's own loss: by its parameters, and by each row's weight."""
    given = {name: jnp.asarray(value) for name, value in now.items()}

    def loss(params: Any, weight: Any) -> Any:
        return agent.loss(state, batch._replace(weight=weight), given)[0](params)[0]

    by_params, by_weight = jax.jit(jax.grad(loss, (0, 1)))(state.params, batch.weight)
    return by_params, np.asarray(by_weight)


def lowered(learn: Any, begin: AgentState, number: str, clip: float) -> tuple[float, float, bool]:
    """A loss before and after a small plain step on the same rows, and whether it clearly rose.

    `learn(state, share)` steps by that share. Where the loss is nearly at its lowest point a step
    may go beyond it, so smaller ones are tried; what rounding can do is no rise.
    """
    before = after = np.inf
    rose = False
    for share in (1.0, 0.1, 0.01):
        moved, said = learn(begin, share)
        again = learn(begin._replace(params=moved.params), share)[1]
        before, after = float(said.numbers[number]), float(again.numbers[number])
        steep = float(said.numbers["gradient"])
        asked = share * min(steep, clip) * steep  # by which it should fall
        rose = after - before > max(3e-6 * abs(before), 0.1 * asked)
        if not rose:
            break
    return before, after, rose
