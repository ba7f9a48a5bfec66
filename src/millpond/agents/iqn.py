"""`IQN`: implicit quantile networks, which learn the distribution of returns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Spec
from .agent import AgentState, Now
from .losses import quantile_huber
from .networks import Network, QNetwork
from .q_settings import QSettings
from .target_agent import Loss, TargetAgent


@dataclass(frozen=True)
class IQNSettings(QSettings):
    """How an IQN learns: `quantiles` of each transition against `goals` samples of its target.

    Quantile fractions are redrawn for every update and embedded as `cosines` features. An action's
    value, for acting and evaluation, is the mean of `acting` evenly spaced quantiles. Further
    settings are those of `QSettings`.
    `IQNSettings(n_step=3, quantiles=16)`.
    """

    quantiles: int = 8  # quantiles of the return learned per transition
    goals: int = 8  # samples of each transition's target
    acting: int = 32  # quantiles whose mean is an action's value
    cosines: int = 64  # cosine features of a quantile's fraction
    kappa: float = 1.0  # the loss is quadratic for errors up to this size, linear beyond

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(1, "quantiles", "goals", "acting", "cosines")
        if not 0 < self.kappa < np.inf:
            raise BadConfig(f"IQN: kappa must be above 0 and finite, got {self.kappa}")


class QuantileNetwork(QNetwork):
    """obs[batch, stack, *shape], share[batch, n] -> quantiles float32[batch, n, actions]

    `share` holds quantile fractions; without it the result is values float32[batch, actions], the
    mean of `acting` quantiles. The features of torso and layers are multiplied elementwise with the
    embedding of the fractions' cosines; one more layer of `width` follows.
    `QuantileNetwork(..., acting=32, cosines=64).apply({"params": params}, obs, share)`.
    """

    acting: int = 32
    cosines: int = 64

    @nn.compact
    def __call__(self, obs: Array, *share: Array) -> Array:
        asked = share[0] if share else jnp.broadcast_to(midpoints(self.acting), (1, self.acting))
        seen = self._seen(obs)
        waves = np.float32(np.pi) * np.arange(1, self.cosines + 1, dtype=np.float32)
        waves = jnp.cos(waves * asked[..., None])
        place = nn.relu(nn.Dense(seen.shape[-1], name="place")(waves))
        found = self._values(self._layer(seen[:, None] * place, self.width))
        return found if share else found.mean(1)


class IQN(TargetAgent):
    """Pure functions over an `AgentState`; vmap them for several agents.

    `agent = IQN(IQNSettings(), Network(), spec, stack=1); state = agent.init(key)`.
    `state, learned = agent.update(state, batch, {"rate": 1e-3, "beta": 1.0})`.
    """

    Settings: ClassVar[type] = IQNSettings

    def __init__(self, settings: IQNSettings, network: Network, spec: Spec, stack: int) -> None:
        super().__init__(settings, network, spec, stack)
        self._module = QuantileNetwork(
            self.actions,
            *dataclasses.astuple(network),
            acting=settings.acting,
            cosines=settings.cosines,
        )

    def quantiles(self, params: Any, obs: Array, share: Array) -> Array:
        """obs[batch, stack, ...], share[batch, n] -> float32[batch, n, actions]"""
        return self._module.apply({"params": params}, obs, share)

    def loss(self, state: AgentState, batch: Any, now: Now) -> tuple[Loss, Array]:
        """The loss on a `Batch`, and which rows count. Errors are those of the mean, as in DQN."""
        settings = self.settings
        weight = batch.weight ** now["beta"] * batch.mask
        asking, sampling = jax.random.split(chance_of(state, batch))
        rows = len(batch.reward)
        share = jax.random.uniform(asking, (rows, settings.quantiles), np.float32)
        sample = jax.random.uniform(sampling, (rows, settings.goals), np.float32)
        chooser = self.values(state.params if settings.double else state.target, batch.next_obs)
        after = self.quantiles(state.target, batch.next_obs, sample)
        after = _of(after, chooser.argmax(-1))
        goal = settings.reward_scale * batch.reward[:, None] + batch.discount[:, None] * after

        def loss_of(params: Any) -> tuple[Array, tuple[Array, Array]]:
            quantile = _of(self.quantiles(params, batch.obs, share), batch.action)
            loss = quantile_huber(quantile, share, goal, settings.kappa)
            q = quantile.mean(-1)
            return (loss * weight).mean(), (q, q - goal.mean(-1))

        return loss_of, batch.mask


def midpoints(number: int) -> Array:
    """Evenly spaced fractions, such as 1/4 and 3/4: float32[number]."""
    return (jnp.arange(number, dtype=np.float32) + np.float32(0.5)) / np.float32(number)


def chance_of(state: AgentState, batch: Any) -> jax.Array:
    """The random key of an update, from the number of updates so far and the rows drawn.

    So an update is a pure function of state and batch, and agents that learn side by side differ.
    """
    rows = jnp.asarray(batch.draw.row).astype(np.uint32).sum(dtype=np.uint32)
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), state.updates), rows)


def _of(quantiles: Array, action: Array) -> Array:
    """The quantiles of the actions taken: [batch, n, actions], int[batch] -> [batch, n]"""
    return jnp.take_along_axis(quantiles, action[:, None, None], -1)[..., 0]
