"""`Pendulum`: swing up a rod and balance it, with a torque too weak to lift it directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field
from . import grid
from .env import Outcome, PlainFacts

_FASTEST, _STEP = np.float32(8), np.float32(0.05)  # radians per second; seconds
_PICTURE, _ROD, _WIDE = 128, 48, 5  # pixels


class PendulumState(NamedTuple):
    """The state of an episode between two turns."""

    angle: Array  # float32: radians, 0 is upright; not wrapped to one revolution
    speed: Array  # float32: radians per second
    turn: Array  # int32: turns played


@dataclass(frozen=True)
class Pendulum(PlainFacts):
    """The dynamics of Gymnasium's `Pendulum-v1`: one torque, in [-`torque`, `torque`].

    It begins at a random angle, with a speed in [-1, 1]. The reward of a turn is
    -(angle² + 0.1 speed² + 0.001 torque²), the angle measured from upright. An episode is truncated
    after `turns` turns and never terminates. `VectorEnv(Pendulum(), 2048)`.
    """

    turns: int = 200  # turns per episode
    gravity: float = 10.0  # m/s²
    torque: float = 2.0  # largest torque, in either direction

    def __post_init__(self) -> None:
        grid.check_whole("Pendulum", "turns", self.turns, 1)
        grid.check_numbers("Pendulum", {"gravity": self.gravity, "torque": self.torque})
        if self.torque <= 0:
            raise BadConfig(f"Pendulum: torque must be above 0, got {self.torque}")

    @property
    def name(self) -> str:
        """`pendulum`"""
        return "pendulum"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def action(self) -> Field:
        """The torque."""
        return Field("float32", (1,), -self.torque, self.torque)

    @property
    def observation(self) -> Field:
        """Cosine and sine of the angle, and the speed."""
        return Field("float32", (3,))

    def reset(self, key: jax.Array) -> PendulumState:
        """A random angle and a low random speed."""
        most = np.array([np.pi, 1], np.float32)
        angle, speed = jax.random.uniform(key, (2,), np.float32, -most, most)
        return PendulumState(angle, speed, jnp.int32(0))

    def step(
        self, state: PendulumState, action: Array, key: jax.Array
    ) -> tuple[PendulumState, Outcome]:
        """One turn with action float32[1, 1], clipped to the bounds."""
        angle, speed, turn = state.angle, state.speed, state.turn + 1
        torque = jnp.clip(action[0, 0], -self.torque, self.torque)
        cost = _from_upright(angle) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = speed + (1.5 * self.gravity * jnp.sin(angle) + 3 * torque) * _STEP
        speed = jnp.clip(speed, -_FASTEST, _FASTEST)
        outcome = Outcome(-cost[None], jnp.zeros((), bool), turn >= self.turns)
        return PendulumState(angle + speed * _STEP, speed, turn), outcome

    def observe(self, state: PendulumState) -> Array:
        """float32[1, 3]"""
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed])[None]

    def render(self, state: Any) -> np.ndarray:
        """Host: the rod and its axle, uint8[128, 128, 3]."""
        y, x = np.mgrid[:_PICTURE, :_PICTURE] - (_PICTURE - 1) / 2
        angle = float(state.angle)
        along, across = -np.sin(angle), -np.cos(angle)  # of the rod's end, rightwards and downwards
        place = np.clip(x * along + y * across, 0, _ROD)  # each pixel's nearest point on the rod
        picture = np.full((_PICTURE, _PICTURE, 3), (32, 34, 40), np.uint8)
        picture[np.hypot(x - place * along, y - place * across) < _WIDE] = (204, 77, 77)
        picture[np.hypot(x, y) < _WIDE / 2] = (235, 228, 205)
        return picture


def _from_upright(angle: Array) -> Array:
    """The same angle in [-pi, pi)."""
    return (angle + np.float32(np.pi)) % np.float32(2 * np.pi) - np.float32(np.pi)
