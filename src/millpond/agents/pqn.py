"""`PQN`: Q-learning from rollouts, without replay and without a target network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..errors import BadConfig
from ..rows import BORDER, FIRST, Array
from ..schedule import Schedule, linear
from ..spec import Spec
from ..window import Window
from .agent import AgentState, Learned, Now, Rollout, Rollouts
from .losses import chosen, lambda_returns, squared
from .networks import Network
from .optimizer import Optimizer
from .q_agent import QAgent, relative_change, unrolled


@dataclass(frozen=True)
class PQNSettings:
    """How a PQN learns: `rollout` turns of all envs, then `epochs` passes over them.

    Rewards are clipped to `reward_clip` (0: not), then multiplied by `reward_scale`.
    `PQNSettings(rollout=32, minibatches=32, epochs=2)`.
    """

    rollout: int = 32  # turns of all envs per rollout
    minibatches: int = 32  # minibatches that a rollout is divided into
    epochs: int = 2  # passes over each rollout
    gamma: float = 0.99  # discount per step
    lam: float = 0.65  # lambda of the returns: 0 is one step, 1 the whole rollout
    reward_scale: float = 1.0  # multiply rewards by this
    reward_clip: float = 0.0  # clip rewards to this absolute value; 0: no clipping
    epsilon: Schedule = field(default_factory=lambda: linear(1.0, 0.05, over=0.1))
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer("radam", linear(5e-4, 0.0), clip=10.0)
    )

    def __post_init__(self) -> None:
        for name in ("rollout", "minibatches", "epochs"):
            if getattr(self, name) < 1:
                raise BadConfig(f"PQN: {name} must be at least 1, got {getattr(self, name)}")
        if not (0 <= self.gamma <= 1 and 0 <= self.lam <= 1):
            raise BadConfig(
                f"PQN: gamma and lam must lie in [0, 1], got {self.gamma} and {self.lam}"
            )
        self.epsilon.check_levels("PQN: epsilon", 0.0, 1.0)

    def learns(self, stack: int, memory: int = 0) -> Rollouts:
        """It learns from rollouts."""
        window = Window(stack, gamma=self.gamma, reward_clip=self.reward_clip)
        updates = self.minibatches * self.epochs
        sizes = (self.rollout, updates, self.minibatches, self.reward_scale)
        return Rollouts(window, *sizes, whole_envs=memory > 0)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Epsilon and the learning rate."""
        return {"epsilon": self.epsilon, "rate": self.optimizer.rate}

    def tiny(self) -> PQNSettings:
        """The same settings, but it learns after two turns."""
        return dataclasses.replace(self, rollout=2, minibatches=2, epochs=1)


class Minibatch(NamedTuple):
    """Part of a rollout with its targets; the mask is false for rows that are not steps.

    Fields are [batch, ...] or, with memory, [batch, time, ...].
    `state, learned = agent.update(state, minibatch, rate)`.
    """

    obs: Array
    action: Array
    goal: Array
    mask: Array
    first: Any = None  # with memory: where episodes begin
    memory: Any = None  # float32[batch, units]: before the first row


