"""`QSettings`: what DQN and IQN are both set by."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import BadConfig
from ..schedule import Schedule, linear
from ..window import Window
from .agent import Replayed
from .replay_settings import ReplaySettings


@dataclass(frozen=True)
class QSettings(ReplaySettings):
    """How values are learned from replayed transitions with a target network.

    The target network follows by `tau` after every update, or, if `target_every` is given, is
    copied whole after that many updates: the agent alone changes it. Rewards are multiplied by
    `reward_scale`; `reward_clip` bounds each single one before n-step sums (0: not clipped).
    `class MySettings(QSettings)` adds what is its own.
    """

    double: bool = True  # online network chooses the next action, target network values it
    n_step: int = 1  # steps in a return
    tau: float = 0.005  # how far the target network moves to the online one per update: 0 to 1
    target_every: int = 0  # updates between copies to the target network; 0: `tau` instead
    reward_clip: float = 0.0  # largest size of a single reward, before n-step sums; 0: not clipped
    epsilon: Schedule = field(default_factory=lambda: linear(1.0, 0.05, over=0.25))

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1 or self.target_every < 0:
            raise BadConfig(
                f"{self.who}: tau must lie in (0, 1] and target_every be 0 or more, got "
                f"{self.tau} and {self.target_every}"
            )
        super().__post_init__()
        self.check_least(1, "n_step")
        self.epsilon.check_levels(f"{self.who}: epsilon", 0.0, 1.0)

    def learns(self, stack: int) -> Replayed:
        """From n-step transitions."""
        return self.replayed(Window(stack, self.n_step, self.gamma, reward_clip=self.reward_clip))

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon, the learning rate and the exponent of importance weights."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the target network has changed after that many updates."""
        return updates // self.target_every if self.target_every else updates
