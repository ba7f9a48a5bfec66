"""`Measures`: what agents and BigAgent think of recent states: agreement, values, dormant units."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.keys import Role, key_of
from ..replay import Pond, PondState
from ..rows import CUT, Array, Batch
from .reset import by_member
from .settings import MixSettings

_STATES = 256  # states drawn from every Pond
_DORMANT = 0.025  # a unit is dormant below this share of its layer's mean activity


class Measures:
    """`measures(agents_params, big_params, ponds, cycle)`: plain values by name, for the metrics.

    States are drawn from `ponds`, [policies] or [members]; those of a member are shown to all its
    agents and to its BigAgent.
    """

    def __init__(self, settings: MixSettings, pond: Pond, agent: Any) -> None:
        self.settings, self.pond, self.agent = settings, pond, agent
        self._measure = jax.jit(self._all)

    def __call__(self, agents: Any, big: Any, ponds: PondState, cycle: int) -> dict[str, Any]:
        found = jax.device_get(self._measure(agents, big, ponds, cycle))
        return {name: np.asarray(value, np.float64).tolist() for name, value in found.items()}

    def _all(self, agents: Any, big: Any, ponds: PondState, cycle: Array) -> dict[str, Array]:
        settings, members = self.settings, self.settings.members
        pond_axes = self.pond.axes
        number = ponds.flags.shape[0]
        keys = jax.random.split(key_of(settings.seed, Role.EVALUATE, cycle), number)
        draw = functools.partial(self.pond.sample, batch_size=_STATES)
        _, batch = jax.vmap(draw, in_axes=(pond_axes, 0), out_axes=(pond_axes, 0))(ponds, keys)
        realised, known = jax.vmap(self._realised, in_axes=(pond_axes, 0))(ponds, batch)

        def of_member(leaf: Array) -> Array:
            return leaf.reshape(members, -1, *leaf.shape[2:])

        obs, action, mask = map(of_member, (batch.obs, batch.action, batch.mask))
        realised, known = of_member(realised), of_member(known & batch.mask)
        grouped = by_member(agents, settings.agents)

        def of_each(ask: Any) -> tuple[Array, Array]:
            """Ask all agents [members, agents, states] and all BigAgents [members, states]."""
            return jax.vmap(jax.vmap(ask, (0, None)))(grouped, obs), jax.vmap(ask)(big, obs)

        (choices, of_big), (worth, big_worth) = of_each(self.agent.best), of_each(self.agent.worth)
        asleep = of_each(functools.partial(dormant, self.agent))
        return {
            "disagreement": disagreement(choices, mask),
            "agreement": _mean(choices == action[:, None], mask[:, None]),
            "big_agreement": _mean(of_big == action, mask),
            "max_q": _mean(worth, known[:, None]),
            "big_max_q": _mean(big_worth, known),
            "realised": _mean(realised, known),
            "known": known.mean(-1),
            "dormant": asleep[0],
            "big_dormant": asleep[1],
        }

    def _realised(self, state: PondState, batch: Batch) -> tuple[Array, Array]:
        """The discounted return after each drawn row, and whether its episode's end is stored."""
        learns, length = self.settings.learns, self.pond.length
        window = learns.window
        age = np.arange(length, dtype=np.int32)[:, None]
        position = (state.head + age) % length
        rows = self.pond.read(state, np.arange(self.pond.streams), position)
        reward = rows.reward
        if window.reward_clip:
            reward = jnp.clip(reward, -window.reward_clip, window.reward_clip)
        reward = reward * learns.reward_scale
        cut = (rows.flags & CUT) != 0  # true also where nothing was written yet
        ended = rows.terminated | rows.truncated

        def back(after: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[Any, Any]:
            value, known = after
            reward, ended, cut = row
            value = reward + window.gamma * jnp.where(ended, 0, value)
            known = ended | (known & ~cut)
            return (value, known), (value, known)

        nothing = jnp.zeros(self.pond.streams), jnp.zeros(self.pond.streams, bool)
        _, (value, known) = jax.lax.scan(back, nothing, (reward, ended, cut), reverse=True)
        at = (batch.draw.row[:, 1] % np.uint32(length)).astype(np.int32)
        at = (at - state.head) % length
        return value[at, batch.draw.stream], known[at, batch.draw.stream]


def disagreement(actions: Array, mask: Array) -> Array:
    """Share of states in which two agents choose different actions, averaged over all pairs.

    `actions` is [members, agents, states], `mask` [members, states]; 0 for a single agent.
    """
    pairs = list(itertools.combinations(range(actions.shape[1]), 2))
    if not pairs:
        return jnp.zeros(actions.shape[0])
    different = [_mean(actions[:, i] != actions[:, j], mask) for i, j in pairs]
    return jnp.stack(different).mean(0)


def dormant(agent: Any, params: Any, obs: Array) -> Array:
    """Share of hidden units whose mean activity is at most 0.025 of their layer's mean.

    0 for agents without a method `activity`.
    """
    layers = agent.activity(params, obs) if hasattr(agent, "activity") else []
    asleep = [(active <= _DORMANT * active.mean()).sum() for active in layers]
    return sum(asleep) / sum(active.size for active in layers) if layers else jnp.zeros(())


def _mean(values: Array, mask: Array) -> Array:
    """Mean over the last axis where `mask` is true; 0 where it is nowhere true."""
    mask = jnp.broadcast_to(mask, values.shape)
    return jnp.where(mask, values, 0).sum(-1) / jnp.maximum(mask.sum(-1), 1)
