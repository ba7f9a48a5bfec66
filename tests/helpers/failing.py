"""Envs and an agent that fail in one way each, where a run of any mode finds them by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millpond.agents import DQN
from millpond.envs import Outcome
from millpond.envs.env import PlainFacts
from millpond.envs.hosted import HostedVector
from millpond.spec import Field

TURN = 3  # at which it happens


@dataclass(frozen=True)
class BreaksInJax(PlainFacts):
    """Two agents that see [1, turn], for eight turns. `how`: step, shape, dtype, reward or nan."""

    how: str = "nan"

    name = "failing:BreaksInJax"
    num_agents = num_actions = 2
    observation = Field("float32", (2,))

    def reset(self, key: jax.Array) -> Any:
        return jnp.int32(0)

    def step(self, turn: Any, action: Any, key: jax.Array) -> tuple[Any, Outcome]:
        if self.how == "step":
            raise ValueError("the pole fell off")
        reward = action.astype(jnp.float32)
        reward = reward.sum() if self.how == "reward" else reward
        return turn + 1, Outcome(reward, jnp.zeros((), bool), turn >= 7)

    def observe(self, turn: Any) -> Any:
        seen = jnp.stack([jnp.float32(1), turn.astype(np.float32)])
        if self.how == "shape":
            seen = seen[:1]
        elif self.how == "dtype":
            seen = seen.astype(jnp.complex64)
        elif self.how == "nan":
            seen = jnp.where(turn == TURN, jnp.nan, seen)
        return jnp.broadcast_to(seen, (2, *seen.shape))

    def render(self, turn: Any) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)


@dataclass(frozen=True)
class Breaks(PlainFacts):
    """The same on the host. `how`: reset, step, exit, shape, dtype, nan, reward or bounds."""

    how: str = "step"

    name = "failing:Breaks"
    num_agents = num_actions = 2

    @property
    def observation(self) -> Field:
        # The turn is in it; at turn 4 that of "bounds" is beyond what is declared.
        return Field("float32", (2,), 0, TURN if self.how == "bounds" else 99)

    def vector(self, num_envs: int, seed: int) -> Any:
        if self.how == "reset":
            raise OSError("the level file is gone")
        return Breaking(num_envs, seed, self.how)


class Breaking(HostedVector):
    def __init__(self, num_envs: int, seed: int, how: str) -> None:
        self.how, self.turns = how, 0
        super().__init__(BreaksInJax("nothing"), num_envs, seed)

    def step(self, action: np.ndarray) -> Any:
        rows = super().step(action)
        self.turns += 1
        if self.turns != TURN:
            return rows
        if self.how == "step":
            raise ValueError("the pole fell off")
        if self.how == "exit":
            raise SystemExit(7)
        if self.how == "shape":
            self.obs = self.obs[..., :1]
        elif self.how == "dtype":
            self.obs = self.obs.astype(complex)
        elif self.how == "nan":
            self.obs = np.where(self.obs == 1, np.nan, self.obs).astype(np.float32)
        elif self.how == "reward":
            rows = rows._replace(reward=np.full_like(rows.reward, np.inf))
        return rows


class BadLearner(DQN):
    """Acts, and cannot learn."""

    def update(self, *args: Any) -> Any:
        raise ZeroDivisionError("the loss is divided by nothing")
