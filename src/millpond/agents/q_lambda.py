"""`QLambda`: Q-learning with lambda-returns over replayed sequences."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from ..errors import BadConfig
from ..returns import lambda_returns
from ..rows import Array
from ..schedule import Schedule, linear
from ..sequence import Sequence, SequenceBatch, sequence_priority
from ..spec import Spec
from .agent import AgentState, Now, Replayed
from .losses import chosen, huber, squared
from .networks import Network
from .optimizer import Optimizer
from .q_agent import without_burn_in
from .replay_settings import ReplaySettings
from .target_agent import Loss, TargetAgent


@dataclass(frozen=True)
class QLambdaSettings(ReplaySettings):
    """How Q(lambda) learns: from batches of replayed sequences of `length` rows.

    With trace "peng", returns continue through all actions; with "watkins", they stop at actions
    that are not greedy (for a greedy policy Retrace and tree backup do the same). The target
    network is copied every `target_every` updates; 0: there is none, and returns bootstrap from the
    network itself. Rewards are clipped (0: not), then scaled. With a memory, the `burn_in` rows
    before each sequence bring its stored memory up to date with the parameters.
    `QLambdaSettings(length=32, lam=0.65, trace="watkins")`.
    """

    length: int = 32  # rows in a sequence
    burn_in: int = 8  # rows before a sequence; only with network.memory
    lam: float = 0.65  # lambda of the returns: 0 is one step, 1 the whole sequence
    trace: Literal["peng", "watkins"] = "peng"  # watkins stops at actions that are not greedy
    loss: Literal["huber", "squared"] = "squared"  # applied to the TD errors
    target_every: int = 100  # updates between copies to the target network; 0: no target network
    reward_clip: float = 0.0  # clip rewards to this absolute value; 0: no clipping
    batch: int = 16  # sequences in a minibatch
    min_fill: int = 8_192  # rows stored before the first update, per policy
    capacity: int = 256_000  # rows that the replay keeps, per policy
    epsilon: Schedule = field(default_factory=lambda: linear(1.0, 0.05, over=0.1))
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer("radam", linear(1e-3, 0.0), clip=10.0)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(1, "length")
        self.check_least(0, "burn_in")
        if self.trace not in ("peng", "watkins") or self.loss not in ("huber", "squared"):
            raise BadConfig(
                "QLambda: trace must be peng or watkins and loss huber or squared, got "
                f"{self.trace!r} and {self.loss!r}"
            )
        if not (0 <= self.gamma <= 1 and 0 <= self.lam <= 1) or self.target_every < 0:
            raise BadConfig(
                "QLambda: gamma and lam must lie in [0, 1] and target_every be 0 or more, got "
                f"{self.gamma}, {self.lam} and {self.target_every}"
            )
        self.epsilon.check_levels("QLambda: epsilon", 0.0, 1.0)

    def learns(self, stack: int, memory: int = 0) -> Replayed:
        """It learns from sequences."""
        clip, burn_in = self.reward_clip, self.burn_in if memory else 0
        rows = Sequence(self.length, stack, self.gamma, burn_in=burn_in, reward_clip=clip)
        return self.replayed(rows)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon, the learning rate and the exponent of importance weights."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the target network has changed after `updates` updates."""
        return updates // self.target_every if self.target_every else 0

    def tiny(self) -> Self:
        """The same settings, but it learns after a few rows."""
        sizes = dict(length=4, burn_in=2, batch=2, min_fill=32, capacity=128)
        return dataclasses.replace(super().tiny(), **sizes)


class QLambda(TargetAgent):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = QLambda(QLambdaSettings(), Network(), spec, stack=1); state = agent.init(key)`.
    `state, learned = agent.update(state, batch, {"rate": 1e-3, "beta": 1.0})`.
    """

    Settings: ClassVar[type] = QLambdaSettings
    remembers: ClassVar[bool] = True

    def __init__(self, settings: QLambdaSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(settings, network, spec, stack)
        self._loss = huber if settings.loss == "huber" else squared
        self._burn_in = settings.burn_in if network.memory else 0

    def init(self, key: jax.Array) -> AgentState:
        """A freshly initialised agent; with `target_every` 0 it has no target network."""
        state = super().init(key)
        return state if self.settings.target_every else state._replace(target=None)

    def goals(self, params: Any, batch: SequenceBatch) -> Array:
        """The rows' lambda-returns by the values of `params`: float32[batch, length]."""
        settings, rows = self.settings, without_burn_in(batch, self._burn_in)
        return lambda_returns(
            self.values_of(params, batch, self._burn_in),
            rows.action,
            rows.reward * settings.reward_scale,
            rows.discount,
            rows.mask,
            settings.lam,
            trace=settings.trace,
        )

    def loss(self, state: AgentState, batch: Any, now: Now) -> tuple[Loss, Array]:
        """The loss on a `SequenceBatch`, and which rows count."""
        rows = without_burn_in(batch, self._burn_in)
        goal = self.goals(state.params if state.target is None else state.target, batch)
        weight = batch.weight[:, None] ** now["beta"] * rows.mask
        steps = jnp.maximum(rows.mask.sum(), 1)

        def loss_of(params: Any) -> tuple[Array, tuple[Array, Array]]:
            acted = batch._replace(obs=batch.obs[:, :-1])
            q = chosen(self.values_of(params, acted, self._burn_in), rows.action)
            error = jnp.where(rows.mask, q - goal, 0)
            return (self._loss(error) * weight).sum() / steps, (q, error)

        return loss_of, rows.mask

    def priority(self, error: Array, mask: Array) -> Array:
        """A mixture of a sequence's largest and its mean error."""
        return sequence_priority(error, mask)