class PQN(QAgent):
    """Pure functions over an `AgentState`; vmap them for several agents or seeds.

    `state, learned, _ = agent.learn(state, rollout, {"rate": 5e-4}, key)`.
    """

    Settings: ClassVar[type] = PQNSettings
    remembers: ClassVar[bool] = True

    def __init__(self, settings: PQNSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(network, settings.optimizer, spec, stack)
        self.settings = settings
        self._axes = (-2, -1) if network.memory else -1  # of a minibatch's rows

    def goals(self, rollout: Rollout) -> Array:
        """The lambda-returns of all rows of a rollout: [time, env]."""
        settings, reward = self.settings, rollout.reward
        if settings.reward_clip:
            reward = jnp.clip(reward, -settings.reward_clip, settings.reward_clip)
        return lambda_returns(
            reward * settings.reward_scale,
            rollout.terminated,
            rollout.terminated | rollout.truncated,
            rollout.value,
            settings.gamma,
            settings.lam,
        )

    def _dealt(self, rollout: Rollout) -> Minibatch:
        """The units that minibatches are made of: single rows or, with memory, whole envs."""
        steps = (rollout.flags & BORDER) == 0
        rows = Minibatch(rollout.obs, rollout.action, self.goals(rollout), steps)
        if not self.memory:
            number = rollout.action.size
            return jax.tree.map(
                lambda leaf: jnp.asarray(leaf).reshape(number, *leaf.shape[2:]), rows
            )
        rows = rows._replace(first=(rollout.flags & FIRST) != 0)
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf).swapaxes(0, 1), rows)
        return rows._replace(memory=jnp.asarray(rollout.memory[0]))

    def learn(
        self, state: AgentState, rollout: Rollout, now: Now, key: jax.Array
    ) -> tuple[AgentState, Learned, Minibatch]:
        """All passes over one rollout. If `state.bad`, the third result is the bad minibatch.

        Then only the updates before that minibatch are kept.
        """
        rate, flat = now["rate"], self._dealt(rollout)
        number, parts = len(flat.action), self.settings.minibatches
        keys = jax.random.split(key, self.settings.epochs)
        orders = jax.vmap(lambda key: jax.random.permutation(key, number))(keys)
        orders = orders.reshape(len(keys), parts, -1)

        def taken(order: Array) -> Minibatch:
            return jax.tree.map(lambda leaf: leaf[order], flat)

        def epoch(state: AgentState, order: Array) -> tuple[AgentState, Array]:
            batches = taken(order)
            parts = batches, self._shares(batches.mask)

            def turn(state: AgentState, part: tuple[Minibatch, Array]) -> tuple[AgentState, Array]:
                return self._update(state, *part, rate)

            return jax.lax.scan(turn, state, parts, unroll=unrolled(4))

        def again(index: Array, state: AgentState) -> AgentState:
            return self.update(state, taken(each[index]), rate)[0]

        new, found = jax.lax.scan(epoch, state, orders)
        # A bad update is not counted, so the count shows which one it was. Choosing between old and
        # new state in every update would copy the optimizer's state each time; so if one is bad,
        # which ends the run, the good ones before it are repeated.
        each = orders.reshape(parts * len(keys), -1)
        good = (new.updates - state.updates).astype(np.int32)
        back = jax.lax.fori_loop(0, jnp.where(new.bad, good, 0), again, state)
        kept = jax.tree.map(lambda b, n: jnp.where(new.bad, b, n), back, new)
        loss, q, gradient = found.mean((0, 1))
        change = relative_change(state.params, kept.params)
        wrong = taken(each[jnp.minimum(good, len(each) - 1)])
        numbers = {"loss": loss, "q": q, "gradient": gradient, "change": change}
        learned = Learned(numbers, jnp.zeros(()))
        return kept._replace(bad=new.bad), learned, wrong

    def update(
        self, state: AgentState, batch: Minibatch, rate: Array
    ) -> tuple[AgentState, Learned]:
        """One gradient step on one minibatch; one that is not finite is applied, and flagged."""
        new, (loss, q, gradient) = self._update(state, batch, self._shares(batch.mask), rate)
        numbers = {"loss": loss, "q": q, "gradient": gradient, "change": jnp.zeros(())}
        return new, Learned(numbers, jnp.zeros(()))

    def _update(
        self, state: AgentState, batch: Minibatch, share: Array, rate: Array
    ) -> tuple[AgentState, Array]:
        """The new state, and loss, q and the gradient's norm as one array: one write on a GPU."""

        def loss_of(params: Any) -> tuple[Array, Array]:
            if self.memory:
                values = self.unroll(params, batch.obs, batch.memory, batch.first)[0]
            else:
                values = self.values(params, batch.obs)
            q = chosen(values, batch.action)
            means = (jnp.stack([squared(q - batch.goal), q]) * share).sum(self._axes)
            return means[0], means

        gradient, means = jax.grad(loss_of, has_aux=True)(state.params)
        rule = self.settings.optimizer
        change, optimizer = rule.change(gradient, state.optimizer, state.params, rate)
        steepness = optax.tree.norm(gradient)
        # The norm of a tree is finite only if every number in it is.
        bad = state.bad | ~jnp.isfinite(means[0] + steepness)
        params = optax.apply_updates(state.params, change)
        new = AgentState(params, None, optimizer, state.updates + ~bad, state.synced, bad)
        return new, jnp.append(means, steepness)

    def _shares(self, mask: Array) -> Array:
        """The weight of each row in its minibatch's mean: bool[..., batch] -> float32."""
        return mask / jnp.maximum(mask.sum(self._axes, keepdims=True), 1)
