"""The same state under every action, and again with other random numbers: what decides?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import action_of, any_action, is_real, spec_of
from ..rows import BORDER, Array
from .verdict import Verdict, green, red, suspicious, unknown, yellow

_SEED = 9
_OUTCOMES = 4_000_000  # numbers observed after all actions, at most
_LEVELS, _NUMBERS = 9, 8  # of a real action: values that are tried, and numbers of the vector
_AHEAD = 12  # turns in which nothing may change where a state cannot be left
_CHANCES = 8  # random numbers that are tried in every state, with every action


def counterfactual(world: Any, state: Any) -> list[Verdict]:
    """Of envs in JAX: whether another action leads elsewhere, and whether chance alone is paid."""
    state = _some(world, state)
    here = (np.asarray(state.flags) & BORDER) == 0
    if not here.any():
        why = "all envs stand at the end of an episode"
        return [unknown("action-effect", why), unknown("env-rewards", why)]
    seen, paid, stays = _outcomes(world, state, here)
    stuck = np.asarray(stays.all((0, 1)))
    if stuck.sum() >= _stuck_share(stuck) and not stuck.all():
        stuck &= _stand_still(world, state)[here]  # what moves slowly does not move in every turn
    found = [_effect(seen, paid), _luck(paid), _left(seen, paid, stuck)]
    return [*found, *_ranges(world, state, here)]


def _some(world: Any, state: Any) -> Any:
    """Of the states as many, evenly taken, as can be looked at under every action."""
    field = action_of(world)
    choices = max(_LEVELS * _NUMBERS, 1) if is_real(field) else int(field.high) + 1
    each = sum(one.size for one in spec_of(world).columns.values()) * world.num_agents
    number = len(np.asarray(state.flags))
    every = -(-number // max(16, _OUTCOMES // (each * choices * _CHANCES)))
    return jax.tree.map(lambda leaf: leaf[::every], state)


def _outcomes(world: Any, state: Any, here: np.ndarray) -> tuple[np.ndarray, ...]:
    """What is seen and paid next, and whether all is as it was: [actions, chances, states, ...]."""
    field = action_of(world)
    if is_real(field):
        choices = any_action(field, jax.random.key(_SEED), (4,))
    else:
        choices = jnp.arange(int(field.high) + 1)
    found = _after(world, state, choices, _CHANCES)
    seen, paid, over, states = (leaf[:, :, here] for leaf in found)
    now = np.asarray(jax.vmap(world.observe)(state.inner)).reshape(len(here), -1)[here]
    # A corridor may look the same everywhere: the state itself must not depend on the action.
    same = (states == states[:1])[..., 0]
    stays = (seen == now).all(-1) & ~over[..., 0].astype(bool) & same
    return seen, paid, stays


def _after(world: Any, state: Any, choices: Array, chances: int) -> tuple[np.ndarray, ...]:
    """Observations, rewards and ends after each action: float64[actions, chances, envs, numbers]"""
    field, agents, envs = action_of(world), world.num_agents, len(np.asarray(state.flags))

    def after(action: Array, key: jax.Array) -> tuple[Array, ...]:
        def one(inner: Any, key: jax.Array) -> tuple[Array, ...]:
            both = jnp.broadcast_to(action, (agents, *field.shape)).astype(field.dtype)
            new, outcome = world.step(inner, both, key)
            over = outcome.terminated | outcome.truncated
            return world.observe(new), outcome.reward, over, _digest(new)

        return jax.vmap(one)(state.inner, jax.random.split(key, envs))

    each_chance = jax.vmap(after, (None, 0))
    program = jax.jit(jax.vmap(each_chance, (0, None)))
    found = program(choices, jax.random.split(jax.random.key(_SEED + 1), chances))
    lead = (len(choices), chances, envs)
    return tuple(np.asarray(leaf, np.float64).reshape(*lead, -1) for leaf in found)


def _digest(state: Any) -> Array:
    """One number for all of a state: equal for equal ones."""
    total = jnp.zeros((), np.float32)
    for number, leaf in enumerate(jax.tree.leaves(state)):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        flat = jnp.ravel(leaf).astype(np.float32)
        total += flat @ jax.random.normal(jax.random.key(number), flat.shape)
    return total


def _stuck_share(stuck: np.ndarray) -> float:
    """How many states that cannot be left are too many."""
    return max(3, 0.05 * len(stuck))


def _stand_still(world: Any, state: Any) -> np.ndarray:
    """Whether nothing that is seen changes in the next turns at random: bool[states]."""
    field, agents = action_of(world), world.num_agents

    def one(inner: Any, key: jax.Array) -> tuple[Array, Array]:
        first = world.observe(inner)

        def turn(carry: Any, key: jax.Array) -> Any:
            inner, over = carry
            new, outcome = world.step(inner, any_action(field, key, (agents,)), key)
            same = (world.observe(new) == first).all() | over
            over = over | outcome.terminated | outcome.truncated
            return (new, over), (same, ~over)

        keys = jax.random.split(key, _AHEAD)
        same, going = jax.lax.scan(turn, (inner, jnp.zeros((), bool)), keys)[1]
        return same.all(), going.sum()

    keys = jax.random.split(jax.random.key(_SEED + 2), len(np.asarray(state.flags)))
    same, turns = jax.jit(jax.vmap(one))(state.inner, keys)
    return np.asarray(same) & (np.asarray(turns) >= 3)


def _left(seen: np.ndarray, paid: np.ndarray, stuck: np.ndarray) -> Verdict:
    """Of states in which nothing changes any more, whatever is done: an end that is missing."""
    name = "env-dead-ends"
    paid_there = float(np.abs(paid[:, :, stuck]).max(initial=0))
    numbers = dict(states=seen.shape[2], stuck=int(stuck.sum()), paid=paid_there)
    if stuck.all() or stuck.sum() < _stuck_share(stuck):  # all: see env-observations
        return green(name, f"of {len(stuck)} states {stuck.sum()} cannot be left", **numbers)
    pays = f" and pays {paid_there:.3g} in every step" if paid_there else ""
    return yellow(
        name,
        f"{stuck.sum()} of {len(stuck)} states cannot be left by any action, yet the episode goes "
        f"on{pays}: an end seems to be missing there",
        "set terminated where the goal is reached or the world has ended",
        **numbers,
    )


def _ranges(world: Any, state: Any, here: np.ndarray) -> list[Verdict]:
    """Of actions that are real vectors: whether the whole range of each number has an effect."""
    field, name = action_of(world), "action-range"
    if not is_real(field) or field.low is None or field.high is None or len(field.shape) != 1:
        return []
    low, high = (np.broadcast_to(np.asarray(x, np.float64), field.shape) for x in
                 (field.low, field.high))  # fmt: skip
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return []
    size = min(field.shape[0], _NUMBERS)
    levels = np.linspace(0.0, 1.0, _LEVELS)
    middle = np.broadcast_to((low + high) / 2, (size, _LEVELS, *field.shape)).copy()
    for number in range(size):
        middle[number, :, number] = low[number] + levels * (high - low)[number]
    seen, paid, *_ = _after(world, state, jnp.asarray(middle.reshape(-1, *field.shape)), 1)
    both = np.concatenate([seen, paid], -1)[:, 0][:, here].reshape(size, _LEVELS, here.sum(), -1)
    same = (np.diff(both, axis=1) == 0).all((-1, -2))  # [numbers, gaps between levels]
    dead = same.mean(1)
    worst = int(np.argmax(dead))
    numbers = dict(number=worst, without_effect=round(float(dead[worst]), 3))
    if same[worst].all() or dead[worst] < 0.3:
        without = int((dead == 1).sum())
        told = f"; {without} of {size} numbers have none" if without else ""
        found = green(name, f"the range of actions has an effect{told}", **numbers)
        return [found if not without else suspicious(
            found, f"{without} of the {size} numbers of an action have no effect at all",
            "look at which numbers of the action step uses")]  # fmt: skip
    gaps = np.nonzero(same[worst])[0]
    ends = low[worst] + np.array([levels[gaps[0]], levels[gaps[-1] + 1]]) * (high - low)[worst]
    return [
        yellow(
            name,
            f"number {worst} of the action does the same everywhere from {ends[0]:.3g} to "
            f"{ends[1]:.3g}, {dead[worst]:.0%} of its range ({low[worst]:g} to {high[worst]:g})",
            "look at what clips or rescales actions before step uses them",
            **numbers,
        )
    ]


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
    found = green(
        name, f"another action leads elsewhere in up to {apart.max():.0%} of the states", **numbers
    )
    if not alike:
        return found
    pairs = " and ".join(f"{j} and {i}" for i, j in alike[:3])
    kinds = len(both) - len({max(pair) for pair in alike})
    return suspicious(
        found._replace(message=f"{found.message}; {len(alike)} pairs of actions do the same"),
        f"actions {pairs} do the same in all {both.shape[1]} states: {len(both)} actions are "
        f"{kinds}",
        "if these are not spare buttons of a game, look at what step does with the action's "
        "number: a modulo, a bound, a table",
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
