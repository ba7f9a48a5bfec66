"""`DQN`: Q-learning from replay, of transitions or, with memory, of sequences."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from ..errors import BadConfig
from ..rows import Array, Batch
from ..sequence import Sequence, SequenceBatch, sequence_priority
from ..spec import Spec
from .agent import AgentState, Now, Replayed
from .losses import chosen, huber, n_step_returns, squared, td_target
from .networks import Network
from .q_agent import without_burn_in
from .q_settings import QSettings
from .target_agent import Loss, TargetAgent


@dataclass(frozen=True)
class DQNSettings(QSettings):
    """How a DQN learns: from transitions or, with `network.memory`, from sequences (R2D2).

    Further settings are those of `QSettings`. With a memory, `batch` counts sequences of `length`
    rows; the `burn_in` rows before each bring its stored memory up to date with the parameters.
    `DQNSettings(n_step=3, tau=0.005)`.
    """

    loss: Literal["huber", "squared"] = "huber"  # applied to the TD errors
    length: int = 32  # rows in a sequence; only with network.memory
    burn_in: int = 8  # rows before a sequence; only with network.memory

    def __post_init__(self) -> None:
        if self.loss not in ("huber", "squared"):
            raise BadConfig(f"DQN: loss must be huber or squared, got {self.loss!r}")
        super().__post_init__()
        self.check_least(1, "length")
        self.check_least(0, "burn_in")

    def learns(self, stack: int, memory: int = 0) -> Replayed:
        """It learns from n-step transitions or, with memory, from sequences."""
        if not memory:
            return super().learns(stack)
        clip, burn_in = self.reward_clip, self.burn_in
        rows = Sequence(self.length, stack, self.gamma, burn_in=burn_in, reward_clip=clip)
        return self.replayed(rows)

    def tiny(self) -> Self:
        """The same settings, but it learns after a few rows."""
        return dataclasses.replace(super().tiny(), length=4, burn_in=2)


class DQN(TargetAgent):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = DQN(DQNSettings(), Network(), spec, stack=4); state = agent.init(key)`.
    `state, learned = agent.update(state, batch, {"rate": 1e-3, "beta": 1.0})`.
    """

    Settings: ClassVar[type] = DQNSettings
    remembers: ClassVar[bool] = True

    def __init__(self, settings: DQNSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(settings, network, spec, stack)
        self._loss = huber if settings.loss == "huber" else squared

    def loss(self, state: AgentState, batch: Batch | SequenceBatch, now: Now) -> tuple[Loss, Array]:
        """The loss on transitions or, with memory, on sequences."""
        of = self._sequence_loss if self.memory else self._transition_loss
        return of(state, batch, now)

    def priority(self, error: Array, mask: Array) -> Array:
        """The absolute error; for a sequence, a mixture of its largest and its mean error."""
        return sequence_priority(error, mask) if self.memory else super().priority(error, mask)

    def _transition_loss(self, state: AgentState, batch: Any, now: Now) -> tuple[Loss, Array]:
        """The loss on a `Batch`, and which rows count."""
        settings = self.settings
        weight = batch.weight ** now["beta"] * batch.mask

        def loss_of(params: Any) -> tuple[Array, tuple[Array, Array]]:
            both = self.values(params, jnp.concatenate([batch.obs, batch.next_obs]))
            here, after = jnp.split(both, 2)
            target_after = self.values(state.target, batch.next_obs)
            goal = td_target(
                batch.reward * settings.reward_scale,
                batch.discount,
                after,
                target_after,
                settings.double,
            )
            q = chosen(here, batch.action)
            error = q - jax.lax.stop_gradient(goal)
            return (self._loss(error) * weight).mean(), (q, error)

        return loss_of, batch.mask

    def _sequence_loss(self, state: AgentState, batch: Any, now: Now) -> tuple[Loss, Array]:
        """The loss on a `SequenceBatch`, with memory, and which rows count."""
        settings, burn_in = self.settings, self.settings.burn_in
        rows = without_burn_in(batch, burn_in)
        weight = batch.weight[:, None] ** now["beta"] * rows.mask
        steps = jnp.maximum(rows.mask.sum(), 1)
        theirs = self.values_of(state.target, batch, burn_in)[:, 1:]

        def loss_of(params: Any) -> tuple[Array, tuple[Array, Array]]:
            ours = self.values_of(params, batch, burn_in)
            chooser = ours[:, 1:] if settings.double else theirs
            after = chosen(theirs, chooser.argmax(-1))
            reward = rows.reward * settings.reward_scale
            goal = n_step_returns(reward, rows.discount, rows.mask, after, settings.n_step)
            q = chosen(ours[:, :-1], rows.action)
            error = jnp.where(rows.mask, q - jax.lax.stop_gradient(goal), 0)
            return (self._loss(error) * weight).sum() / steps, (q, error)

        return loss_of, rows.mask
