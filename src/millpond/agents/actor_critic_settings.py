"""What the settings of SAC and TD3 have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import BadConfig
from ..schedule import Schedule, constant
from ..window import Window
from .agent import Replayed
from .optimizer import Optimizer
from .replay_settings import ReplaySettings


def adam(rate: float) -> Optimizer:
    """As the papers have it: `adam(3e-4)`."""
    return Optimizer(rate=constant(rate), clip=0.0)


@dataclass(frozen=True)
class ActorCriticSettings(ReplaySettings):
    """How two critics and an actor learn from n-step transitions; a subclass says what it adds.

    `optimizer` is for the critics. Actions are drawn uniformly until `min_fill` rows are
    stored. Targets go a share `tau` of the way after an update. With `correlation` above 0 the
    noise of a turn continues from that of the turn before, for envs where what matters takes a push
    over many turns; each turn by itself is as noisy as without.
    """

    batch: int = 256  # transitions in a minibatch
    n_step: int = 1  # steps in a return
    tau: float = 0.005  # how far the target networks move to the critics per update: 0 to 1
    min_fill: int = 1_000  # rows stored before the first update; until then actions are uniform
    capacity: int = 1_024_000  # rows that the replay keeps, per policy
    correlation: float = 0.0  # correlation of the noise from turn to turn, in [0, 1)
    optimizer: Optimizer = field(default_factory=lambda: adam(3e-4))
    actor_optimizer: Optimizer = field(default_factory=lambda: adam(3e-4))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(1, "n_step")
        if not 0 < self.tau <= 1:
            raise BadConfig(f"{self.who}: tau must lie in (0, 1], got {self.tau}")
        if not 0 <= self.correlation < 1:
            raise BadConfig(f"{self.who}: correlation must lie in [0, 1), got {self.correlation}")

    def learns(self, stack: int) -> Replayed:
        """From n-step transitions."""
        return self.replayed(Window(stack, self.n_step, self.gamma))

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rates and the exponent of importance weights."""
        rates = {"rate": self.optimizer.rate, "actor_rate": self.actor_optimizer.rate}
        return {**rates, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the targets have changed after that many updates."""
        return updates
