"""An environment examined before any training: played at random, asked twice, asked directly.

`examine_env(make_env("minatar/breakout"))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import Env, VectorEnv, action_of, any_action
from ..errors import MillpondError
from ..rows import BORDER, Array, Rows
from .counterfactual_checks import counterfactual
from .env_play import Game, played, sizes_for
from .play import Play
from .play_checks import examined
from .row_models import pairs
from .timing_checks import effect, late_reward
from .verdict import Verdict, green, red, unknown, worst_first, yellow

_SEED = 7
_FRESH = 256  # resets to compare with
_SURE = 7.0  # standard errors, in each of some thousand features


def fresh(world: Any, number: int = _FRESH) -> np.ndarray:
    """What agents see right after a reset, asked from the env itself: [number, agents, ...]."""
    if isinstance(world, Env):

        def begin(key: jax.Array) -> Array:
            return world.observe(world.reset(key))

        keys = jax.random.split(jax.random.key(_SEED + 1), number)
        return np.asarray(jax.jit(jax.vmap(begin))(keys))
    vector = world.vector(min(number, 32), _SEED + 1)
    try:
        return np.moveaxis(np.asarray(vector.obs), 0, 1).copy()
    finally:
        vector.close()


def fresh_starts(game: Play, begun: np.ndarray) -> Verdict:
    """Episodes that follow an end begin as those after a reset do."""
    name = "env-fresh-start"
    flat = begun.reshape(len(begun) * begun.shape[1], -1).astype(np.float64)
    later = game.first.copy()
    later[0] = False  # that was the reset itself
    # Envs that are copies begin one episode, not many: each way to begin counts once per turn.
    number = len(np.unique(np.stack([np.nonzero(later)[0], game.hashes[later]]), axis=1).T)
    every = -(-flat.shape[1] // 4096)
    flat, seen = flat[:, ::every], game.seen[later].astype(np.float64)
    if number < 16 or flat.shape[1] != seen.shape[1]:
        return unknown(name, f"{number} episodes began after an end: too few to compare")
    # Agents of one env and envs that end together are not independent: count each env once.
    each = max(1, begun.shape[1])
    error = np.sqrt(flat.var(0) / (len(flat) / each) + seen.var(0) / max(1.0, number / each))
    gap = np.abs(flat.mean(0) - seen.mean(0))
    wide = np.maximum(np.sqrt(flat.var(0) + seen.var(0)), 1e-6)
    off = (gap > _SURE * error) & (gap > 0.25 * wide)
    numbers = dict(episodes=number, resets=len(begun), features=int(off.sum()))
    if off.any():
        worst = int(np.argmax(np.where(off, gap / np.maximum(error, 1e-9), 0)))
        if len(begun) >= 8 and (begun == begun[:1]).all():
            return red(
                name,
                f"all {len(begun)} resets by different seeds begin alike, later episodes in "
                f"{len(np.unique(game.hashes[later]))} ways: the seed is ignored, and all envs "
                "play the same episodes",
                "make the random numbers in reset(seed), from that seed",
                **numbers,
            )
        return red(
            name,
            f"episodes after the first begin otherwise than after a reset: {off.sum()} of "
            f"{len(off)} numbers differ (number {worst}: {seen[:, worst].mean():.3g} for "
            f"{flat[:, worst].mean():.3g})",
            "let reset build the whole state again; VectorEnv calls it after each border",
            **numbers,
        )
    return green(name, f"{number:,} later episodes begin as {len(begun)} resets do", **numbers)


def shared_chance(game: Play, begun: np.ndarray) -> Verdict:
    """Envs beside each other begin as differently as separate resets do."""
    name = "env-seeds"
    each = [row.tobytes() for row in begun.astype(np.float64).reshape(len(begun), -1)]
    most = max(each.count(one) for one in set(each)) / len(each)
    worst = 0
    for policy in range(int(game.policy.max()) + 1):
        start = game.hashes[0, game.of_policy(policy)]
        worst = max(worst, int(np.unique(start, return_counts=True)[1].max()))
    envs = len(game.of_policy(0))
    numbers = dict(envs=envs, alike=worst, most_common=round(most, 3))
    if worst == envs and envs >= 4 and most < 1 and most ** (envs - 1) < 1e-6:
        return red(
            name,
            f"all {envs} envs begin alike; separate resets begin in {len(set(each))} ways",
            "give every env a key or seed of its own",
            **numbers,
        )
    if most == 1 and len(begun) >= 8 and _looks_drawn(begun[0]):
        some = ", ".join(f"{number:.4g}" for number in np.ravel(begun[0])[:4])
        return yellow(
            name,
            f"{len(begun)} resets by different seeds all begin alike, with numbers that look drawn "
            f"at random ({some}): the seed is ignored or always the same",
            "draw the first state from the seed that reset is given; if the task has one fixed "
            "beginning, all is well",
            **numbers,
        )
    ways = len(set(each))
    told = f"{len(begun)} resets begin in {ways} ways" if ways > 1 else "every reset begins alike"
    return green(name, f"{envs} envs; {told}", **numbers)


def _looks_drawn(begun: np.ndarray) -> bool:
    """Whether numbers have more digits than people write: a fixed beginning has round ones."""
    values = np.unique(np.ravel(begun).astype(np.float64))
    values = values[(values != 0) & np.isfinite(values)]
    if begun.dtype.kind != "f" or len(values) < 2:
        return False
    long = np.abs(values - np.array([float(f"{value:.3g}") for value in values])) > 1e-6 * np.abs(
        values
    )
    return bool(long.mean() > 0.5)


def _apart(one: Array, other: Array) -> Array:
    """Where numbers differ by more than two programs that compute the same may differ."""
    if one.dtype.kind != "f":
        return one != other
    return ~jnp.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def own_step(world: Env, state: Any, seed: int = _SEED + 3) -> Verdict:
    """What `VectorEnv` makes of a turn against what the env itself answers: the same numbers."""
    name, number = "env-rows", len(np.asarray(state.flags))
    vector, field = VectorEnv(world, number), action_of(world)

    @jax.jit
    def both(state: Any, key: jax.Array) -> tuple[Any, dict[str, Array]]:
        acting, stepping = jax.random.split(key)
        action = any_action(field, acting, (world.num_agents, number))
        after, rows = vector.step(state, action, stepping)
        keys = jax.random.split(jax.random.split(stepping)[0], number)
        inner, outcome = jax.vmap(world.step, (0, 1, 0))(state.inner, action, keys)
        seen = jnp.moveaxis(jax.vmap(world.observe)(inner), 0, 1)
        inside = (state.flags & BORDER) == 0
        wide = inside[None]
        ahead = inside.reshape(1, -1, *(1,) * (seen.ndim - 2))
        acted = (rows.action != action) & wide.reshape(1, -1, *(1,) * (action.ndim - 2))
        wrong = {
            "rewards": _apart(rows.reward, outcome.reward.astype(np.float32).T) & wide,
            "ends": (rows.terminated != outcome.terminated) & wide
            | (rows.truncated != outcome.truncated) & wide,
            "observations": (_apart(after.obs, seen) & ahead) | (rows.obs != state.obs),
            "actions": acted,
        }
        return after, {what: wrong[what].mean() for what in wrong}

    off: dict[str, float] = {}
    turns = 24
    for turn in range(turns):
        state, wrong = both(state, jax.random.key(seed + turn))
        for what, share in wrong.items():
            off[what] = off.get(what, 0.0) + float(share) / turns
    bad = {what: round(share, 4) for what, share in off.items() if share > 0}
    if bad:
        told = ", ".join(f"{what} in {share:.1%}" for what, share in bad.items())
        message = f"rows are not what the env answers: {told} of the rows differ"
        remedy = "what stands between env and rows changes them: look at VectorEnv and wrappers"
        return red(name, message, remedy, **bad)
    return green(name, f"{turns * number} turns asked from the env directly: the same", turns=turns)


def determinism(first: Rows, second: Rows) -> Verdict:
    """The same seed and the same actions give the same rows."""
    name = "env-determinism"
    equal = [
        np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    ]
    if all(equal):
        return green(name, f"{len(np.asarray(first.reward)):,} turns twice: the same rows")
    return yellow(
        name,
        "the same seed and actions gave other rows",
        "draw all chance from the key or seed that the env is given; else no run can be repeated",
    )


def speed(game: Game) -> Verdict:
    """How fast it is stepped; a number, not a fault."""
    steps = game.play.steps
    rate = steps / max(game.seconds, 1e-9)
    return green(
        "env-speed", f"{rate:,.0f} steps/s in {game.rows.reward.shape[-1]} envs", steps=steps
    )


def examine_env(world: Any, told: Callable[[str], None] = lambda text: None) -> list[Verdict]:
    """Every check of an environment, worst first; takes some seconds.

    `examine_env(make_env("gym:CartPole-v1"))`.
    """
    envs, turns = sizes_for(world)
    told(f"{envs} envs, {turns} turns at random, twice")
    try:
        game = played(world, envs, turns)
        again = played(world, envs, turns)
    except MillpondError as error:
        return [red("env-rows", f"the env was refused: {error}", "mend what the error names")]
    begun = fresh(world)
    found = [*examined(game.play), fresh_starts(game.play, begun), shared_chance(game.play, begun)]
    related = pairs(game.play)
    found.append(late_reward(game.play, related))
    delayed = effect(game.play, related)
    if isinstance(world, Env):
        exact, paid, *others = counterfactual(world, game.states)
        found.append(exact if exact.fired or not delayed.fired else delayed)
        if paid.fired and not any(one.fired for one in found if one.name == paid.name):
            found = [one for one in found if one.name != paid.name] + [paid]
        found += others
        found.append(own_step(world, game.state))
    else:
        found.append(delayed)
    found += [determinism(game.rows, again.rows), speed(again)]
    return worst_first(found)
