"""`Gymnax`: the envs of gymnax as pure functions, for use inside jit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..config import nearest
from ..errors import BadConfig
from ..extras import import_extra
from ..rows import Array
from ..spec import Field
from .actions import is_real
from .env import Outcome, PlainFacts
from .minatar import draw_channels


class GymnaxState(NamedTuple):
    """The state of an episode between two turns: gymnax's own state and the observation."""

    inner: Any
    obs: Array


@dataclass(frozen=True)
class Gymnax(PlainFacts):
    """A gymnax env by its id, with one agent.

    It uses gymnax's step without autoreset, so true final observations are seen; episodes that end
    only by the time limit are truncated. A Box of actions is flattened.
    `VectorEnv(Gymnax("CartPole-v1"), 128)`.
    """

    id: str  # gymnax's name of the env
    max_episode_steps: int = 0  # time limit in steps; 0: the env's own

    def __post_init__(self) -> None:
        if self.max_episode_steps < 0:
            raise BadConfig(
                f"{self.name}: max_episode_steps must be 0 (the env's own limit) or more, "
                f"got {self.max_episode_steps}"
            )
        known = _gymnax().registered_envs
        if self.id not in known:
            raise BadConfig(f"{self.name}: gymnax has no such env; {nearest(self.id, known)}")

    @property
    def name(self) -> str:
        """`gymnax:CartPole-v1`"""
        return f"gymnax:{self.id}"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def action(self) -> Field:
        """One of several actions, or a real vector."""
        return _facts(self)[1]

    @property
    def observation(self) -> Field:
        """The shape and dtype of gymnax's observations; their bounds are not reliable."""
        return _facts(self)[0]

    def reset(self, key: jax.Array) -> GymnaxState:
        """A new episode."""
        game, params = _game(self)
        obs, inner = game.reset_env(key, params)
        return GymnaxState(inner, jnp.asarray(obs))

    def step(
        self, state: GymnaxState, action: Array, key: jax.Array
    ) -> tuple[GymnaxState, Outcome]:
        """One turn with action int32[1] or float32[1, n]."""
        game, params = _game(self)
        theirs = action[0]
        if is_real(self.action):
            theirs = theirs.reshape(game.action_space(params).shape)
        obs, inner, reward, terminated, _ = game.step_env(key, state.inner, theirs, params)
        late = jnp.asarray(game.is_truncated(inner, params)) & ~terminated
        inner = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), inner, state.inner)
        seen = jnp.asarray(obs, state.obs.dtype)
        return GymnaxState(inner, seen), Outcome(jnp.reshape(reward, (1,)), terminated, late)

    def observe(self, state: GymnaxState) -> Array:
        """[1, *shape]; at the end of an episode this is the true final observation."""
        return state.obs[None]

    def render(self, state: GymnaxState) -> np.ndarray:
        """Host: a picture of a MinAtar game, uint8[240, 240, 3]; others raise BadConfig."""
        if not self.id.endswith("-MinAtar"):
            raise BadConfig(
                f"{self.name}: gymnax cannot render single frames of this env; if Gymnasium has it "
                f"too, train and film gym:{self.id}"
            )
        return draw_channels(np.asarray(state.obs) != 0)


@lru_cache(maxsize=64)
def _game(env: Gymnax) -> tuple[Any, Any]:
    """Gymnax's env and its parameters."""
    # Building it makes arrays, which inside jit would be tracers.
    with jax.ensure_compile_time_eval():
        try:
            game, params = _gymnax().make(env.id)
        except Exception as error:  # building can do anything, such as download files
            raise BadConfig(f"{env.name}: gymnax could not build it: {error}") from error
    if env.max_episode_steps:
        params = params.replace(max_steps_in_episode=env.max_episode_steps)
    return game, params


@lru_cache(maxsize=64)
def _facts(env: Gymnax) -> tuple[Field, Field]:
    """The fields of observations and actions; computes only the bounds of actions."""
    game, params = _game(env)
    key = jax.eval_shape(lambda: jax.random.key(0))
    seen = jax.eval_shape(lambda key: game.reset_env(key, params)[0], key)
    if not hasattr(seen, "dtype"):
        raise BadConfig(
            f"{env.name}: expected one array as observation, got {type(seen).__name__}; write an "
            "env of your own around it that concatenates them"
        )
    with jax.ensure_compile_time_eval():
        space = game.action_space(params)
        if hasattr(space, "n"):
            action = Field("int32", (), 0, int(space.n) - 1)
        elif hasattr(space, "low"):
            size = int(np.prod(space.shape, dtype=np.int64))
            low, high = (
                np.broadcast_to(np.asarray(bound, np.float32), space.shape).ravel()
                for bound in (space.low, space.high)
            )
            action = Field("float32", (size,), low, high)
        else:
            raise BadConfig(
                f"{env.name}: the action space must be Discrete or a Box, got "
                f"{type(space).__name__}; write an env of your own around it"
            )
    return Field(seen.dtype, seen.shape), action


def _gymnax() -> Any:
    # Importing it makes arrays, which inside jit would be tracers.
    with jax.ensure_compile_time_eval():
        package = gymnax = import_extra("env gymnax:NAME", "gymnax", "gymnax")
    if not hasattr(package.environments.environment.Environment, "is_truncated"):
        raise BadConfig(
            "gymnax: this version does not distinguish truncation from termination; install 1.0 "
            "or newer: pip install 'millpond[gymnax]'"
        )
    return gymnax
