"""Resets: which agents begin anew, and from which parameters. Pure functions over [policies]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Optimizer
from ..rows import Array


def of_each_agent(params: Any, agents: int) -> Any:
    """Parameters [members] for every agent of each member: [members * agents]."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, agents, 0), params)


def clone(
    rule: Optimizer, old: AgentState, params: Any, which: Array, reset_optimizer: bool
) -> AgentState:
    """Agents begin anew with params[policies] where `which` says so; the others go on."""
    fresh = jax.vmap(rule.init)(params)

    def pick(new: Array, was: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (was.ndim - 1)), new, was)

    return old._replace(
        params=jax.tree.map(pick, params, old.params),
        optimizer=jax.tree.map(pick, fresh, old.optimizer) if reset_optimizer else old.optimizer,
        bad=old.bad & ~which,
    )


def passes(big: np.ndarray, agents: np.ndarray, gate: float) -> np.ndarray:
    """Which members' BigAgents are good enough to be cloned: bool[members].

    big[members] and agents[members, agents] are mean returns by the same episodes.
    """
    return np.ones(len(big), bool) if gate == 0 else big >= gate * agents.max(1)


def stand_ins(bad: np.ndarray, agents: int) -> np.ndarray:
    """For every policy that went bad the next healthy one of its member: int[policies].

    A healthy policy stands for itself; -1 where a member has none left.
    """
    who = np.arange(len(bad))
    for policy in np.flatnonzero(bad):
        member, own = divmod(int(policy), agents)
        others = [member * agents + (own + i) % agents for i in range(1, agents)]
        who[policy] = next((other for other in others if not bad[other]), -1)
    return who
