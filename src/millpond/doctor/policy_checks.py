"""The policy of an actor-critic: how random its actions really are, against what it claims.

Its actions are sampled many times for the same observations, through the code that acts. What it
says of their probability is not needed for that.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from .probe import Probe
from .verdict import Verdict, red, yellow

_STATES, _SAMPLES = 128, 256
_TOLERANCE = 0.3  # of an entropy, for each number of an action
_DWARFED = 30.0  # times what rewards vary by


def sampled_actions(probe: Probe, state: AgentState, obs: Any) -> np.ndarray:
    """Actions that the policy takes when it explores, in [-1, 1]: float64[samples, states, n]."""
    agent = probe.agent
    params = state.params._replace(begun=jnp.ones((), bool))
    some = jax.tree.map(lambda leaf: leaf[:_STATES], obs)
    number = len(jax.tree.leaves(some)[0])
    now = {key: jnp.float32(value[0]) for key, value in probe.now.items()}

    def one(key: Any) -> Any:
        chance = agent.chance(key, number)
        noise = (jnp.zeros_like(chance),) if agent.memory else ()
        act = agent.act(params, some, chance, now, *noise)
        return agent.box.inward((act[0] if noise else act).action)

    keys = jax.random.split(jax.random.key(21), _SAMPLES)
    return np.asarray(jax.jit(jax.vmap(one))(keys), np.float64)


def policy_randomness(
    probe: Probe, state: AgentState, batch: Any, said: Any, name: str
) -> Verdict | None:
    """Actions must differ by chance, and be as unpredictable as the update counts them."""
    noise = probe.now.get("noise")
    learned = "entropy" in said
    if not learned and (noise is None or float(noise[0]) == 0):
        return None
    actions = sampled_actions(probe, state, batch.obs)
    spread = actions.std(0).max(0)
    if spread.max() < 1e-6:
        why = "its log-probabilities count noise that is not there"
        if noise is not None:
            why = f"its noise should be {float(noise[0]):.3g}"
        return red(
            name,
            f"asked {len(actions)} times, the policy takes the same action every time: nothing "
            f"is explored, and {why}",
            "look at act: it must add the noise that it is given, or sample its distribution",
            spread=float(spread.max()),
        )
    return _entropy(actions, float(said["entropy"]), name) if learned else None


def _entropy(actions: np.ndarray, claimed: float, name: str) -> Verdict | None:
    """The entropy that the update counts, against that of the actions as they fall."""
    size = actions.shape[-1]
    inside = np.abs(actions) < 1 - 1e-5
    measured = float(sum(_spacing_entropy(actions[..., n]) for n in range(size)))
    numbers = dict(claimed=round(claimed, 3), measured=round(measured, 3), actions=size)
    gap = claimed - measured
    # Where actions lie at a bound, float32 does not tell how densely.
    if abs(gap) < _TOLERANCE * size or (gap < 0 and inside.mean() < 0.95):
        return None
    squash = float(-np.log1p(-(np.clip(actions, -1 + 1e-6, 1 - 1e-6) ** 2)).sum(-1).mean())
    remedy = "look at the log-probability in update, and at the noise in act"
    why, most = "", size * np.log(2)
    missing = squash > _TOLERANCE * size and abs(gap - squash) < _TOLERANCE * size
    if claimed > most + 0.01 or missing:
        why = ", so it is not that of the squashed actions: the correction for tanh is missing"
        if claimed > most:
            why = f", and no policy within [-1, 1] can have more than {most:.2g}{why}"
        remedy = "subtract the sum of log(1 - tanh(x)^2) from the Gaussian's log-probability"
    found = f"; measured on its actions it is {measured:.3g}" if inside.mean() > 0.95 else ""
    return red(
        name, f"the update counts an entropy of {claimed:.3g}{found}{why}", remedy, **numbers
    )


def _spacing_entropy(samples: np.ndarray) -> float:
    """Vasicek's estimate by the spacing of sorted samples [samples, states], mean over states."""
    number = len(samples)
    reach = max(1, int(np.sqrt(number) / 2))
    ordered = np.sort(samples, 0)
    places = np.arange(number)
    high, low = np.minimum(places + reach, number - 1), np.maximum(places - reach, 0)
    gap = np.maximum(ordered[high] - ordered[low], 1e-6)
    return float(np.log(gap * number / (high - low)[:, None]).mean())


def entropy_dwarfs(probe: Probe, batch: Any, said: Any, name: str) -> Verdict | None:
    """What the policy is paid for being random must not drown what it is paid for the task."""
    if "temperature" not in said:
        return None
    mask = np.asarray(batch.mask)
    paid = np.asarray(batch.reward, np.float64)[mask] * probe.settings.learning.reward_scale
    spread = float(paid.std())
    size = probe.agent.box.size
    heat = float(said["temperature"]) * max(abs(float(said["entropy"])), 0.5 * size)
    if heat < _DWARFED * spread:
        return None
    section = probe.settings.section
    return yellow(
        name,
        f"entropy is worth about {heat:.2g} in every step, and rewards as the loss sees them vary "
        f"by {spread:.2g}: the policy is paid for being random, and hardly for the task",
        f"raise --{section}.reward-scale until rewards are near 1",
        heat=heat, rewards_vary_by=spread, temperature=float(said["temperature"]),
    )  # fmt: skip
