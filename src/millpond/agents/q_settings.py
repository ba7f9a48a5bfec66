"""`QSettings`: the settings that DQN and IQN share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import BadConfig
from ..schedule import Schedule, linear
from ..window import Window
from .agent import Replayed
from .replay_settings import ReplaySettings


@dataclass(frozen=True)
class QSettings(ReplaySettings):
    """How a Q-network with a target network learns from replayed transitions.

    The target network moves by `tau` after every update or, with `target_every`, becomes a copy of
    the online network every `target_every` updates. Single rewards are clipped to `reward_clip`
    (0: not) before n-step sums; `reward_scale` multiplies them.
    `class MySettings(QSettings)` adds settings of its own.
    """

    double: bool = True  # double Q-learning: online network chooses, target network evaluates
    n_step: int = 1  # steps in a return
    tau: float = 0.005  # target network's step towards the online one per update, up to 1
    target_every: int = 0  # updates between copies to the target network; 0: use `tau`
    reward_clip: float = 0.0  # clip rewards to this absolute value, before n-step sums; 0: none
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
        """It learns from n-step transitions."""
        return self.replayed(Window(stack, self.n_step, self.gamma, reward_clip=self.reward_clip))

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon, the learning rate, and the exponent of importance weights."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the target network has changed after `updates` updates."""
        return updates // self.target_every if self.target_every else updates
