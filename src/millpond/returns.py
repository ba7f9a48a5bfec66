"""`lambda_returns`: multi-step targets from replayed sequences, for NumPy and JAX.

Returns are computed backwards: G(t) = reward(t) + discount(t) * (V(t+1) + c(t+1) * (G(t+1) -
B(t+1))). V is the value of an observation, c the trace coefficient, and B the baseline: the value
of the action taken, or V itself for Peng.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from .errors import BadConfig
from .rows import Array
from .spec import mismatch

Trace = Literal["peng", "watkins", "retrace", "tree"]


def lambda_returns(
    q: Array,
    action: Array,
    reward: Array,
    discount: Array,
    mask: Array,
    lam: float = 0.95,
    gamma: float | None = None,
    trace: Trace = "peng",
    policy: Array | None = None,
    behaviour: Array | None = None,
) -> Array:
    """Returns[..., time] of a `SequenceBatch`'s rows; 0 where mask is false.

    `q[..., time + 1, actions]` are the values of all observations, including the one after the last
    row; action, reward, discount and mask [..., time] are the batch's own. A return never crosses
    an episode's end: a truncated episode bootstraps from its true final observation, which is in
    the masked row that follows; the last row bootstraps from the observation after it. `gamma`
    replaces the batch's discount wherever that is not 0.

    - "peng": never cuts the trace; no off-policy correction.
    - "watkins": cuts the trace at the first action that is not greedy.
    - "retrace": the coefficient is min(1, policy / behaviour).
    - "tree": tree backup; the coefficient is the policy's probability of the action taken.

    `policy[..., time + 1, actions]` are the target policy's probabilities, by default greedy in q;
    V is the mean of q under it. `behaviour[..., time]` is the probability with which the action was
    taken, needed by "retrace" only. A pure function, for jit or NumPy.

        q = network(batch.obs)                             # [batch, length + 1, actions]
        target = lambda_returns(q, batch.action, batch.reward, batch.discount, batch.mask, lam=0.8)
    """
    _share("lam", lam)
    _share("gamma", gamma)
    _check(q, action, reward, discount, mask, trace, policy, behaviour)
    known = (q, action, reward, discount, mask, policy, behaviour)
    xp: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in known) else np
    if behaviour is not None:
        behaviour = xp.where(mask, behaviour, 1)  # a border row has 0, as in every extra
    value = q.max(axis=-1) if policy is None else (policy * q).sum(axis=-1)
    taken = _at(q[..., :-1, :], action, xp)
    goes_on = _trace(trace, q, taken, value, action, policy, behaviour, xp) * lam
    replaced = value[..., :-1] if trace == "peng" else taken
    if gamma is not None:
        discount = xp.where(discount > 0, np.float32(gamma), np.float32(0))
    # Shifted to the next row. The trace ends where no step follows: at an episode's end and after
    # the last row.
    nothing = xp.zeros_like(goes_on[..., :1])
    after = xp.concatenate([xp.where(mask, goes_on, 0)[..., 1:], nothing], axis=-1)
    base = xp.concatenate([xp.where(mask, replaced, 0)[..., 1:], nothing], axis=-1)
    ahead = xp.where(discount > 0, value[..., 1:] - after * base, 0)
    fixed, share = reward + discount * ahead, discount * after
    fixed, share = xp.where(mask, fixed, 0), xp.where(mask, share, 0)
    return _solve(fixed, share, xp)


def _solve(fixed: Array, share: Array, xp: Any) -> Array:
    """Solve G(t) = fixed(t) + share(t) * G(t+1) along the last axis, with G = 0 after its end."""
    if xp is np:
        found = np.array(fixed)
        for t in range(fixed.shape[-1] - 2, -1, -1):
            found[..., t] += share[..., t] * found[..., t + 1]
        return found

    def join(later: Any, earlier: Any) -> Any:  # composes the maps x -> fixed + share * x
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    return jax.lax.associative_scan(join, (fixed, share), reverse=True, axis=fixed.ndim - 1)[0]


def _trace(
    trace: Trace,
    q: Array,
    taken: Array,
    value: Array,
    action: Array,
    policy: Array | None,
    behaviour: Array | None,
    xp: Any,
) -> Array:
    """The trace coefficient c[..., time] of each row's action, for lambda = 1."""
    if trace == "peng":
        return xp.ones(taken.shape, taken.dtype)
    if policy is not None:
        chance = _at(policy[..., :-1, :], action, xp)
        greedy = chance >= policy[..., :-1, :].max(axis=-1)
    else:
        greedy = taken >= value[..., :-1]
        chance = (q[..., :-1, :].argmax(axis=-1) == action).astype(q.dtype)
    if trace == "watkins":
        return greedy.astype(q.dtype)
    if trace == "tree":
        return chance
    return xp.minimum(1, chance / behaviour)


def _share(name: str, value: Any) -> None:
    """Raise BadConfig for a plain number outside [0, 1]; traced values cannot be checked."""
    if isinstance(value, (int, float)) and not 0 <= value <= 1:
        raise BadConfig(f"lambda_returns: {name} must lie in [0, 1], got {value!r}")


def _at(values: Array, action: Array, xp: Any) -> Array:
    return xp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def _check(
    q: Array,
    action: Array,
    reward: Array,
    discount: Array,
    mask: Array,
    trace: str,
    policy: Array | None,
    behaviour: Array | None,
) -> None:
    """Raise unless shapes fit: nothing is broadcast."""
    if trace not in ("peng", "watkins", "retrace", "tree"):
        raise BadConfig(
            f"lambda_returns: trace must be 'peng', 'watkins', 'retrace' or 'tree', got {trace!r}"
        )
    if trace == "retrace" and behaviour is None:
        raise BadConfig(
            "lambda_returns: retrace needs behaviour[..., time], the probability of the action "
            "taken; record it as an extra, or use trace='tree', which does not need it"
        )
    steps, rest = np.shape(action), np.shape(q)[-1:]
    wanted = {
        "q": (q, (*steps[:-1], *(time + 1 for time in steps[-1:]), *rest)),
        "policy": (policy, np.shape(q)),
        **{
            name: (value, steps)
            for name, value in (
                ("reward", reward),
                ("discount", discount),
                ("mask", mask),
                ("behaviour", behaviour),
            )
        },
    }
    for name, (value, shape) in wanted.items():
        if value is not None and np.shape(value) != shape:
            remedy = "pass the sequence's rows, and q of all its observations"
            raise mismatch(name, f"shape {shape}", f"{np.shape(value)}", remedy)
