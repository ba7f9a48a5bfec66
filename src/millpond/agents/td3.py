"""`TD3`: an actor that leaves nothing to chance, and critics that value it with noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array, Batch
from ..schedule import Schedule, constant
from ..spec import Spec
from .actor_critic import ActorCritic, Params, norm, stepped
from .actor_critic_settings import ActorCriticSettings, adam
from .agent import AgentState, Learned, Now
from .control import saturated, smoothed, spread, twin_target
from .losses import masked_mean
from .networks import Network
from .optimizer import Optimizer


@dataclass(frozen=True)
class TD3Settings(ActorCriticSettings):
    """How a TD3 learns, from n-step transitions. `optimizer` is for the critics.

    Actions are drawn uniformly until `min_fill` rows are stored; after that `noise` is added, in
    shares of half the width of the bounds, as `target_noise` is, up to `noise_clip`, to what the
    critics value next. The actor and the targets learn at every `delay`th update.
    `TD3Settings(delay=2, noise=constant(0.1))`.
    """

    noise: Schedule = field(default_factory=lambda: constant(0.1))
    target_noise: float = 0.2  # noise on the target's actions; 1 is half the width of the bounds
    noise_clip: float = 0.5  # largest size of that noise
    delay: int = 2  # critic updates per update of the actor and the targets
    optimizer: Optimizer = field(default_factory=lambda: adam(1e-3))
    actor_optimizer: Optimizer = field(default_factory=lambda: adam(1e-3))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay < 1:
            raise BadConfig(f"TD3: delay must be at least 1, got {self.delay}")
        if not (self.target_noise >= 0 and self.noise_clip >= 0):
            raise BadConfig(
                "TD3: target_noise and noise_clip must be 0 or more, got "
                f"{self.target_noise} and {self.noise_clip}"
            )

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Noise, the learning rates and the exponent of importance weights."""
        return {"noise": self.noise, **super().schedules}

    def syncs(self, updates: int) -> int:
        """How often the targets have changed after that many updates."""
        return updates // self.delay


class TD3(ActorCritic):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = TD3(TD3Settings(), Network(), spec, stack=1); state = agent.init(key)`.
    """

    Settings: ClassVar[type] = TD3Settings
    name: ClassVar[str] = "td3"
    target_actor: ClassVar[bool] = True
    reports: ClassVar[tuple[str, ...]] = (
        *("loss", "q", "gradient", "change"),
        *("actor_loss", "saturated", "spread"),
    )

    def __init__(self, settings: TD3Settings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(settings, network, spec, stack, outputs=1)

    def _middle(self, actor: Any, obs: Array) -> Array:
        return jnp.tanh(self._out(actor, obs))

    def _noisy(self, actor: Any, obs: Array, normal: Array, now: Now) -> Array:
        return jnp.clip(self._middle(actor, obs) + now["noise"] * normal, -1, 1)

    def update(self, state: AgentState, batch: Batch, now: Now) -> tuple[AgentState, Learned]:
        """One gradient of the critics and, if due, of the actor; then the targets follow."""
        settings, old, rules = self.settings, state.params, state.optimizer
        due = (state.updates + 1) % settings.delay == 0

        planned = self._middle(state.target.actor, batch.next_obs)
        normal = jax.random.normal(self._keys(state, 1)[0], planned.shape, np.float32)
        noisy = smoothed(planned, normal, settings.target_noise, settings.noise_clip)
        after = self.values(state.target.critics, batch.next_obs, noisy)
        goal = twin_target(batch.reward * settings.reward_scale, batch.discount, after)
        loss, steep, (q, error) = self._regress(old.critics, batch, goal, now)
        critics, of_critics, stride = stepped(
            settings.optimizer, old.critics, rules.critics, steep, now["rate"]
        )

        def actor_loss(actor: Any) -> tuple[Array, Array]:
            action = self._middle(actor, batch.obs)
            first = jax.tree.map(lambda leaf: leaf[:1], critics)
            value = self.values(first, batch.obs, action)[0]
            return -masked_mean(value, batch.mask), action

        (cost, action), slope = jax.value_and_grad(actor_loss, has_aux=True)(old.actor)
        rule = settings.actor_optimizer
        *moved, step = stepped(rule, old.actor, rules.actor, slope, now["actor_rate"])
        actor, of_actor = jax.tree.map(
            lambda new, stays: jnp.where(due, new, stays), moved, [old.actor, rules.actor]
        )

        params = Params(actor, critics)
        target = self._followed(state.target, params, due)
        gradient, size = norm(steep, slope), norm(old.actor, old.critics)
        far = jnp.hypot(norm(stride), jnp.where(due, norm(step), 0))
        learned = params, target, rules._replace(actor=of_actor, critics=of_critics)
        new = self._finish(state, learned, loss + cost + gradient + size, due)
        numbers = {
            "loss": loss,
            "q": masked_mean(q.mean(0), batch.mask),
            "gradient": gradient,
            "change": jnp.where(new.bad, 0, far / (size + 1e-12)),
            "actor_loss": cost,
            "saturated": saturated(action),
            "spread": spread(action),
        }
        return new, Learned(numbers, jnp.abs(error).mean(0))
