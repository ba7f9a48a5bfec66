"""What the textbook says of SAC and TD3 fails for every fault that is planted in them."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from test_control import (
    check_sac_by_the_textbook,
    check_td3_by_the_textbook,
    check_that_td3_waits,
    sac,
    td3,
)

import millpond.agents
from millpond.agents import ActorCritic
from millpond.agents.control import polyak, squashed, temperature_loss, twin_target

SOURCES = Path(millpond.agents.__file__).parent


def without_the_slope_of_tanh(mean, log_std, normal):
    action, _ = squashed(mean, log_std, normal)
    return action, (-0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def with_the_slope_added(mean, log_std, normal):
    action, right = squashed(mean, log_std, normal)
    return action, 2 * without_the_slope_of_tanh(mean, log_std, normal)[1] - right


def past_terminated(reward, discount, after, bonus=0.0):
    return twin_target(reward, jnp.where(discount == 0, 0.9, discount), after, bonus)


TARGETS = {
    "target from the mean": lambda r, d, a, b=0.0: r + d * (a.mean(0) + b),
    "target from the higher critic": lambda r, d, a, b=0.0: r + d * (a.max(0) + b),
    "target from one critic": lambda r, d, a, b=0.0: r + d * (a[0] + b),
    "bootstrap past terminated": past_terminated,
}
# What takes the place of a plain function: agent, function, what it is replaced by.
FUNCTIONS = {
    **{f"sac: {name}": ("sac", "twin_target", wrong) for name, wrong in TARGETS.items()},
    **{f"td3: {name}": ("td3", "twin_target", wrong) for name, wrong in TARGETS.items()},
    "log-probability not corrected": ("sac", "squashed", without_the_slope_of_tanh),
    "log-probability corrected the wrong way": ("sac", "squashed", with_the_slope_added),
    "target without entropy": ("sac", "twin_target", lambda r, d, a, b: twin_target(r, d, a)),
    "entropy with the wrong sign": (
        "sac",
        "twin_target",
        lambda r, d, a, b: twin_target(r, d, a, -b),
    ),
    "temperature runs away": ("sac", "temperature_loss", lambda *of: -temperature_loss(*of)),
    "target entropy with the wrong sign": (
        "sac",
        "temperature_loss",
        lambda t, log_prob, entropy: temperature_loss(t, log_prob, -entropy),
    ),
    "target noise without its clip": (
        "td3",
        "smoothed",
        lambda action, normal, noise, clip: jnp.clip(action + noise * normal, -1, 1),
    ),
    "noisy targets out of bounds": (
        "td3",
        "smoothed",
        lambda action, normal, noise, clip: action + jnp.clip(noise * normal, -clip, clip),
    ),
    "no target noise": ("td3", "smoothed", lambda action, *others: action),
    "sac: the target goes the whole way": (
        "actor_critic",
        "polyak",
        lambda target, params, tau: polyak(target, params, tau > 0),
    ),
}
# What takes the place of a line of an update: file, text, what it is replaced by.
LINES = {
    "sac: next values by the critics themselves": (
        *("sac", "self.values(state.target.critics,", "self.values(old.critics,"),
    ),
    "sac: next values of this observation": (
        *("sac", "critics, batch.next_obs, next_action)", "critics, batch.obs, next_action)"),
    ),
    "sac: next action for this observation": (
        *("sac", "self._gaussian(old.actor, batch.next_obs)"),
        "self._gaussian(old.actor, batch.obs)",
    ),
    "sac: rewards without their scale": (
        *("sac", "batch.reward * settings.reward_scale", "batch.reward"),
    ),
    "sac: the actor follows the higher critic": ("sac", "action).min(0)", "action).max(0)"),
    "sac: the actor follows one critic": ("sac", "action).min(0)", "action)[0]"),
    "sac: the actor follows the critics of before": (
        *("sac", "self.values(critics, batch.obs, action)"),
        "self.values(old.critics, batch.obs, action)",
    ),
    "sac: the actor flees from value": (
        *("sac", "temperature * log_prob - value", "temperature * log_prob + value"),
    ),
    "sac: the actor flees from entropy": (
        *("sac", "temperature * log_prob - value", "-temperature * log_prob - value"),
    ),
    "sac: no gradient through the action": (
        *("sac", "critics, batch.obs, action).min", "critics, batch.obs, still(action)).min"),
    ),
    "sac: no gradient through entropy": (
        *("sac", "temperature * log_prob - value", "temperature * still(log_prob) - value"),
    ),
    "sac: the actor learns at the critics' rate": ("sac", 'now["actor_rate"]', 'now["rate"]'),
    "sac: the critics learn at the actor's rate": ("sac", 'now["rate"]', 'now["actor_rate"]'),
    "sac: the temperature learns at the actor's rate": (
        *("sac", 'now["temperature_rate"]', 'now["actor_rate"]'),
    ),
    "critics: weights without their exponent": (
        *("actor_critic", 'batch.weight ** now["beta"]', "batch.weight"),
    ),
    "critics: actions as the env takes them": (
        *("actor_critic", "self.box.inward(batch.action)", "batch.action"),
    ),
    "critics: the sign of the error": ("actor_critic", "error = q - goal", "error = q + goal"),
    "td3: next values by the critics themselves": (
        *("td3", "self.values(state.target.critics,", "self.values(old.critics,"),
    ),
    "td3: next action by the actor itself": (
        *("td3", "self._middle(state.target.actor,", "self._middle(old.actor,"),
    ),
    "td3: next action for this observation": (
        *("td3", "state.target.actor, batch.next_obs)", "state.target.actor, batch.obs)"),
    ),
    "td3: rewards without their scale": (
        *("td3", "batch.reward * settings.reward_scale", "batch.reward"),
    ),
    "td3: the actor flees from value": ("td3", "return -masked_mean(", "return masked_mean("),
    "td3: the actor follows the second critic": ("td3", "leaf[:1]", "leaf[1:]"),
    "td3: no gradient through the action": (
        *("td3", "self.values(first, batch.obs, action)"),
        "self.values(first, batch.obs, still(action))",
    ),
    "td3: the actor learns at the critics' rate": ("td3", 'now["actor_rate"]', 'now["rate"]'),
    "td3: due an update too late": (
        *("td3", "(state.updates + 1) % settings.delay", "state.updates % settings.delay"),
    ),
    "td3: the actor does not wait": ("td3", "jnp.where(due, new, stays)", "new"),
    "td3: the targets do not wait": (
        *("td3", "self._followed(state.target, params, due)"),
        "self._followed(state.target, params)",
    ),
}


def check(name: str, update) -> None:
    if name == "sac":
        check_sac_by_the_textbook(sac(), update)
        return
    check_td3_by_the_textbook(td3(), update)
    check_that_td3_waits(td3(), update)


def with_line(file: str, old: str, new: str, monkeypatch) -> types.ModuleType:
    """The module with that text replaced, which it must hold exactly once."""
    source = (SOURCES / f"{file}.py").read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file}.py holds {old!r} {source.count(old)} times"
    module = types.ModuleType(f"millpond.agents.wrong_{file}")
    module.__package__ = "millpond.agents"
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    vars(module)["still"] = jax.lax.stop_gradient
    exec(source.replace(old, new), vars(module))
    return module


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_the_textbook_agrees_where_nothing_is_planted(agent):
    """Without jit, as for faults: a fault must not be hidden by a program compiled before it."""
    check(agent, {"sac": sac, "td3": td3}[agent]().update)


@pytest.mark.parametrize("fault", FUNCTIONS)
def test_a_wrong_function_is_found(fault, monkeypatch):
    module, name, wrong = FUNCTIONS[fault]
    monkeypatch.setattr(f"millpond.agents.{module}.{name}", wrong)
    agent = "td3" if module == "td3" else "sac"
    with pytest.raises(AssertionError):
        check(agent, {"sac": sac, "td3": td3}[agent]().update)


@pytest.mark.parametrize("fault", LINES)
def test_a_wrong_line_is_found(fault, monkeypatch):
    file, old, new = LINES[fault]
    module = with_line(file, old, new, monkeypatch)
    if file == "actor_critic":
        monkeypatch.setattr(ActorCritic, "_regress", module.ActorCritic._regress)
        update = sac().update
    else:
        right = {"sac": sac, "td3": td3}[file]()
        kind = getattr(module, file.upper())
        update = kind(right.settings, right.network, right.spec, right.stack).update
    with pytest.raises(AssertionError):
        check("td3" if file == "td3" else "sac", update)
