"""Checks of learning: the target's cadence, the size of updates, and whether it helps."""

from __future__ import annotations

import math
import statistics
from typing import Any

from .evidence import Evidence
from .verdict import Verdict, green, red, unknown, yellow

_EXPLODED = 0.5  # a relative change per update after which nothing of the parameters is left
_JUMP, _SEEN = 10.0, 0.05  # times its own median, if above that
_EARLY = 500  # updates before learning is judged
_SURE = 3.0  # standard errors


def target_cadence(evidence: Evidence) -> Verdict:
    """Target updates must be exactly those that the settings ask for, at every line."""
    name, syncs = "target-cadence", getattr(evidence.settings.learning, "syncs", None)
    if syncs is None:
        return unknown(name, f"{evidence.settings.section} has no target network with a cadence")
    counted = [(line["updates"], line["target_updates"]) for line in evidence.train]
    counted += [(p["updates"], p["target_updates"]) for line in evidence.learners for p in line]
    if not counted:
        return unknown(name, "no round has ended yet")
    wrong = [(u, t) for u, t in counted if t != syncs(u)]
    if wrong:
        updates, target = wrong[-1]
        return red(
            name,
            f"{target:,} target updates in {updates:,} updates; there should be {syncs(updates):,}",
            "let the agent's own update alone change the target network",
            updates=updates,
            target_updates=target,
        )
    updates, target = max(counted)
    if not updates:
        return unknown(name, "nothing was learned yet")
    message = f"{target:,} target updates in {updates:,} updates"
    return green(name, message, updates=updates, target_updates=target)


def update_norm(evidence: Evidence) -> Verdict:
    """How far an update moves the parameters, as a share of their size: not 0, not everything."""
    name = "update-norm"
    if evidence.diverged:
        line = evidence.diverged[-1]
        return red(
            name,
            f"update {line['update']:,} of policy {line['policy']} was no finite number",
            f"lower the learning rate ({_rate_of(evidence)}), scale or clip rewards",
            update=line["update"],
            policy=line["policy"],
        )
    for policy, moved in enumerate(_by_policy(evidence)):
        if moved and (found := _judge(name, evidence, policy, moved)):
            return found
    found = [moved[-1] for moved in _by_policy(evidence) if moved]
    if not found:
        return unknown(name, "nothing was learned yet")
    steep = evidence.train[-1].get("gradient") or 0.0
    most, clip = max(found), _optimizer(evidence, "clip", 0.0)
    numbers: dict[str, Any] = dict(change=most, gradient=steep)
    if evidence.noise is not None:
        numbers |= dict(noise_scale=evidence.noise, batch=evidence.settings.replayed.batch)
    if steep > 100 * max(1.0, clip):
        return yellow(
            name,
            f"gradients have a norm of {steep:.3g}",
            "scale or clip rewards, or lower the learning rate",
            **numbers,
        )
    return green(name, f"an update moves {most:.2g} of the parameters' size", **numbers)


def _optimizer(evidence: Evidence, name: str, default: Any) -> Any:
    """A setting of the agent's optimizer, if it has one."""
    return getattr(getattr(evidence.settings.learning, "optimizer", None), name, default)


def _rate_of(evidence: Evidence) -> str:
    """How the learning rate is set on the command line."""
    return f"--{evidence.settings.section}.optimizer.rate.start"


def _by_policy(evidence: Evidence) -> list[list[Any]]:
    """Of every policy, mean relative change per update in each line that had updates."""
    if not evidence.health:  # one program: the mean of all policies is what there is
        return [[line["change"] for line in evidence.train if "change" in line]]
    found: list[list[Any]] = [[] for _ in evidence.learners[0]]
    before = [0] * len(found)
    for line in evidence.learners:
        for policy, one in enumerate(line):
            if one["updates"] > before[policy]:
                found[policy].append(one["change"])
            before[policy] = one["updates"]
    return found


def _judge(name: str, evidence: Evidence, policy: int, moved: list[Any]) -> Verdict | None:
    """What is wrong with one policy's changes, if anything."""
    now, rate = moved[-1], evidence.train[-1].get("rate", 0.0)
    numbers = dict(policy=policy, change=now, rate=rate)
    if now is None or not math.isfinite(now):
        remedy = f"lower the learning rate ({_rate_of(evidence)}), scale or clip rewards"
        return red(name, f"policy {policy}: an update was no finite number", remedy, **numbers)
    start = getattr(_optimizer(evidence, "rate", None), "start", rate)
    if now == 0 and (rate or not start):
        message = f"policy {policy}: updates change nothing, at a learning rate of {rate:g}"
        remedy = f"raise the learning rate ({_rate_of(evidence)})"
        return red(name, message, remedy, **numbers)
    before = [value for value in moved[:-1] if value]
    usual = statistics.median(before) if len(before) >= 3 else math.inf
    most = max(now, *before) if before else now
    if most > _EXPLODED or (now > _SEEN and now > _JUMP * usual):
        # Once everything was swept away, the rest moves little against what is left.
        message = f"policy {policy}: an update moves {most:.3g} of the parameters' size"
        remedy = f"lower the learning rate ({_rate_of(evidence)})"
        return red(name, message, remedy, **numbers, most=most)
    return None


def learning(evidence: Evidence) -> Verdict:
    """Greedy episodes against a random policy in the same episodes. Never red too early."""
    name, settings = "learning", evidence.settings
    if not evidence.eval:
        return unknown(name, "no evaluation yet")
    chance, half = evidence.chance, evidence.eval[-1]["steps"] / 2
    last = [line for line in evidence.eval[-3:] if line["steps"] > half]
    greedy = statistics.fmean(line["return"] for line in last)
    numbers: dict[str, Any] = dict(greedy=round(greedy, 3), evaluations=len(evidence.eval))
    if evidence.train and (q := evidence.train[-1].get("q")) is not None:
        numbers["q"] = round(q, 3)
    if chance is None:
        why = "a random policy was not played: millpond doctor RUN plays it"
        return unknown(name, f"greedy {greedy:.2f}; {why}", **numbers)
    random = chance["return"]
    error = math.hypot(_error(last[-1]) / math.sqrt(len(last)), _error(chance))
    numbers |= dict(random=round(random, 3), error=round(error, 3))
    versus = f"greedy {greedy:.2f}, random {random:.2f}"
    if greedy - random > _SURE * error:
        return green(name, f"improved: {versus}", **numbers)
    steps = evidence.eval[-1]["steps"]
    updates = evidence.train[-1]["updates"] if evidence.train else 0
    if updates < _EARLY or steps < settings.steps / 2:
        return unknown(name, f"too early: {versus} after {updates:,} updates", **numbers)
    message = f"no better than random: {versus} after {updates:,} updates"
    remedy = "see to other red checks first; then try the learning rate, epsilon, reward scale"
    if steps < settings.steps:
        return yellow(name, message, remedy, **numbers)
    return red(name, message, remedy, **numbers)


def _error(line: dict[str, Any]) -> float:
    """Standard error of the mean over policies, which may all rise and fall together."""
    errors = line.get("errors") or []
    if not errors or None in errors:
        return math.inf  # a single episode proves nothing
    return statistics.fmean(errors)
