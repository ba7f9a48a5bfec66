"""`TargetAgent`: what DQN, IQN and Q(lambda) share: gradient steps and a target network."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..rows import Array, Batch
from ..sequence import SequenceBatch
from ..spec import Spec
from .agent import AgentState, Learned, Now
from .control import polyak
from .networks import Network
from .q_agent import Applied, QAgent, apply_gradient, report_of
from .replay_settings import ReplaySettings

# A function of the parameters, which returns loss, (values of the actions taken, errors).
Loss = Callable[[Any], tuple[Array, tuple[Array, Array]]]


class TargetAgent(QAgent, abc.ABC):
    """A `QAgent` with a target network; a subclass adds `Settings` and `loss`.

    `state, learned = agent.update(state, batch, {"rate": 1e-3, "beta": 1.0})`.
    """

    def __init__(self, settings: ReplaySettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(network, settings.optimizer, spec, stack)
        self.settings: Any = settings

    def init(self, key: jax.Array) -> AgentState:
        """A freshly initialised agent, its target network equal to the online one."""
        state = super().init(key)
        return state._replace(target=jax.tree.map(jnp.copy, state.params))

    @abc.abstractmethod
    def loss(self, state: AgentState, batch: Batch | SequenceBatch, now: Now) -> tuple[Loss, Array]:
        """The loss as a function of the parameters, and which rows count, bool[batch, ...]."""

    def priority(self, error: Array, mask: Array) -> Array:
        """Priorities of the samples for prioritised replay: float32[batch]."""
        return jnp.abs(error)

    def update(
        self, state: AgentState, batch: Batch | SequenceBatch, now: Now
    ) -> tuple[AgentState, Learned]:
        """One gradient step and one step of the target network; importance weights ** beta."""
        loss_of, mask = self.loss(state, batch, now)
        (loss, (q, error)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        done = apply_gradient(self.settings.optimizer, state, loss, gradient, now["rate"])
        target, synced = self._follow(state, done)
        new = AgentState(done.params, target, done.optimizer, done.updates, synced, ~done.good)
        return new, Learned(report_of(state, done, loss, q, mask), self.priority(error, mask))

    def _follow(self, state: AgentState, done: Applied) -> tuple[Any, Array]:
        """The new target network, and how often it has changed."""
        if state.target is None:
            return None, state.synced
        every = self.settings.target_every
        if not every:
            tau = jnp.where(done.good, self.settings.tau, 0.0)
            return polyak(state.target, done.params, tau), state.synced + done.good
        due = done.good & (done.updates % every == 0)
        target = jax.tree.map(lambda p, t: jnp.where(due, p, t), done.params, state.target)
        return target, state.synced + due
