"""`SAC`: an actor that is paid for being unpredictable, and critics that count this in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array, Batch
from ..schedule import Schedule
from ..spec import Spec
from .actor_critic import ActorCritic, Params, norm, stepped
from .actor_critic_settings import ActorCriticSettings, adam
from .agent import AgentState, Learned, Now
from .control import saturated, spread, squashed, temperature_loss, twin_target
from .losses import masked_mean
from .networks import Network
from .optimizer import Optimizer

_NARROWEST, _WIDEST = -10.0, 2.0  # logarithms of standard deviations, before squashing


@dataclass(frozen=True)
class SACSettings(ActorCriticSettings):
    """How a SAC learns, from n-step transitions. `optimizer` is for the critics.

    Actions are drawn uniformly until `min_fill` rows are stored. The temperature, which weighs
    entropy against reward, begins at `temperature` and is learned so that the policy's entropy is
    `entropy` for each number of an action, counted where actions lie in [-1, 1]; with
    `learn_temperature` off it is constant. `SACSettings(n_step=3, batch=512)`.
    """

    temperature: float = 1.0  # weight of entropy against reward, at the beginning
    learn_temperature: bool = True  # off: the temperature is constant
    entropy: float = -1.0  # target entropy per action dimension
    temperature_optimizer: Optimizer = field(default_factory=lambda: adam(3e-4))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise BadConfig(f"SAC: temperature must be above 0, got {self.temperature}")
        if not math.isfinite(self.entropy):
            raise BadConfig(f"SAC: entropy must be a number, got {self.entropy}")

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The learning rates and the exponent of importance weights."""
        return {**super().schedules, "temperature_rate": self.temperature_optimizer.rate}


class SAC(ActorCritic):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = SAC(SACSettings(), Network(), spec, stack=1); state = agent.init(key)`.
    """

    Settings: ClassVar[type] = SACSettings
    name: ClassVar[str] = "sac"
    reports: ClassVar[tuple[str, ...]] = (
        *("loss", "q", "gradient", "change"),
        *("actor_loss", "temperature", "entropy", "saturated", "spread"),
    )

    def __init__(self, settings: SACSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(settings, network, spec, stack, outputs=2)
        self._entropy = settings.entropy * self.box.size

    def _first_temperature(self) -> Array:
        return jnp.full((), math.log(self.settings.temperature), np.float32)

    def _gaussian(self, actor: Any, obs: Array) -> tuple[Array, Array]:
        """Mean and logarithm of the standard deviation, before squashing: [batch, n] each."""
        mean, log_std = jnp.split(self._out(actor, obs), 2, -1)
        return mean, jnp.clip(log_std, _NARROWEST, _WIDEST)

    def _middle(self, actor: Any, obs: Array) -> Array:
        return jnp.tanh(self._gaussian(actor, obs)[0])

    def _noisy(self, actor: Any, obs: Array, normal: Array, now: Now) -> Array:
        return squashed(*self._gaussian(actor, obs), normal)[0]

    def update(self, state: AgentState, batch: Batch, now: Now) -> tuple[AgentState, Learned]:
        """One gradient of the critics, then of the actor, then of the temperature."""
        settings, old, rules = self.settings, state.params, state.optimizer
        next_key, key = self._keys(state, 2)
        temperature = jnp.exp(old.log_temperature)

        mean, log_std = self._gaussian(old.actor, batch.next_obs)
        normal = jax.random.normal(next_key, mean.shape, np.float32)
        next_action, log_prob = squashed(mean, log_std, normal)
        after = self.values(state.target.critics, batch.next_obs, next_action)
        reward = batch.reward * settings.reward_scale
        goal = twin_target(reward, batch.discount, after, -temperature * log_prob)
        loss, steep, (q, error) = self._regress(old.critics, batch, goal, now)
        critics, of_critics, stride = stepped(
            settings.optimizer, old.critics, rules.critics, steep, now["rate"]
        )

        def actor_loss(actor: Any) -> tuple[Array, tuple[Array, ...]]:
            mean, log_std = self._gaussian(actor, batch.obs)
            action, log_prob = squashed(
                mean, log_std, jax.random.normal(key, mean.shape, np.float32)
            )
            value = self.values(critics, batch.obs, action).min(0)
            return masked_mean(temperature * log_prob - value, batch.mask), (mean, action, log_prob)

        found, slope = jax.value_and_grad(actor_loss, has_aux=True)(old.actor)
        cost, (mean, action, log_prob) = found
        actor, of_actor, step = stepped(
            settings.actor_optimizer, old.actor, rules.actor, slope, now["actor_rate"]
        )

        def heat_loss(log_temperature: Array) -> Array:
            of_each = temperature_loss(log_temperature, log_prob, self._entropy)
            return masked_mean(of_each, batch.mask)

        hotter = jax.grad(heat_loss)(old.log_temperature)
        warmth, of_warmth = old.log_temperature, rules.temperature
        if settings.learn_temperature:
            warmth, of_warmth, _ = stepped(
                settings.temperature_optimizer,
                *(warmth, of_warmth, hotter, now["temperature_rate"]),
            )

        params = Params(actor, critics, warmth)
        target = self._followed(state.target, params)
        rules = rules._replace(actor=of_actor, critics=of_critics, temperature=of_warmth)
        # Before anything is written: no one may ask for the old parameters after that, which would
        # have to be copied for it.
        gradient, size = norm(steep, slope), norm(old.actor, old.critics)
        total = loss + cost + gradient + hotter + size
        new = self._finish(state, (params, target, rules), total)
        numbers = {
            "loss": loss,
            "q": masked_mean(q.mean(0), batch.mask),
            "gradient": gradient,
            "change": jnp.where(new.bad, 0, norm(step, stride) / (size + 1e-12)),
            "actor_loss": cost,
            "temperature": temperature,
            "entropy": -masked_mean(log_prob, batch.mask),
            "saturated": saturated(action),
            "spread": spread(jnp.tanh(mean)),
        }
        return new, Learned(numbers, jnp.abs(error).mean(0))
