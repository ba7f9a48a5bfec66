"""Checks of the rows: what is trained on is what was acted on, and what the env gave."""

from __future__ import annotations

from typing import Any

from .evidence import Evidence
from .verdict import Verdict, green, red, unknown, yellow

_LARGE, _SMALL = 100.0, 1e-3  # largest rewards, as the loss sees them, that are worth a look


def no_health(name: str, evidence: Evidence) -> Verdict:
    """Why there is nothing to judge yet, or ever."""
    if evidence.settings.way == "fused":
        why = "mode fused is one program, in which nothing can be watched from outside"
        return unknown(name, f"{why}; --mode sequential records it")
    return unknown(name, "no round has ended yet")


def stack_parity(evidence: Evidence) -> Verdict:
    """Sampled stacks must have the hash of the stack that was acted on."""
    name = "stack-parity"
    if not evidence.health:
        return no_health(name, evidence)
    sampled, wrong = evidence.total("sampled"), evidence.total("stack_mismatches")
    numbers = dict(sampled=sampled, mismatches=wrong)
    if wrong:
        return red(
            name,
            f"{wrong:,} of {sampled:,} sampled stacks are not those that were acted on",
            "keep the actor's history across cycles; reset it at FIRST rows only, by Stacker",
            **numbers,
        )
    if not sampled:
        return unknown(name, "nothing was sampled yet", **numbers)
    return green(name, f"all {sampled:,} sampled stacks are those acted on", **numbers)


def episode_borders(evidence: Evidence) -> Verdict:
    """Rows of a stream must follow each other: an end, its border row, a FIRST row."""
    name = "episode-borders"
    broken, rows = evidence.total("border_breaks"), evidence.total("rows")
    refused = evidence.told("BrokenEpisode")
    remedy = "set terminated or truncated in exactly the last row of an episode, by next_flags"
    if broken or refused:
        told = f"{broken:,} of {rows:,} rows" if broken else "a row"
        message = f"{told} cannot follow the row before: an end is missing or comes twice"
        return red(name, message, remedy, rows=rows, breaks=broken, refused=refused)
    if not evidence.health:
        return no_health(name, evidence)
    return green(name, f"{rows:,} rows follow each other", rows=rows, breaks=0)


def nstep_oracle(evidence: Evidence) -> Verdict:
    """Returns of sampled transitions must be those recomputed from the rows as they came."""
    name = "nstep-oracle"
    if not evidence.health:
        return no_health(name, evidence)
    if evidence.settings.replay == "lake":
        return unknown(name, "a Lake outlives the run, so its rows cannot be distinguished here")
    checked, wrong = evidence.total("returns_checked"), evidence.total("returns_wrong")
    numbers = dict(checked=checked, wrong=wrong)
    if wrong:
        return red(
            name,
            f"{wrong:,} of {checked:,} returns are not the sum and discount of their rows",
            "sum gamma^j reward[j] and discount by gamma^k over the same k rows: use Window",
            **numbers,
        )
    if not checked:
        return unknown(name, "no return was checked yet", **numbers)
    return green(name, f"{checked:,} returns recomputed, all equal", **numbers)


def reward_scale(evidence: Evidence) -> Verdict:
    """Rewards as the loss sees them: what clip and scale make of the rows', and of what size."""
    name = "reward-scale"
    if evidence.told("field 'reward': expected finite"):
        remedy = "look at the env: it gave a reward that is no finite number"
        return red(name, "the env gave a reward that is no finite number", remedy)
    if not evidence.health:
        return no_health(name, evidence)
    learns, window = evidence.settings.learns, evidence.settings.window
    raw, seen = evidence.most("reward_max"), evidence.most("target_reward_max")
    share = evidence.total("rewards_nonzero") / max(1, evidence.total("rows"))
    once = min(raw, window.reward_clip) if window.reward_clip else raw
    bound = once * learns.reward_scale * sum(window.gamma**k for k in range(window.n_step))
    values = [abs(one.get("q") or 0.0) for line in evidence.learners[-3:] for one in line]
    numbers: dict[str, Any] = dict(reward_max=raw, nonzero=round(share, 4), loss_sees=seen)
    if seen > bound * 1.001 and evidence.whole:
        return red(
            name,
            f"the loss saw {seen:.4g}, more than the {bound:.4g} that rows, clip and scale allow",
            "clip and scale rewards in the learner alone, and store them raw",
            **numbers,
        )
    if not raw:
        return unknown(name, "no reward came yet", **numbers)
    if window.gamma < 1 and max(values) > 3 * once * learns.reward_scale / (1 - window.gamma):
        return yellow(
            name,
            f"values of {max(values):.3g} are more than any rewards could add up to",
            "values run away: lower the learning rate, or follow the target slower (tau)",
            **numbers,
        )
    section = evidence.settings.section
    if not _SMALL <= seen <= _LARGE and seen:
        size = "large" if seen > _LARGE else "small"
        return yellow(
            name,
            f"rewards up to {seen:.3g} reach the loss, which is {size}",
            f"bring them near 1 by --{section}.reward-scale or --{section}.reward-clip",
            **numbers,
        )
    return green(name, f"up to {seen:.3g} in the loss, {share:.1%} are not zero", **numbers)
