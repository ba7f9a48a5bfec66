"""The interfaces of environments: `Env` steps inside jit, `HostVector` steps on the host.

Both give rows with next-step autoreset. Arrays that concern agents begin with the axes `[agents,
env]`, also if there is only one agent. An env is its settings: a frozen dataclass whose fields can
be set by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from ..rows import Array, Rows, Tree
from ..spec import Field, Spec
from .actions import action_of

# policy(obs[..., *shape], key) -> actions[...]: a player that needs no learning.
Policy = Callable[[Array, jax.Array], Array]


class Outcome(NamedTuple):
    """The results of one turn: rewards float32[agents], and two flags for the whole env.

    `Outcome(reward, terminated, truncated)` is what `Env.step` returns along with the new state.
    """

    reward: Array
    terminated: Array
    truncated: Array


class Facts(Protocol):
    """What every env declares before it is built.

    Discrete actions are declared by `num_actions`, real vectors by `action`: `Field("float32",
    (n,), low, high)`, with one number or n of them per bound. `spec_of(env)` follows from these.
    """

    @property
    def name(self) -> str:
        """The env's name, such as `treasurehunt` or `atari/gravitar`."""
        ...

    @property
    def num_agents(self) -> int:
        """Agents per env, each with its own policy."""
        ...

    @property
    def observation(self) -> Field:
        """The observation of one agent at one turn."""
        ...

    @property
    def extras(self) -> Mapping[str, Field]:
        """Further fields recorded with each step, such as `life_lost`."""
        ...

    @property
    def frames_per_step(self) -> int:
        """Emulator frames per step; 1 without an emulator."""
        ...

    @property
    def references(self) -> Mapping[str, Policy]:
        """Scripted players to compare with, by name; a random player is always there."""
        ...


class PlainFacts:
    """Defaults that suit most envs: no extras, no emulator, no scripted players."""

    @property
    def extras(self) -> Mapping[str, Field]:
        """None."""
        return {}

    @property
    def frames_per_step(self) -> int:
        """One turn is one step."""
        return 1

    @property
    def references(self) -> Mapping[str, Policy]:
        """None."""
        return {}


@runtime_checkable
class Env(Facts, Protocol):
    """One env as pure functions over a state; `VectorEnv` steps and resets many of them.

    `VectorEnv(env, 128)`; see docs/how-to/your-own-environment.md.
    """

    def reset(self, key: jax.Array) -> Any:
        """The state at the beginning of a new episode."""
        ...

    def step(self, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        """One turn; `action` is int32[agents] or, for real vectors, float32[agents, n]."""
        ...

    def observe(self, state: Any) -> Array:
        """Every agent's observation: [agents, *shape]."""
        ...

    def render(self, state: Any) -> np.ndarray:
        """Host: a picture of one env, uint8[height, width, 3]."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An optional method of an `Env` that counts events which the return does not show.

    `def counts(self, before, after): return {"stags": after.taken - before.taken}`.
    """

    def counts(self, before: Any, after: Any) -> Mapping[str, Array]:
        """How often each event happened in the turn between two states: int32[] by name."""
        ...


class HostVector(Protocol):
    """Many envs stepped together on the host. `obs` and `flags` are those of the next rows.

    `rows = vector.step(action)`; then act on `vector.obs`.
    """

    num_envs: int
    obs: Tree  # [agents, env, *shape]
    flags: np.ndarray  # uint8[env], or uint8[agents, env] if agents end separately

    def step(self, action: np.ndarray) -> Rows:
        """Take actions [agents, env] or, for real vectors, [agents, env, n]; returns the rows."""
        ...

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]."""
        ...

    def export(self) -> dict[str, np.ndarray] | None:
        """The whole state, for `restore` to continue exactly; None if it cannot be saved."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `export` returned."""
        ...

    def close(self) -> None:
        """Free its resources."""
        ...


@runtime_checkable
class HostEnv(Facts, Protocol):
    """An env that can only be stepped on the host.

    `vector = env.vector(num_envs=8, seed=0)`.
    """

    def vector(self, num_envs: int, seed: int) -> HostVector:
        """`num_envs` freshly reset envs."""
        ...


AnyEnv = Env | HostEnv


def spec_of(env: Facts) -> Spec:
    """The spec of one agent's rows.

    `spec_of(make_env("minatar/breakout"))`.
    """
    return Spec(env.observation, action_of(env), dict(env.extras))
