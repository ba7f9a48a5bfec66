"""Resets: which agents are replaced, and with which parameters. Pure functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Agent, AgentState
from ..rows import Array


def of_each_agent(params: Any, agents: int) -> Any:
    """Repeat parameters [members] for every agent: [members * agents]."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, agents, 0), params)


def by_member(params: Any, agents: int) -> Any:
    """Reshape parameters [members * agents] to [members, agents]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, agents, *leaf.shape[1:]), params)


def candidates(params: Any, agents: int) -> Any:
    """Parameters [members, agents + 1]: each member's agents, then their average.

    Agents that started from the same parameters stay close enough for their average to play well.
    """

    def join(each: Array) -> Array:
        return jnp.concatenate([each, each.mean(1, keepdims=True)], 1)

    return jax.tree.map(join, by_member(params, agents))


def clone(
    agent: Agent, old: AgentState, params: Any, which: Array, reset_optimizer: bool
) -> AgentState:
    """Agents take over `params` [policies] where `which` is true; the others stay as they are."""
    new = jax.vmap(lambda state, params: agent.adopt(state, params, reset_optimizer))(old, params)

    def pick(new: Array, was: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (was.ndim - 1)), new, was)

    return jax.tree.map(pick, new, old)


def passes_gate(big: np.ndarray, agents: np.ndarray, gate: float) -> np.ndarray:
    """Whose BigAgent is good enough to be cloned: bool[members].

    A BigAgent fails if its mean return is more than `gate` standard errors of the difference below
    its agents' (0: none fails). big[members, episodes] and agents[members, agents, episodes] are
    returns of episodes that start alike but are played independently.
    """
    if not gate:
        return np.ones(len(big), bool)
    others = agents.mean(1)  # the agents' mean in each episode
    number = big.shape[1]
    error = np.sqrt((big.var(1) + others.var(1)) / max(1, number - 1))
    return big.mean(1) >= others.mean(1) - gate * error


def replacements(bad: np.ndarray, agents: int) -> np.ndarray:
    """For every diverged policy the next healthy one of its member: int[policies].

    A healthy policy maps to itself; -1 where a member has no healthy policy left.
    """
    who = np.arange(len(bad))
    for policy in np.flatnonzero(bad):
        member, own = divmod(int(policy), agents)
        others = [member * agents + (own + i) % agents for i in range(1, agents)]
        who[policy] = next((other for other in others if not bad[other]), -1)
    return who
