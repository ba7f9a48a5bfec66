"""The same state under every action, and again with other random numbers: what decides?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import action_of, any_action, is_real
from ..rows import BORDER, Array
from .verdict import Verdict, green, red, unknown, yellow

_SEED = 9
_CHANCES = 8  # random numbers that are tried in every state, with every action


def counterfactual(world: Any, state: Any) -> list[Verdict]:
    """Of envs in JAX: whether another action leads elsewhere, and whether chance alone is paid."""
    here = (np.asarray(state.flags) & BORDER) == 0
    if not here.any():
        why = "all envs stand at the end of an episode"
        return [unknown("action-effect", why), unknown("env-rewards", why)]
    seen, paid = _outcomes(world, state, here)
    return [_effect(seen, paid), _luck(paid)]


def _outcomes(world: Any, state: Any, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is seen and paid next: [actions, chances, states, numbers] each."""
    field, agents = action_of(world), world.num_agents
    if is_real(field):
        choices = any_action(field, jax.random.key(_SEED), (4,))
    else:
        choices = jnp.arange(int(field.high) + 1)

    def after(action: Array, key: jax.Array) -> tuple[Array, Array]:
        def one(inner: Any, key: jax.Array) -> tuple[Array, Array]:
            both = jnp.broadcast_to(action, (agents, *field.shape)).astype(field.dtype)
            new, outcome = world.step(inner, both, key)
            return world.observe(new), outcome.reward

        return jax.vmap(one)(state.inner, jax.random.split(key, len(here)))

    each_chance = jax.vmap(after, (None, 0))
    program = jax.jit(jax.vmap(each_chance, (0, None)))
    seen, paid = program(choices, jax.random.split(jax.random.key(_SEED + 1), _CHANCES))
    lead = (len(choices), _CHANCES, len(here))
    flat = [np.asarray(leaf).reshape(*lead, -1)[:, :, here] for leaf in (seen, paid)]
    return flat[0].astype(np.float64), flat[1].astype(np.float64)


def _effect(seen: np.ndarray, paid: np.ndarray) -> Verdict:
    """With the same chance: does another action lead elsewhere?"""
    name = "action-effect"
    both = np.concatenate([seen[:, 0], paid[:, 0]], -1)  # [actions, states, numbers]
    apart = np.array([[(a != b).any(-1).mean() for b in both] for a in both])
    numbers: dict[str, Any] = dict(states=both.shape[1], actions=len(both))
    numbers |= dict(differ=round(float(apart.max()), 3))
    if apart.max() == 0:
        message = f"none of the {len(both)} actions makes a difference, in {both.shape[1]} states"
        return red(name, message, "look at step: does it use the action it is given?", **numbers)
    alike = [(i, j) for i in range(len(both)) for j in range(i) if apart[i, j] == 0]
    numbers |= dict(alike=alike)
    if len(both) > 2 and len({action for pair in alike for action in pair}) == len(both):
        kinds = len(both) - len({max(pair) for pair in alike})
        return yellow(
            name,
            f"every action does in all {both.shape[1]} states what another does: {len(both)} "
            f"actions are {kinds} (such as {alike[0][0]} and {alike[0][1]})",
            "look at what step does with the action's number: a modulo, a bound, a table",
            **numbers,
        )
    dead = f"; {len(alike)} pairs of actions do the same" if alike else ""
    return green(
        name,
        f"another action leads elsewhere in up to {apart.max():.0%} of the states{dead}",
        **numbers,
    )


def _luck(paid: np.ndarray) -> Verdict:
    """Of the variance of rewards, what is left between equal actions in equal states."""
    name = "env-rewards"
    whole, luck = float(paid.var((0, 1, 2)).mean()), float(paid.var(1).mean())
    if whole < 1e-9:
        return green(name, "no reward varies in these states")
    share = luck / whole
    if share > 0.8:
        return yellow(
            name,
            f"{share:.0%} of the variance of rewards is chance alone: the same action in the same "
            "state, with other random numbers",
            "if the task is not a gamble, look at what adds noise to rewards; else average more: "
            "a larger batch, a lower learning rate",
            by_chance=round(share, 3), spread=round(float(np.sqrt(luck)), 4),
        )  # fmt: skip
    return green(name, f"{share:.0%} of the variance of rewards is chance", by_chance=share)
