"""What the settings of SAC and TD3 have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import BadConfig
from ..schedule import Schedule, constant, linear
from ..window import Window
from .agent import Replayed
from .optimizer import Optimizer

_COUNTS = ("batch", "n_step", "update_every", "updates", "min_fill", "capacity")


def adam(rate: float) -> Optimizer:
    """As the papers have it: `adam(3e-4)`."""
    return Optimizer(rate=constant(rate), clip=0.0)


@dataclass(frozen=True)
class ActorCriticSettings:
    """How two critics and an actor learn from n-step transitions; a subclass says what it adds.

    `optimizer` is for the critics. Actions are drawn uniformly until `min_fill` rows are
    stored. Targets go a share `tau` of the way after an update. With `correlation` above 0 the
    noise of a turn continues from that of the turn before, for envs where what matters takes a push
    over many turns; each turn by itself is as noisy as without.
    """

    tau: float = 0.005  # how far the target networks move to the critics per update: 0 to 1
    reward_scale: float = 1.0  # rewards are multiplied by it
    batch: int = 256  # transitions in a minibatch
    gamma: float = 0.99  # discount per step
    n_step: int = 1  # steps in a return
    update_every: int = 1  # turns of all envs between two rounds of updates
    updates: int = 1  # gradient updates per such round
    min_fill: int = 1_000  # rows stored before the first update; until then actions are uniform
    capacity: int = 1_024_000  # rows that the replay keeps, per policy
    correlation: float = 0.0  # correlation of the noise from turn to turn, in [0, 1)
    beta: Schedule = field(default_factory=lambda: linear(0.4, 1.0))  # of importance weights
    optimizer: Optimizer = field(default_factory=lambda: adam(3e-4))
    actor_optimizer: Optimizer = field(default_factory=lambda: adam(3e-4))

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Settings")

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                got = getattr(self, name)
                raise BadConfig(f"{self._name}: {name} must be at least 1, got {got}")
        if not 0 < self.tau <= 1:
            raise BadConfig(f"{self._name}: tau must lie in (0, 1], got {self.tau}")
        if not 0 <= self.correlation < 1:
            raise BadConfig(f"{self._name}: correlation must lie in [0, 1), got {self.correlation}")
        if self.min_fill > self.capacity:
            raise BadConfig(
                f"{self._name}: min_fill {self.min_fill} is more than the capacity "
                f"{self.capacity}, so learning would never start; lower it or raise the capacity"
            )
        self.beta.check_levels(f"{self._name}: beta", 0.0)

    def learns(self, stack: int) -> Replayed:
        """From n-step transitions."""
        window = Window(stack, self.n_step, self.gamma)
        sizes = (self.batch, self.capacity, self.min_fill, self.update_every, self.updates)
        return Replayed(window, *sizes, self.reward_scale)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rates and the exponent of importance weights."""
        rates = {"rate": self.optimizer.rate, "actor_rate": self.actor_optimizer.rate}
        return {**rates, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the targets have changed after that many updates."""
        return updates

    def tiny(self) -> Self:
        """Learns after a few rows."""
        changes: dict[str, Any] = dict(batch=4, min_fill=8, capacity=64, updates=1, update_every=2)
        for one in dataclasses.fields(self):
            rule = getattr(self, one.name)
            if isinstance(rule, Optimizer):
                changes[one.name] = dataclasses.replace(rule, accumulate=1)
        return dataclasses.replace(self, **changes)
