"""Bugs to plant in agents with real actions: goals, actor, targets and bounds; see `sabotage`."""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..agents import sac as sac_module
from ..agents.action_box import ActionBox
from ..agents.actor_critic import ActorCritic
from ..agents.sac import SAC
from ..rows import Array
from .sabotage import patched


def _goal(make: Callable[[Array, Array, Array, Array], Array]) -> Any:
    return patched(sac_module, "twin_target", make)


def higher_critic() -> Any:
    """The goal takes the higher of both critics."""
    return _goal(lambda r, d, after, bonus: r + d * (after.max(0) + bonus))


def no_future() -> Any:
    """The goal is the reward alone."""
    return _goal(lambda r, d, after, bonus: r)


def negated() -> Any:
    """Rewards enter the goal with the wrong sign."""
    return _goal(lambda r, d, after, bonus: -r + d * (after.min(0) + bonus))


def entropy_costs() -> Any:
    """Entropy is paid with the wrong sign, and much."""
    return _goal(lambda r, d, after, bonus: r + d * (after.min(0) - 20 * bonus))


def actor_downhill() -> Any:
    """The actor's gradient has the wrong sign: it looks for what is worth least."""
    out = ActorCritic._out

    def other(agent: ActorCritic, actor: Any, obs: Array) -> Array:
        found = out(agent, actor, obs)
        return 2 * jax.lax.stop_gradient(found) - found

    return patched(ActorCritic, "_out", other)


def still_targets() -> Any:
    """The targets never move."""
    return patched(ActorCritic, "_followed", lambda agent, target, params, due=True: target)


def narrow_actions() -> Any:
    """Actions reach a third of their bounds."""
    outward = ActionBox.outward
    return patched(ActionBox, "outward", lambda box, action: outward(box, action * 0.3))


def no_correction_for_tanh() -> Any:
    """Log-probabilities are those of the actions before they are squashed."""

    def other(mean: Array, log_std: Array, normal: Array) -> tuple[Array, Array]:
        density = -0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)
        return jnp.tanh(mean + jnp.exp(log_std) * normal), density.sum(-1)

    return patched(sac_module, "squashed", other)


def temperature_the_wrong_way() -> Any:
    """The temperature falls where entropy is too low."""
    right = sac_module.temperature_loss
    return patched(sac_module, "temperature_loss", lambda *given: -right(*given))


def critics_on_raw_actions() -> Any:
    """Critics are trained on actions as the env takes them; the actor asks about scaled ones."""
    right = ActorCritic._regress

    def other(agent: Any, critics: Any, batch: Any, goal: Array, now: Any) -> Any:
        raw = agent.box.middle + agent.box.half * batch.action
        return right(agent, critics, batch._replace(action=raw), goal, now)

    return patched(ActorCritic, "_regress", other)


def never_noisy() -> Any:
    """The policy acts without noise."""
    return patched(SAC, "_noisy", lambda agent, actor, obs, normal, now: agent._middle(actor, obs))
