"""What an environment is here: `Env` steps inside jit, `HostVector` steps on the host.

Both speak rows under next-step autoreset. Every array about agents has the leading axes
`[agents, env]`; an env with one agent has that axis too, of length 1. An env *is* its settings: a
frozen dataclass whose fields can be set by name.
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
    """The results of one turn: float32[agents] and two flags for the whole env.

    `Outcome(reward, terminated, truncated)` is what `Env.step` returns along with the new state.
    """

    reward: Array
    terminated: Array
    truncated: Array


class Facts(Protocol):
    """What every env declares before it is built.

    It declares its actions in one of two ways: `num_actions`, if actions are the whole numbers from
    0 to that less one, or `action`, if they are real vectors: `Field("float32", (n,), low, high)`,
    with one number or n of them for a bound. `spec_of(env)` is made from it.
    """

    @property
    def name(self) -> str:
        """Such as `treasurehunt` or `atari/gravitar`."""
        ...

    @property
    def num_agents(self) -> int:
        """Agents per env, each with its own policy."""
        ...

    @property
    def observation(self) -> Field:
        """What one agent sees at one turn."""
        ...

    @property
    def extras(self) -> Mapping[str, Field]:
        """Facts recorded with each step, such as `life_lost`."""
        ...

    @property
    def frames_per_step(self) -> int:
        """Emulator frames per step; 1 where there is no emulator."""
        ...

    @property
    def references(self) -> Mapping[str, Policy]:
        """Scripted players to compare with, by name; a random one needs no script."""
        ...


class PlainFacts:
    """What most envs say alike: no extras, no emulator, no scripted players."""

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
    """One env as pure functions over a state; `VectorEnv` runs many of them and resets them.

    `VectorEnv(env, 128)`; docs/how-to/your-own-environment.md builds one.
    """

    def reset(self, key: jax.Array) -> Any:
        """A fresh episode's state."""
        ...

    def step(self, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        """One turn under int32[agents] or, of real vectors, float32[agents, n]."""
        ...

    def observe(self, state: Any) -> Array:
        """What every agent sees: [agents, *shape]."""
        ...

    def render(self, state: Any) -> np.ndarray:
        """Host: a picture of one env, uint8[height, width, 3]."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An optional method of an `Env`: events of a turn that the return does not reveal.

    `def counts(self, before, after): return {"stags": after.taken - before.taken}`.
    """

    def counts(self, before: Any, after: Any) -> Mapping[str, Array]:
        """How often each event happened in the turn between two states: int32[] by name."""
        ...


class HostVector(Protocol):
    """Many envs stepped together on the host. `obs` and `flags` are those of the rows to come.

    `rows = vector.step(action)`, then `vector.obs` is what is seen next.
    """

    num_envs: int
    obs: Tree  # [agents, env, *shape]
    flags: np.ndarray  # uint8[env], or uint8[agents, env] where agents end apart

    def step(self, action: np.ndarray) -> Rows:
        """Act [agents, env] or, of real vectors, [agents, env, n]; the finished rows."""
        ...

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]."""
        ...

    def export(self) -> dict[str, np.ndarray] | None:
        """The whole state, from which `restore` continues exactly; None if it cannot be saved."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `export` returned."""
        ...

    def close(self) -> None:
        """Free what it holds."""
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
    """What one agent's rows hold.

    `spec_of(make_env("minatar/breakout"))`.
    """
    return Spec(env.observation, action_of(env), dict(env.extras))
