"""Checks of the replay: that learning starts when it should, and that rows are drawn in time."""

from __future__ import annotations

import math

from ..agents import Replayed, Rollouts
from .evidence import Evidence
from .recorded_row_checks import no_health
from .verdict import Verdict, green, red, unknown, yellow

_LAST = 20  # lines of health that are judged together
_LATE = 0.5  # of a run, after which learning begins late
_ENOUGH = 200  # rows overwritten before a share of them is judged


def replay_fill(evidence: Evidence) -> Verdict:
    """The first update must come with `min_fill` rows, not before and not much later."""
    name = "replay-fill"
    settings, learns = evidence.settings, evidence.settings.learns
    if not isinstance(learns, Replayed) or settings.from_lake:
        why = (
            "a Lake is there already" if settings.from_lake else f"{settings.section} has no replay"
        )
        return unknown(name, f"nothing is waited for: {why}")
    section, enough = settings.section, learns.begins_at(settings.envs)
    if not evidence.train:
        return unknown(name, "no round has ended yet", min_fill=enough)
    updates, steps = evidence.train[-1]["updates"], evidence.train[-1]["steps"]
    stored = min(steps, learns.capacity)
    if evidence.health:
        stored = min(one["stored"] for one in evidence.learners[-1])
        updates = min(one["updates"] for one in evidence.learners[-1])
    numbers = dict(stored=stored, min_fill=enough, updates=updates)
    cycle = settings.envs * learns.turns
    if not updates and stored >= enough + cycle:
        return red(
            name,
            f"{stored:,} rows are stored, {enough:,} are enough, and nothing is learned",
            f"look at the learner: it should have started ({section}.min_fill)",
            **numbers,
        )
    if not updates and (evidence.status["state"] == "finished" or enough > 2 * settings.steps):
        return red(
            name,
            f"learning begins at {enough:,} rows, the run ends at {settings.steps:,}",
            f"lower --{section}.min-fill or train for longer",
            **numbers,
        )
    if evidence.health and updates and stored < enough:
        return red(
            name,
            f"{updates:,} updates from {stored:,} rows, before {enough:,} were stored",
            f"let the learner wait for {section}.min_fill rows",
            **numbers,
        )
    if not updates:
        return green(name, f"filling: {stored:,} of {enough:,} rows", **numbers)
    if enough > _LATE * settings.steps:
        return yellow(
            name,
            f"learning began after {enough:,} of {settings.steps:,} steps, so most of the run was "
            f"not learned from: {updates:,} updates in all",
            f"lower --{section}.min-fill, or train for longer",
            **numbers,
        )
    return green(name, f"learning from {stored:,} rows", **numbers)


def replay_turnover(evidence: Evidence) -> Verdict:
    """Rows that were overwritten and never drawn: about exp(-draws per row) of them, not more.

    Rows that came before `min_fill` are not judged: nothing could be drawn then.
    """
    name = "replay-turnover"
    if not evidence.health:
        return no_health(name, evidence)
    settings, learns = evidence.settings, evidence.settings.learns
    if settings.replay == "lake" or settings.from_lake or not isinstance(learns, Replayed):
        why = "there is no replay" if isinstance(learns, Rollouts) else "a Lake keeps its rows"
        return unknown(name, why)
    section = settings.section
    judged = _after_first(evidence)[-_LAST:]
    old = sum(one["overwritten"] for line in judged for one in line)
    lost = sum(one["overwritten_unsampled"] for line in judged for one in line)
    drawn = sum(one["sampled"] for line in judged for one in line)
    taken = sum(one["rows"] for line in judged for one in line)
    numbers = dict(overwritten=old, never_drawn=lost)
    if old < _ENOUGH:
        return unknown(name, f"{old:,} rows were overwritten, too few to judge", **numbers)
    # Only steps are drawn, border rows are not: their share is that of the overwritten rows.
    steps = taken * min(1.0, old / taken)
    asked = evidence.learners[-1][0]["samples_per_insert"]
    ratio = drawn / steps
    share, expected = lost / old, math.exp(-ratio)
    numbers |= dict(draws_per_row=round(ratio, 3), share=round(share, 4))
    numbers |= dict(expected=round(expected, 4), asked=asked)
    if settings.ranked:
        return green(name, f"{share:.1%} never drawn, as their priorities would have it", **numbers)
    noise = 5 * math.sqrt(expected * (1 - expected) / old)
    cut = len(evidence.losses) * (learns.window.n_step + settings.stack) * settings.envs / old
    if share > 1.1 * expected + 0.01 + noise + cut:
        return red(
            name,
            f"{share:.1%} of the rows were overwritten before they were ever drawn, "
            f"{expected:.1%} would be by chance",
            f"part of the replay is never drawn: look at the sampler and {section}.capacity",
            **numbers,
        )
    if ratio < 0.7 * asked:
        return red(
            name,
            f"rows are drawn {ratio:.2f} times each, {asked:.2f} were asked for",
            f"the learner falls behind: look at {section}.updates and {section}.batch",
            **numbers,
        )
    return green(name, f"{share:.1%} never drawn, {expected:.1%} by chance", **numbers)


def _after_first(evidence: Evidence) -> list[list[dict[str, float]]]:
    """Lines of health, without those in which rows from before `min_fill` were overwritten."""
    before, learns = 0, evidence.settings.replayed
    lines = evidence.learners
    if not evidence.whole:
        return lines
    for number, line in enumerate(lines):
        if (
            before
            >= learns.begins_at(evidence.settings.envs) + evidence.settings.envs * learns.turns
        ):
            return lines[number:]
        before += line[0]["overwritten"]
    return []
