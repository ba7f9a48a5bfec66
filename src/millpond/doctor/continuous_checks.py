"""Checks of agents whose actions are real vectors: what the policy does, what the critics say."""

from __future__ import annotations

import math
from typing import Any

from .evidence import Evidence
from .verdict import Check, Verdict, green, red, unknown, yellow

_EARLY = 500  # updates before anything is judged
_LINES = 3  # the newest lines that are averaged
_AT_BOUNDS, _ALIKE = 0.95, 1e-3
_DEAD, _HOT = 1e-6, 100.0  # a temperature, and how many times its first one
_BEYOND = 3.0  # times what could be earned at all


def saturated_actions(evidence: Evidence) -> Verdict:
    """A policy that always pushes to a bound learns nothing more: tanh is flat there."""
    name, share = "saturated-actions", _recent(evidence, "saturated")
    if share is None:
        return _too_early(name)
    numbers = dict(saturated=round(share, 4))
    if share > _AT_BOUNDS:
        return yellow(
            name,
            f"{share:.0%} of the actions are at a bound",
            "right if full force is best; else lower the actor's learning rate or the reward scale",
            **numbers,
        )
    return green(name, f"{share:.0%} of the actions are at a bound", **numbers)


def policy_sees(evidence: Evidence) -> Verdict:
    """Actions without noise must differ between the observations of a batch."""
    name, spread = "policy-sees", _recent(evidence, "spread")
    if spread is None:
        return _too_early(name)
    if evidence.settings.learns.rows(evidence.settings.envs) < 2:
        return unknown(name, "a batch of one row has nothing to compare")
    numbers = dict(spread=spread)
    if spread < _ALIKE:
        return red(
            name,
            f"the policy does the same whatever it observes: actions differ by {spread:.2g}",
            "look at the observations (all alike, or of very different sizes?); lower the actor's "
            "learning rate",
            **numbers,
        )
    return green(name, f"actions differ by {spread:.2g} between observations", **numbers)


def temperature(evidence: Evidence) -> Verdict:
    """Neither dead, so that nothing is explored, nor so hot that only entropy counts."""
    name, now = "temperature", _recent(evidence, "temperature")
    settings: Any = evidence.settings.learning
    if not hasattr(settings, "temperature"):
        return unknown(name, f"{evidence.settings.section} has no temperature")
    if now is None:
        return _too_early(name)
    entropy = _recent(evidence, "entropy") or 0.0
    numbers = dict(temperature=now, entropy=round(entropy, 3))
    section = evidence.settings.section
    if now < _DEAD:
        return yellow(
            name,
            f"the temperature is {now:.2g}: entropy, at {entropy:.2f}, counts for nothing",
            f"lower --{section}.entropy, or fix it by --{section}.no-learn-temperature",
            **numbers,
        )
    if now > _HOT * max(1.0, settings.temperature):
        return red(
            name,
            f"the temperature has risen from {settings.temperature:g} to {now:.3g}, entropy is "
            f"{entropy:.2f}: it cannot reach its target",
            f"lower --{section}.entropy or --{section}.temperature-optimizer.rate.start",
            **numbers,
        )
    return green(name, f"the temperature is {now:.3g}, entropy {entropy:.2f}", **numbers)


def critic_values(evidence: Evidence) -> Verdict:
    """Values beyond what the largest reward could sum up to were made up by the critics."""
    name, q = "critic-values", _recent(evidence, "q")
    if q is None:
        return _too_early(name)
    settings = evidence.settings
    gamma, scale = settings.window.gamma, settings.learns.reward_scale
    largest = evidence.most("reward_max") * abs(scale)
    numbers: dict[str, Any] = dict(q=round(q, 3))
    if not largest or gamma >= 1:
        return unknown(name, f"mean Q {q:.4g}; rewards were not recorded", **numbers)
    # What entropy adds is paid at every step too.
    bonus = (_recent(evidence, "temperature") or 0.0) * abs(_recent(evidence, "entropy") or 0.0)
    most = (largest + bonus) / (1 - gamma)
    numbers["most"] = round(most, 3)
    if abs(q) > _BEYOND * most:
        return red(
            name,
            f"mean Q is {q:.4g}, and no more than {most:.4g} can be earned",
            f"lower --{settings.section}.optimizer.rate.start or tau, or use network.norm",
            **numbers,
        )
    return green(name, f"mean Q {q:.4g} of at most {most:.4g}", **numbers)


CONTINUOUS_CHECKS: dict[str, Check] = {
    "saturated-actions": saturated_actions,
    "policy-sees": policy_sees,
    "temperature": temperature,
    "critic-values": critic_values,
}


def _recent(evidence: Evidence, name: str) -> float | None:
    """The mean of a number over the newest lines; None if it is too early to judge."""
    if not evidence.train or evidence.train[-1].get("updates", 0) < _EARLY:
        return None
    found = [line[name] for line in evidence.train[-_LINES:] if line.get(name) is not None]
    mean = sum(found) / len(found) if found else math.nan
    return mean if math.isfinite(mean) else None


def _too_early(name: str) -> Verdict:
    return unknown(name, f"too early: judged after {_EARLY} updates that report it")
