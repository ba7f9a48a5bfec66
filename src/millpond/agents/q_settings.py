"""`QSettings`: what DQN and IQN are both set by."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import BadConfig
from ..schedule import Schedule, constant, linear
from ..window import Window
from .agent import Replayed
from .optimizer import Optimizer


@dataclass(frozen=True)
class QSettings:
    """How values are learned from replayed transitions with a target network.

    The target network follows by `tau` after every update, or, if `target_every` is given, is
    copied whole after that many updates: the agent alone changes it. Rewards are multiplied by
    `reward_scale`; `reward_clip` bounds each single one before n-step sums (0: not clipped).
    `class MySettings(QSettings)` adds what is its own.
    """

    double: bool = True  # online network chooses the next action, target network values it
    tau: float = 0.005  # how far the target network moves to the online one per update: 0 to 1
    target_every: int = 0  # updates between copies to the target network; 0: `tau` instead
    reward_scale: float = 1.0  # rewards are multiplied by it
    reward_clip: float = 0.0  # largest size of a single reward, before n-step sums; 0: not clipped
    batch: int = 64  # transitions, or sequences, in a minibatch
    gamma: float = 0.99  # discount per step
    n_step: int = 1  # steps in a return
    update_every: int = 1  # turns of all envs between two rounds of updates
    updates: int = 1  # gradient updates per such round
    min_fill: int = 2_000  # rows stored before the first update, per policy
    capacity: int = 102_400  # rows that the replay keeps, per policy
    beta: Schedule = field(default_factory=lambda: linear(0.4, 1.0))  # of importance weights
    epsilon: Schedule = field(default_factory=lambda: linear(1.0, 0.05, over=0.25))
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(rate=constant(1e-3)))

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1 or self.target_every < 0:
            raise BadConfig(
                f"{self.who}: tau must lie in (0, 1] and target_every be 0 or more, got "
                f"{self.tau} and {self.target_every}"
            )
        sizes = ("batch", "n_step", "update_every", "updates", "min_fill", "capacity")
        for name in sizes:
            self.check_least(name, 1)
        if self.min_fill > self.capacity:
            raise BadConfig(
                f"{self.who}: min_fill {self.min_fill} is more than the capacity {self.capacity}, "
                "so learning would never start; lower it or raise the capacity"
            )
        self.epsilon.check_levels(f"{self.who}: epsilon", 0.0, 1.0)
        self.beta.check_levels(f"{self.who}: beta", 0.0)

    @property
    def who(self) -> str:
        """The agent's name, for errors: `DQN` of `DQNSettings`."""
        return type(self).__name__.removesuffix("Settings")

    def check_least(self, name: str, least: int) -> None:
        """Refuse a size below `least`: `self.check_least("batch", 1)`."""
        if getattr(self, name) < least:
            bound = f"at least {least}" if least else "0 or more"
            raise BadConfig(f"{self.who}: {name} must be {bound}, got {getattr(self, name)}")

    def learns(self, stack: int) -> Replayed:
        """From n-step transitions."""
        return self.replayed(Window(stack, self.n_step, self.gamma, reward_clip=self.reward_clip))

    def replayed(self, window: Any) -> Replayed:
        """From what `window` makes of the rows."""
        sizes = (self.batch, self.capacity, self.min_fill, self.update_every, self.updates)
        return Replayed(window, *sizes, self.reward_scale)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon, the learning rate and the exponent of importance weights."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the target network has changed after that many updates."""
        return updates // self.target_every if self.target_every else updates

    def tiny(self) -> Self:
        """Learns after a few rows."""
        rule = dataclasses.replace(self.optimizer, accumulate=1)
        sizes = dict(batch=4, min_fill=8, capacity=64, updates=1, update_every=2)
        return dataclasses.replace(self, **sizes, optimizer=rule)
