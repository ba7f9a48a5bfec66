"""Checks of how actors act: with which parameters, and with which epsilon."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .recorded_row_checks import no_health
from .verdict import Verdict, green, red, unknown

_ROUNDING = 1e-5  # of an epsilon computed by XLA and by NumPy


def policy_lag(evidence: Evidence) -> Verdict:
    """Updates that the acting parameters had missed, when their rows were taken."""
    name = "policy-lag"
    if not evidence.health:
        return no_health(name, evidence)
    most, bound = int(evidence.most("lag_max")), lag_bound(evidence)
    rows = np.sum([one["lag"] for line in evidence.learners for one in line], axis=0)
    numbers = dict(lag_max=most, bound=bound, rows_by_lag=rows.tolist())
    if most > bound:
        return red(
            name,
            f"actors played with parameters {most:,} updates old; {bound:,} are allowed",
            "let actors pull before every cycle, learners publish after; lower --crew.credits",
            **numbers,
        )
    return green(name, f"at most {most:,} updates old, of {bound:,} allowed", **numbers)


def lag_bound(evidence: Evidence) -> int:
    """What credits allow: rows that wait in channels, and the cycle that is under way."""
    settings = evidence.settings
    # Rows of a lost incarnation wait in a channel of their own.
    again = settings.crew.credits if evidence.losses and settings.way == "processes" else 0
    bound = (settings.ahead + again) * settings.learns.updates  # 0: everybody waits for everybody
    return bound + (settings.crew.publish_every - 1 if settings.mode == "ray" else 0)


def epsilon_applied(evidence: Evidence) -> Verdict:
    """The epsilon in the rows against the schedule at the steps that the learner counted."""
    name = "epsilon-applied"
    if "epsilon" not in evidence.settings.learning.schedules:
        return unknown(name, f"{evidence.settings.section} explores without an epsilon")
    if not evidence.health:
        return no_health(name, evidence)
    off, allowed = evidence.most("epsilon_off"), _ROUNDING + _after_losses(evidence)
    numbers = dict(off=off, allowed=round(allowed, 6))
    if off > allowed:
        return red(
            name,
            f"actors applied an epsilon {off:.3g} away from the schedule",
            "compute epsilon where it is applied, from the steps of all actors (Settings.now)",
            **numbers,
        )
    return green(name, f"at most {off:.1g} away from the schedule", **numbers)


def _after_losses(evidence: Evidence) -> float:
    """A lost actor's successor may count from where it stood, not from where its rows ended."""
    losses = min(3, len(evidence.losses))
    if not losses:
        return 0.0
    settings = evidence.settings
    cycles = losses * settings.ahead * settings.envs * settings.learns.turns
    steps = np.linspace(0, settings.steps, 1000).astype(np.uint32)
    before, after = settings.now(steps), settings.now(steps + np.uint32(cycles))
    return float(np.abs(after["epsilon"] - before["epsilon"]).max())
