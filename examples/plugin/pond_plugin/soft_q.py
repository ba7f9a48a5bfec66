"""`SoftQ`: Q-learning that explores by a softmax over its values. An agent takes one file."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from millpond import Window
from millpond.agents import (
    Act,
    Learned,
    Optimizer,
    QAgent,
    Replayed,
    apply_gradient,
    relative_change,
)
from millpond.schedule import Schedule, constant, linear


@dataclass(frozen=True)
class SoftQSettings:
    """Every field is an option: `--softq.batch 128`."""

    gamma: float = 0.9
    batch: int = 32
    min_fill: int = 256  # rows stored before the first update
    capacity: int = 8_192  # rows kept
    updates: int = 4  # after every turn of all envs
    tau: float = 0.02  # how fast the target network follows
    heat: Schedule = field(default_factory=lambda: linear(1.0, 0.02, over=0.5))
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(rate=constant(1e-3)))

    def learns(self, stack):
        window = Window(stack, gamma=self.gamma)
        sizes = (self.batch, self.capacity, self.min_fill)
        return Replayed(window, *sizes, turns=1, updates=self.updates)

    @property
    def schedules(self):
        return {"heat": self.heat, "rate": self.optimizer.rate}

    def tiny(self):
        return replace(self, batch=4, min_fill=8, capacity=64)


class SoftQ(QAgent):
    """`QAgent` brings a Q-network, `init`, `best`, `worth` and `adopt`; the rest is here."""

    Settings: ClassVar[type] = SoftQSettings

    def __init__(self, settings, network, spec, stack):
        super().__init__(network, settings.optimizer, spec, stack)
        self.settings = settings

    def init(self, key):
        state = super().init(key)
        return state._replace(target=jax.tree.map(jnp.copy, state.params))

    def chance(self, key, envs):  # what a turn leaves to chance; drawn ahead of the values
        return jax.random.gumbel(key, (envs, self.actions))

    def act(self, params, obs, chance, now):
        values = self.values(params, obs)
        action = (values / now["heat"] + chance).argmax(-1).astype(jnp.int32)
        return Act(action, values.max(-1))

    def update(self, state, batch, now):
        def loss_of(params):
            values = self.values(params, batch.obs)
            q = jnp.take_along_axis(values, batch.action[:, None], 1)[:, 0]
            after = self.values(state.target, batch.next_obs).max(-1)
            error = q - (batch.reward + batch.discount * after)
            return (0.5 * error**2 * batch.weight * batch.mask).mean(), (q, error)

        (loss, (q, error)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        done = apply_gradient(self.settings.optimizer, state, loss, gradient, now["rate"])
        tau = jnp.where(done.good, self.settings.tau, 0.0)
        target = jax.tree.map(lambda t, p: t + tau * (p - t), state.target, done.params)
        numbers = {"loss": loss, "q": q.mean(), "gradient": done.gradient}
        numbers["change"] = relative_change(state.params, done.params)
        new = state._replace(
            params=done.params,
            target=target,
            optimizer=done.optimizer,
            updates=done.updates,
            synced=state.synced + done.good,
            bad=~done.good,
        )
        return new, Learned(numbers, jnp.abs(error))
