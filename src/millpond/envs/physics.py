"""`Physics`: what Brax and MuJoCo Playground have in common: one way to reset, step and end."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field
from .env import Outcome, PlainFacts

_STATES = 2**16  # initial states that are kept, at most


class PhysicsState(NamedTuple):
    """One episode between two turns: the simulator's own state, and the steps played."""

    inner: Any
    turn: Array  # int32, counted as the simulator's own wrapper does: with `action_repeat`


@dataclass(frozen=True)
class Physics(PlainFacts):
    """An env with `reset(key)` and `step(state, action)` whose states have obs, reward and done.

    Every action is repeated `action_repeat` times and the rewards are added up. After
    `episode_length` of those steps an episode is truncated; `done` before that terminates it.
    With `starts` = 0 every episode begins in its own state. To compute it can cost more than
    the step; with `starts` = n there are n of them, the same in every run, and each episode begins
    in any one. (Brax's own auto-reset gives every env the one that it began with.)
    `class Mine(Physics)` adds `name`, `game` and `picture`.
    """

    id: str
    episode_length: int = 1000
    action_repeat: int = 1
    starts: int = 0

    def __post_init__(self) -> None:
        for setting, least in (("episode_length", 1), ("action_repeat", 1), ("starts", 0)):
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadConfig(
                    f"{self.name}: {setting} must be a whole number of at least {least}, "
                    f"got {value!r}"
                )
        if self.starts > _STATES:
            raise BadConfig(
                f"{self.name}: at most {_STATES} starts can be kept, got {self.starts}; "
                "0 computes a new one for every episode"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """Such as `brax:hopper`."""

    @abstractmethod
    def game(self) -> Any:
        """The simulator's env, without any wrapper; called often, so it should be cached."""

    @abstractmethod
    def picture(self, inner: Any) -> np.ndarray:
        """Host: uint8[height, width, 3] of one of its states."""

    def see(self, obs: Any) -> Array:
        """The array that is observed, of what the simulator gives."""
        return obs

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def action(self) -> Field:
        """Every joint from -1 to 1, as the simulator's own trainers act."""
        return Field("float32", (int(self.game().action_size),), -1, 1)

    @property
    def observation(self) -> Field:
        """One vector."""
        return _observation(self)

    def reset(self, key: jax.Array) -> PhysicsState:
        """A fresh episode."""
        if not self.starts:
            return PhysicsState(self.game().reset(key), jnp.int32(0))
        number = jax.random.randint(key, (), 0, self.starts)
        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], _starts(self))
        return PhysicsState(inner, jnp.int32(0))

    def step(
        self, state: PhysicsState, action: Array, key: jax.Array
    ) -> tuple[PhysicsState, Outcome]:
        """One turn under float32[1, n]. The simulator's chance is in its own state, not in `key`"""
        game = self.game()

        def once(inner: Any, _: None) -> tuple[Any, Array]:
            # Brax writes into the dicts of the state that it is given: it gets copies of them.
            after = game.step(jax.tree.map(lambda leaf: leaf, inner), action[0])
            # A literal reward has another type than that of the state before: loops refuse it.
            same = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, inner)
            return same, same.reward

        inner, reward = jax.lax.scan(once, state.inner, None, self.action_repeat)
        turn = state.turn + self.action_repeat
        terminated = inner.done > 0
        late = (turn >= self.episode_length) & ~terminated
        return PhysicsState(inner, turn), Outcome(reward.sum()[None], terminated, late)

    def observe(self, state: PhysicsState) -> Array:
        """float32[1, n]; at the end of an episode this is the true final observation."""
        return self.see(state.inner.obs).astype(np.float32)[None]

    def render(self, state: PhysicsState) -> np.ndarray:
        """Host: a picture by MuJoCo's renderer; where it cannot draw, BadConfig says so."""
        try:
            return np.asarray(self.picture(state.inner))
        except Exception as error:  # no display, no library for one: of many kinds
            raise BadConfig(
                f"{self.name}: MuJoCo could not draw it: {error}. It needs OpenGL: install EGL "
                "or OSMesa and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
            ) from error


@lru_cache(maxsize=64)
def _observation(env: Physics) -> Field:
    key = jax.eval_shape(lambda: jax.random.key(0))
    seen: Any = jax.eval_shape(lambda key: env.see(env.game().reset(key).obs), key)
    return Field("float32", seen.shape)


@lru_cache(maxsize=8)
def _starts(env: Physics) -> Any:
    """The states that episodes may begin in: [starts, ...], on the host."""
    with jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), env.starts)
        return jax.device_get(jax.jit(jax.vmap(env.game().reset))(keys))
