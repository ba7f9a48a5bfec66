"""Checks of the replay: that learning starts when it should, and that rows are drawn in time."""

from __future__ import annotations

import math

from .evidence import Evidence
from .rows_checks import no_health
from .verdict import Verdict, green, red, unknown

_LAST = 20  # lines of health that are judged together
_ENOUGH = 200  # rows overwritten before a share of them is judged


def replay_fill(evidence: Evidence) -> Verdict:
    """The first update must come with `min_fill` rows, not before and not much later."""
    name = "replay-fill"
    settings, dqn = evidence.settings, evidence.settings.dqn
    if settings.agent != "dqn" or settings.from_lake:
        return unknown(name, "nothing is waited for: PQN has no replay, a Lake is there already")
    if not evidence.train:
        return unknown(name, "no round has ended yet", min_fill=dqn.min_fill)
    updates, steps = evidence.train[-1]["updates"], evidence.train[-1]["steps"]
    stored = min(steps, dqn.capacity)
    if evidence.health:
        stored = min(one["stored"] for one in evidence.learners[-1])
        updates = min(one["updates"] for one in evidence.learners[-1])
    numbers = dict(stored=stored, min_fill=dqn.min_fill, updates=updates)
    cycle = settings.envs * dqn.update_every
    if not updates and stored >= dqn.min_fill + cycle:
        return red(
            name,
            f"{stored:,} rows are stored, {dqn.min_fill:,} were asked for, and nothing is learned",
            "look at the learner: it should have started (dqn.min_fill, dqn.update_every)",
            **numbers,
        )
    if not updates and (
        evidence.status["state"] == "finished" or dqn.min_fill > 2 * settings.steps
    ):
        return red(
            name,
            f"learning begins at {dqn.min_fill:,} rows, the run ends at {settings.steps:,} steps",
            "lower --dqn.min-fill or train for longer",
            **numbers,
        )
    if evidence.health and updates and stored < dqn.min_fill:
        return red(
            name,
            f"{updates:,} updates from {stored:,} rows, before {dqn.min_fill:,} were stored",
            "let the learner wait for dqn.min_fill rows",
            **numbers,
        )
    if not updates:
        return green(name, f"filling: {stored:,} of {dqn.min_fill:,} rows", **numbers)
    return green(name, f"learning from {stored:,} rows", **numbers)


def replay_turnover(evidence: Evidence) -> Verdict:
    """Rows that were overwritten and never drawn: about exp(-draws per row) of them, not more.

    Rows that came before `min_fill` are not judged: nothing could be drawn then.
    """
    name = "replay-turnover"
    if not evidence.health:
        return no_health(name, evidence)
    settings, dqn = evidence.settings, evidence.settings.dqn
    if settings.replay == "lake":
        return unknown(name, "a Lake keeps its rows")
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
    if dqn.sampler == "prioritized":
        return green(name, f"{share:.1%} never drawn, as their priorities would have it", **numbers)
    noise = 5 * math.sqrt(expected * (1 - expected) / old)
    cut = len(evidence.losses) * (dqn.n_step + settings.stack) * settings.envs / old
    if share > 1.1 * expected + 0.01 + noise + cut:
        return red(
            name,
            f"{share:.1%} of the rows were overwritten before they were ever drawn, "
            f"{expected:.1%} would be by chance",
            "part of the replay is never drawn: look at the sampler and at dqn.capacity",
            **numbers,
        )
    if ratio < 0.7 * asked:
        return red(
            name,
            f"rows are drawn {ratio:.2f} times each, {asked:.2f} were asked for",
            "the learner falls behind: look at its updates (dqn.updates, dqn.batch)",
            **numbers,
        )
    return green(name, f"{share:.1%} never drawn, {expected:.1%} by chance", **numbers)


def _after_first(evidence: Evidence) -> list[list[dict[str, float]]]:
    """Lines of health, without those in which rows from before `min_fill` were overwritten."""
    before, dqn = 0, evidence.settings.dqn
    lines = evidence.learners
    if not evidence.whole:
        return lines
    for number, line in enumerate(lines):
        if before >= dqn.min_fill + evidence.settings.envs * dqn.update_every:
            return lines[number:]
        before += line[0]["overwritten"]
    return []
