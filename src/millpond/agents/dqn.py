"""`DQN`: values learned from replayed transitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from ..errors import BadConfig
from ..rows import Array, Batch
from ..schedule import Schedule, constant, linear
from ..sequence import Sequence, SequenceBatch, sequence_priority
from ..spec import Spec
from ..window import Window
from .agent import AgentState, Learned, Now, Replayed
from .losses import chosen, huber, masked_mean, n_step_returns, squared, td_target
from .networks import Network
from .optimizer import Optimizer
from .q_agent import Applied, QAgent, apply_gradient, relative_change, without_burn_in

Loss = Callable[[Any], tuple[Array, tuple[Array, Array]]]  # of parameters; values and errors too


@dataclass(frozen=True)
class DQNSettings:
    """How a DQN learns: from transitions or, with `network.memory`, from sequences (R2D2).

    The target network follows by `tau` after every update, or, if `target_every` is given, is
    copied whole after that many updates: this class alone changes it. Rewards are multiplied by
    `reward_scale`; `reward_clip` bounds each single one before n-step sums (0: as they are).
    With a memory, a batch is that many sequences of `length` rows, and `burn_in` rows before each
    bring the memory from what it was when they were played to what it would be now.
    `DQNSettings(n_step=3, tau=0.005)`.
    """

    double: bool = True
    loss: Literal["huber", "squared"] = "huber"
    tau: float = 0.005
    target_every: int = 0
    reward_scale: float = 1.0
    reward_clip: float = 0.0
    batch: int = 64
    gamma: float = 0.99
    n_step: int = 1
    length: int = 32  # rows of a sequence, with network.memory only
    burn_in: int = 8  # rows before a sequence, with network.memory only
    update_every: int = 1  # turns of all envs between two rounds of updates
    updates: int = 1  # per such round
    min_fill: int = 2_000  # rows stored before the first update, per policy
    capacity: int = 102_400  # rows, per policy
    beta: Schedule = field(default_factory=lambda: linear(0.4, 1.0))  # of importance weights
    epsilon: Schedule = field(default_factory=lambda: linear(1.0, 0.05, over=0.25))
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(rate=constant(1e-3)))

    def __post_init__(self) -> None:
        if self.loss not in ("huber", "squared"):
            raise BadConfig(f"DQN: loss must be huber or squared, got {self.loss!r}")
        if not 0 < self.tau <= 1 or self.target_every < 0:
            raise BadConfig(
                "DQN: tau must lie in (0, 1] and target_every be 0 or more, got "
                f"{self.tau} and {self.target_every}"
            )
        sizes = ("batch", "n_step", "length", "update_every", "updates", "min_fill", "capacity")
        for name in sizes:
            if getattr(self, name) < 1:
                raise BadConfig(f"DQN: {name} must be at least 1, got {getattr(self, name)}")
        if self.burn_in < 0:
            raise BadConfig(f"DQN: burn_in must be 0 or more, got {self.burn_in}")
        if self.min_fill > self.capacity:
            raise BadConfig(
                f"DQN: min_fill {self.min_fill} is more than the capacity {self.capacity}, so "
                "learning would never start; lower it or raise the capacity"
            )

    def learns(self, stack: int, memory: int = 0) -> Replayed:
        """From n-step transitions or, with memory, from sequences."""
        clip = self.reward_clip
        window = Window(stack, self.n_step, self.gamma, reward_clip=clip)
        if memory:
            burn_in = self.burn_in
            window = Sequence(self.length, stack, self.gamma, burn_in=burn_in, reward_clip=clip)
        sizes = (self.batch, self.capacity, self.min_fill, self.update_every, self.updates)
        return Replayed(window, *sizes, self.reward_scale)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon, the learning rate and the exponent of importance weights."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate, "beta": self.beta}

    def syncs(self, updates: int) -> int:
        """How often the target network has changed after that many updates."""
        return updates // self.target_every if self.target_every else updates

    def tiny(self) -> DQNSettings:
        """Learns after a few rows."""
        rule = dataclasses.replace(self.optimizer, accumulate=1)
        sizes = dict(batch=4, min_fill=8, capacity=64, updates=1, update_every=2)
        sizes |= dict(length=4, burn_in=2)
        return dataclasses.replace(self, **sizes, optimizer=rule)


class DQN(QAgent):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = DQN(DQNSettings(), Network(), spec, stack=4); state = agent.init(key)`.
    `state, learned = agent.update(state, batch, {"rate": 1e-3, "beta": 1.0})`.
    """

    Settings: ClassVar[type] = DQNSettings
    remembers: ClassVar[bool] = True

    def __init__(self, settings: DQNSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(network, settings.optimizer, spec, stack)
        self.settings = settings
        self._loss = huber if settings.loss == "huber" else squared

    def init(self, key: jax.Array) -> AgentState:
        """A fresh agent, its target network equal to the online one."""
        state = super().init(key)
        return state._replace(target=jax.tree.map(jnp.copy, state.params))

    def update(
        self, state: AgentState, batch: Batch | SequenceBatch, now: Now
    ) -> tuple[AgentState, Learned]:
        """One gradient, one step of the target network; importance weights to the power beta."""
        of = self._sequence_loss if self.memory else self._transition_loss
        loss_of, mask = of(state, batch, now)
        (loss, (q, error)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        done = apply_gradient(self.settings.optimizer, state, loss, gradient, now["rate"])
        target, synced = self._follow(state, done)
        new = AgentState(done.params, target, done.optimizer, done.updates, synced, ~done.good)
        numbers = {
            "loss": loss,
            "q": masked_mean(q, mask),
            "gradient": done.gradient,
            "change": relative_change(state.params, new.params),
        }
        priority = sequence_priority(error, mask) if self.memory else jnp.abs(error)
        return new, Learned(numbers, priority)

    def _transition_loss(self, state: AgentState, batch: Any, now: Now) -> tuple[Loss, Array]:
        """Of a `Batch`; and which rows count."""
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
        """Of a `SequenceBatch`, with memory; and which rows count."""
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

    def _follow(self, state: AgentState, done: Applied) -> tuple[Any, Array]:
        """The one place where the target network changes."""
        every, tau = self.settings.target_every, self.settings.tau
        due = done.good & (done.updates % every == 0) if every else done.good

        def follow(param: Array, target: Array) -> Array:
            return jnp.where(due, param if every else target + tau * (param - target), target)

        return jax.tree.map(follow, done.params, state.target), state.synced + due
