"""Envs and an agent that fail in one way each, where a run of any mode finds them by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from tiny_runs import Arms, HostArms

from millpond.agents import DQN
from millpond.envs.hosted import HostedVector
from millpond.spec import Field

TURN = 3  # at which it happens


@dataclass(frozen=True)
class Breaks(HostArms):
    """Stepped on the host. `how`: reset, step, exit, shape, dtype, nan, reward or bounds."""

    how: str = "step"

    @property
    def name(self) -> str:
        return "failing:Breaks"

    @property
    def observation(self) -> Field:
        # The turn is in it; at turn 4 that of "bounds" is beyond what is declared.
        high = TURN if self.how == "bounds" else 99
        return Field("float32", self.arms.observation.shape, 0, high)

    def vector(self, num_envs: int, seed: int) -> Any:
        if self.how == "reset":
            raise OSError("the level file is gone")
        return Breaking(self.arms, num_envs, seed, self.how)


class Breaking(HostedVector):
    def __init__(self, arms: Arms, num_envs: int, seed: int, how: str) -> None:
        self.how, self.turns = how, 0
        super().__init__(arms, num_envs, seed)

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


@dataclass(frozen=True)
class BreaksInJax(Arms):
    """Steps inside jit. `how`: step, shape, dtype, reward or nan."""

    how: str = "nan"

    @property
    def name(self) -> str:
        return "failing:BreaksInJax"

    def step(self, state: Any, action: Any, key: Any) -> Any:
        if self.how == "step":
            raise ValueError("the pole fell off")
        state, outcome = super().step(state, action, key)
        if self.how == "reward":
            outcome = outcome._replace(reward=outcome.reward.sum())
        return state, outcome

    def observe(self, state: Any) -> Any:
        seen = super().observe(state)
        if self.how == "shape":
            return seen[..., :1]
        if self.how == "dtype":
            return seen.astype(jnp.complex64)
        return jnp.where((state.turn == TURN) & (self.how == "nan"), jnp.nan, seen)


class BadLearner(DQN):
    """Acts, and cannot learn."""

    def update(self, *args: Any) -> Any:
        raise ZeroDivisionError("the loss is divided by nothing")
