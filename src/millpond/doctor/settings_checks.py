"""Whether discount, n-step, batch, replay and exploration can work with what the run has met.

A setting alone is no fault: each is judged against what was measured, as how long episodes last.
"""

from __future__ import annotations

from typing import Any

from ..agents import Replayed
from ..agents.optimizer import Optimizer
from ..window import Window
from .evidence import Evidence
from .verdict import Verdict, green, red, unknown, yellow

_LINES = 5  # newest lines of training that are averaged


def settings_fit(evidence: Evidence) -> Verdict:
    """Discount and n-step against episodes, batch against noise, draws against rows."""
    name, settings = "settings-fit", evidence.settings
    if not evidence.train:
        return unknown(name, "no round has ended yet")
    learns, window, section = settings.learns, settings.window, settings.section
    numbers: dict[str, Any] = dict(gamma=window.gamma)
    length = _mean(evidence, "length")
    share = _mean(evidence, "nonzero_rewards")
    if length is not None:
        numbers |= dict(episode_length=round(length, 1))
    if share is not None:
        numbers |= dict(rewarded=round(share, 4))
    found: list[tuple[str, str]] = []
    ahead = 1 / max(1e-9, 1 - window.gamma)
    gap = 1 / share if share else None
    sparse = gap is not None and gap > 2 and ahead < gap / 2 and window.gamma < 0.7
    if length and length > 5 and (sparse or window.gamma < 0.5):
        told = f"one of {gap:.0f} steps is rewarded, " if gap is not None and gap > 2 else ""
        found.append((
            f"gamma {window.gamma:g} looks {ahead:.1f} steps ahead; {told}episodes last "
            f"{length:.0f}",
            f"raise --{section}.gamma: 0.9 or more is usual",
        ))  # fmt: skip
    if window.gamma > 0.9999 and (length is None or length > 200):
        found.append((
            f"gamma {window.gamma:g} with episodes of "
            f"{'no end' if length is None else f'{length:.0f} steps'}: "
            "values need not be finite",
            f"use --{section}.gamma 0.99 or 0.999",
        ))  # fmt: skip
    replayed = isinstance(window, Window) and isinstance(learns, Replayed)
    # Sums that reach to the end of short episodes are well; much longer ones are a mistake.
    many = replayed and (window.n_step > 20 or window.n_step > max(10.0, 2 * (length or 1e9)))
    if many:
        told = f", episodes last {length:.0f}" if length is not None else ""
        found.append((
            f"n-step sums of {window.n_step} rows{told}: they hold what an old, "
            "exploring policy got",
            f"lower --{section}.n-step: 1 to 5 is usual",
        ))  # fmt: skip
    if isinstance(learns, Replayed):
        if learns.batch < 8:
            noise = evidence.noise[0] if evidence.noise else None
            told = f"; the gradient noise scale is {noise:,.0f} transitions" if noise else ""
            found.append((
                f"a batch of {learns.batch} transitions is mostly noise{told}",
                f"raise --{section}.batch, or average with --{section}.optimizer.accumulate",
            ))  # fmt: skip
        per_row = learns.updates * learns.rows(settings.envs) / (learns.turns * settings.envs)
        numbers |= dict(draws_per_row=round(per_row, 3))
        if per_row < 0.1:
            found.append((
                f"of ten rows less than one is ever drawn ({per_row:.2g} draws for each): most of "
                "what is played is not learned from",
                f"raise --{section}.updates or .batch, or lower --{section}.update-every",
            ))  # fmt: skip
        rows, turns = learns.rows(settings.envs), learns.capacity // settings.envs
        if length and turns < length / 2 and learns.capacity < 8 * rows and not settings.from_lake:
            found.append((
                f"the replay keeps the last {turns} turns, {learns.capacity:,} rows; episodes last "
                f"{length:.0f}, and a batch has {rows:,}: batches are nearly the same",
                f"raise --{section}.capacity",
            ))  # fmt: skip
        # An update of 256 rows after every step of one env, as SAC is mostly run, is 256.
        if per_row > 1024:
            found.append((
                f"every row is drawn {per_row:,.0f} times: values fit the rows and not the world",
                f"lower --{section}.updates or --{section}.batch, or raise --{section}.capacity",
            ))  # fmt: skip
    rule = getattr(settings.learning, "optimizer", None)
    rate = max((line.get("rate") or 0.0 for line in evidence.train), default=0.0)
    if isinstance(rule, Optimizer) and rule.kind != "sgd" and rate > 0.05:
        told = (
            f"a learning rate of {rate:.3g}: every step of {rule.kind} moves each parameter by "
            "about that much, whatever the gradient"
        )
        remedy = f"lower --{section}.optimizer.rate.start: 1e-4 to 1e-2 is usual"
        if rate > 0.1:
            return red(name, told, remedy, **numbers, rate=rate)
        found.append((told, remedy))
    epsilon = _exploring(evidence)
    if epsilon is not None:
        begin, end, few = epsilon
        numbers |= dict(epsilon_first=round(begin, 3), epsilon_last=round(end, 3))
        if end >= 0.5 and evidence.status["state"] == "finished":
            found.append((
                f"{end:.0%} of the actions are random to the very end",
                f"let it fall: --{section}.epsilon.end 0.05, --{section}.epsilon.over",
            ))  # fmt: skip
        if few:
            found.append((
                f"epsilon is {begin:.3g} from the first line on: hardly anything else "
                "is ever tried",
                f"begin higher and fall slower: --{section}.epsilon.start 1, "
                f"--{section}.epsilon.over 0.1",
            ))  # fmt: skip
    if epsilon is not None and epsilon[0] == epsilon[1] == evidence.settings.now(0)["epsilon"] == 0:
        return red(
            name,
            "epsilon is 0 from the first step to the last: nothing but the greedy action is ever "
            "tried",
            f"let it fall from 1: --{section}.epsilon.start 1, --{section}.epsilon.end 0.05",
            **numbers,
        )
    if found:
        message = "; ".join(text for text, _ in found)
        return yellow(name, message, "; ".join(remedy for _, remedy in found), **numbers)
    return green(name, "nothing that could not work here", **numbers)


def _mean(evidence: Evidence, name: str) -> float | None:
    values = [line.get(name) for line in evidence.train[-_LINES:]]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _exploring(evidence: Evidence) -> tuple[float, float, bool] | None:
    """Epsilon in the first and the last line, and whether there never was any exploration."""
    found = [line.get("epsilon") for line in evidence.train]
    known = [
        min(value) if isinstance(value, list) else value for value in found if value is not None
    ]
    if not known or evidence.settings.from_lake:
        return None
    start = (
        float(evidence.settings.now(0)["epsilon"])
        if "epsilon" in evidence.settings.learning.schedules
        else 1.0
    )
    steps = evidence.settings.steps
    early = float(evidence.settings.now(int(0.005 * steps))["epsilon"]) if start > 0.1 else start
    return float(known[0]), float(known[-1]), max(start if start < 0.1 else early, known[0]) < 0.1
