"""Bugs to plant in environments and in what stands around them; see `sabotage`.

Each function gives a context in which this process's code is another one.
"""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import EnvState, VectorEnv
from ..envs import vector as vector_module
from ..envs.env import Outcome
from ..envs.pendulum import Pendulum
from ..envs.treasurehunt import Treasurehunt
from ..rows import Array
from ..train import evaluate
from .sabotage import patched


def changed_step(change: Callable[[Outcome], Outcome]) -> Any:
    """Let what the env's own step says go through `change`."""
    step = Treasurehunt.step

    def other(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        state, outcome = step(env, state, action, key)
        return state, change(outcome)

    return patched(Treasurehunt, "step", other)


def constant_reward() -> Any:
    """Every step is worth the same."""
    return changed_step(lambda o: o._replace(reward=jnp.ones_like(o.reward)))


def no_reward() -> Any:
    """Nothing is ever worth anything."""
    return changed_step(lambda o: o._replace(reward=jnp.zeros_like(o.reward)))


def not_a_number() -> Any:
    """A reward of 10 is infinite."""
    return changed_step(lambda o: o._replace(reward=jnp.where(o.reward >= 10, jnp.inf, o.reward)))


def clock_terminates() -> Any:
    """The clock's end is called a termination."""
    return changed_step(lambda o: Outcome(o.reward, o.truncated, o.terminated))


def actions_ignored() -> Any:
    """Whatever is done, all go up."""
    step = Treasurehunt.step
    return patched(
        Treasurehunt, "step", lambda env, state, action, key: step(env, state, action * 0, key)
    )


def actions_are_twins() -> Any:
    """Actions 2 and 3 do what 0 and 1 do."""
    step = Treasurehunt.step
    return patched(
        Treasurehunt, "step", lambda env, state, action, key: step(env, state, action % 2, key)
    )


def nothing_seen() -> Any:
    """What is observed never changes."""
    observe = Treasurehunt.observe
    return patched(Treasurehunt, "observe", lambda env, state: observe(env, state) & False)


@contextlib.contextmanager
def one_turn_late(reward: bool) -> Generator[None]:
    """Rewards, or else observations, are those of the turn before."""
    reset, step, observe = Treasurehunt.reset, Treasurehunt.step, Treasurehunt.observe

    def begin(env: Treasurehunt, key: jax.Array) -> Any:
        state = reset(env, key)
        return state, jnp.zeros(env.agents), observe(env, state)

    def go(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        inner, before, _ = state
        after, outcome = step(env, inner, action, key)
        late = outcome._replace(reward=before) if reward else outcome
        return (after, outcome.reward, observe(env, inner)), late

    def see(env: Treasurehunt, state: Any) -> Array:
        return observe(env, state[0]) if reward else state[2]

    with (
        patched(Treasurehunt, "reset", begin),
        patched(Treasurehunt, "step", go),
        patched(Treasurehunt, "observe", see),
    ):
        yield


def late_rewards() -> Any:
    """Rewards come one turn late."""
    return one_turn_late(True)


def late_observations() -> Any:
    """Observations come one turn late."""
    return one_turn_late(False)


def one_key_for_all() -> Any:
    """All envs begin with the same key."""

    def reset(envs: VectorEnv, key: jax.Array) -> EnvState:
        inner = jax.vmap(envs.env.reset)(jnp.repeat(key[None], envs.num_envs, 0))
        return EnvState(inner, envs._observe(inner), jnp.full(envs.num_envs, 1, np.uint8))

    return patched(VectorEnv, "reset", reset)


def never_reset() -> Any:
    """Behind an end the same world goes on."""
    return patched(vector_module, "_where", lambda which, new, old: old)


def half_reset() -> Any:
    """A new episode begins on the old board: what lay there lies there still."""

    def keep(which: Array, new: Any, old: Any) -> Any:
        def pick(a: Array, b: Array) -> Array:
            return jnp.where(which.reshape(-1, *(1,) * (b.ndim - 1)), a, b)

        return new._replace(turn=pick(new.turn, old.turn), board=old.board, places=old.places)

    return patched(vector_module, "_where", keep)


def _changed_rows(change: Callable[[Any], Any]) -> Any:
    step = VectorEnv.step

    def other(envs: VectorEnv, state: Any, action: Array, key: jax.Array) -> tuple[Any, Any]:
        state, rows = step(envs, state, action, key)
        return state, change(rows)

    return patched(VectorEnv, "step", other)


def negated_rewards() -> Any:
    """Rows hold rewards with the other sign."""
    return _changed_rows(lambda rows: rows._replace(reward=-rows.reward))


def bounded_rewards() -> Any:
    """Rows hold rewards bounded by 1, which nobody asked for."""
    return _changed_rows(lambda rows: rows._replace(reward=jnp.clip(rows.reward, -1, 1)))


def swapped_ends() -> Any:
    """Rows hold truncated for terminated, and back."""
    return _changed_rows(
        lambda rows: rows._replace(terminated=rows.truncated, truncated=rows.terminated)
    )


def another_action_stored() -> Any:
    """Rows hold the next action, not the one that was played."""
    return _changed_rows(lambda rows: rows._replace(action=(rows.action + 1) % 4))


def another_agent_seen() -> Any:
    """Agents see what others see."""
    observe = VectorEnv._observe
    return patched(VectorEnv, "_observe", lambda envs, inner: observe(envs, inner)[::-1])


def easier_evaluation() -> Any:
    """Evaluation's envs give three times the reward."""

    class Kind(VectorEnv):
        def step(self, state: Any, action: Array, key: jax.Array) -> tuple[Any, Any]:
            state, rows = super().step(state, action, key)
            return state, rows._replace(reward=rows.reward * 3)

    return patched(evaluate, "VectorEnv", Kind)


def rewards_flipped() -> Any:
    """What is good costs, and what is bad is paid."""
    return changed_step(lambda o: o._replace(reward=-o.reward))


def paid_for_standing_still() -> Any:
    """Whoever finds a gem is paid for it in every turn from then on, and nothing moves any more."""
    step = Treasurehunt.step

    def other(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        there = (state.turn > 2) & ((state.places % 7) == 3).any()
        after, outcome = step(env, state, action, key)
        frozen = state._replace(turn=after.turn)
        after = jax.tree.map(lambda old, new: jnp.where(there, old, new), frozen, after)
        return after, outcome._replace(reward=jnp.where(there, 1.0, outcome.reward))

    return patched(Treasurehunt, "step", other)


def seen_in_tiny_numbers() -> Any:
    """What is observed is divided by 100,000."""
    right = Pendulum.observe
    return patched(Pendulum, "observe", lambda env, state: right(env, state) * 1e-5)


def one_number_in_millions() -> Any:
    """One number of what is observed is a million times as large as the others."""
    right = Pendulum.observe

    def other(env: Pendulum, state: Any) -> Array:
        return right(env, state) * jnp.asarray([1.0, 1.0, 1e6], np.float32)

    return patched(Pendulum, "observe", other)


def a_number_is_masked() -> Any:
    """One number of what is observed is always 0."""
    right = Pendulum.observe

    def other(env: Pendulum, state: Any) -> Array:
        return right(env, state) * jnp.asarray([1.0, 1.0, 0.0], np.float32)

    return patched(Pendulum, "observe", other)


def half_of_the_range() -> Any:
    """Torques below 0 count as 0."""
    right = Pendulum.step

    def other(env: Pendulum, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        return right(env, state, jnp.maximum(action, 0), key)

    return patched(Pendulum, "step", other)
