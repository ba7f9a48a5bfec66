"""`ReplaySettings`: how often an agent learns from replay, and from how much."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import BadConfig
from ..schedule import Schedule, constant, linear
from .agent import Replayed
from .optimizer import Optimizer

_COUNTS = ("batch", "update_every", "updates", "min_fill", "capacity")


@dataclass(frozen=True)
class ReplaySettings:
    """The settings that all agents with replay share; a subclass adds its own.

    `class MySettings(ReplaySettings)` defines `learns`, which says how rows become samples.
    """

    reward_scale: float = 1.0  # multiply rewards by this
    batch: int = 64  # transitions, or sequences, in a minibatch
    gamma: float = 0.99  # discount per step
    update_every: int = 1  # turns of all envs between two rounds of updates
    updates: int = 1  # gradient steps per such round
    min_fill: int = 2_000  # rows stored before the first update, per policy
    capacity: int = 102_400  # rows that the replay keeps, per policy
    beta: Schedule = field(default_factory=lambda: linear(0.4, 1.0))  # of importance weights
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(rate=constant(1e-3)))

    def __post_init__(self) -> None:
        self.check_least(1, *_COUNTS)
        if self.min_fill > self.capacity:
            raise BadConfig(
                f"{self.who}: min_fill {self.min_fill} is more than the capacity {self.capacity}, "
                "so learning would never start; lower it or raise the capacity"
            )
        self.beta.check_levels(f"{self.who}: beta", 0.0)

    @property
    def who(self) -> str:
        """The agent's name for error messages: `DQN` for `DQNSettings`."""
        return type(self).__name__.removesuffix("Settings")

    def check_least(self, least: int, *names: str) -> None:
        """BadConfig if a setting is below `least`: `self.check_least(1, "batch", "length")`."""
        for name in names:
            if getattr(self, name) < least:
                bound = f"at least {least}" if least else "0 or more"
                raise BadConfig(f"{self.who}: {name} must be {bound}, got {getattr(self, name)}")

    def replayed(self, window: Any) -> Replayed:
        """It learns from samples that `window` makes of the rows."""
        sizes = (self.batch, self.capacity, self.min_fill, self.update_every, self.updates)
        return Replayed(window, *sizes, self.reward_scale)

    def tiny(self) -> Self:
        """The same settings, but it learns after a few rows."""
        changes: dict[str, Any] = dict(batch=4, min_fill=8, capacity=64, updates=1, update_every=2)
        for one in dataclasses.fields(self):
            rule = getattr(self, one.name)
            if isinstance(rule, Optimizer):
                changes[one.name] = dataclasses.replace(rule, accumulate=1)
        return dataclasses.replace(self, **changes)
