"""`Physics`: what Brax and MuJoCo Playground envs share: reset, step and episode ends."""

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

_STATES = 2**16  # most initial states that are kept


class PhysicsState(NamedTuple):
    """The state of an episode between two turns: the simulator's state and the steps played."""

    inner: Any
    turn: Array  # int32: simulator steps, `action_repeat` per turn, as its own wrapper counts


@dataclass(frozen=True)
class Physics(PlainFacts):
    """An env with `reset(key)` and `step(state, action)` whose states have obs, reward and done.

    Every action is repeated `action_repeat` times and the rewards are summed. After
    `episode_length` simulator steps an episode is truncated; `done` before that terminates it.
    With `starts` 0 every episode begins in a newly computed state, which can cost more than a step.
    With `starts` n, n states are computed once, the same in every run, and each episode begins in a
    random one. (Brax's own autoreset returns each env to the state in which it began.)
    `class Mine(Physics)` adds `name`, `game` and `picture`.
    """

    id: str  # the simulator's name of the env
    episode_length: int = 1000  # simulator steps after which an episode is truncated
    action_repeat: int = 1  # simulator steps per action
    starts: int = 0  # number of precomputed initial states; 0: compute one per episode

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
                f"{self.name}: starts must be at most {_STATES}, got {self.starts}; "
                "0 computes a new state for every episode"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """The env's name, such as `brax:hopper`."""

    @abstractmethod
    def game(self) -> Any:
        """The simulator's env, without wrappers; called often, so it should be cached."""

    @abstractmethod
    def picture(self, inner: Any) -> np.ndarray:
        """Host: a picture of one of its states, uint8[height, width, 3]."""

    def see(self, obs: Any) -> Array:
        """The observed array, from the simulator's `obs`."""
        return obs

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def action(self) -> Field:
        """Every actuator from -1 to 1, as in the simulator's own trainers."""
        return Field("float32", (int(self.game().action_size),), -1, 1)

    @property
    def observation(self) -> Field:
        """One vector."""
        return _observation(self)

    def reset(self, key: jax.Array) -> PhysicsState:
        """A new episode."""
        if not self.starts:
            return PhysicsState(self.game().reset(key), jnp.int32(0))
        number = jax.random.randint(key, (), 0, self.starts)
        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], _starts(self))
        return PhysicsState(inner, jnp.int32(0))

    def step(
        self, state: PhysicsState, action: Array, key: jax.Array
    ) -> tuple[PhysicsState, Outcome]:
        """One turn with action float32[1, n]; the simulator's own state holds its random key."""
        game = self.game()

        def once(inner: Any, _: None) -> tuple[Any, Array]:
            # Brax writes into the dicts of the state it is given, so it gets copies.
            after = game.step(jax.tree.map(lambda leaf: leaf, inner), action[0])
            # A literal reward has another type than before, which scan refuses.
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
        """Host: a picture by MuJoCo's renderer; BadConfig if it cannot draw here."""
        try:
            return np.asarray(self.picture(state.inner))
        except Exception as error:  # many kinds: no display, no OpenGL library, ...
            raise BadConfig(
                f"{self.name}: MuJoCo could not render it: {error}. It needs OpenGL: install EGL "
                "or OSMesa and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
            ) from error


@lru_cache(maxsize=64)
def _observation(env: Physics) -> Field:
    key = jax.eval_shape(lambda: jax.random.key(0))
    seen: Any = jax.eval_shape(lambda key: env.see(env.game().reset(key).obs), key)
    return Field("float32", seen.shape)


@lru_cache(maxsize=8)
def _starts(env: Physics) -> Any:
    """The precomputed initial states: [starts, ...], on the host."""
    with jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), env.starts)
        return jax.device_get(jax.jit(jax.vmap(env.game().reset))(keys))
