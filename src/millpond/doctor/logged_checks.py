"""Checks of a run that a user's own loop logs: of its replay, its numbers and its end.

A loop says what it logs and shows its pond, no more. What it cannot be asked is `unknown`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..logged import LoggedRun
from ..metrics import read_metrics
from .evidence import Line
from .examine import CHECKS
from .verdict import Verdict, green, red, unknown, worst_first, yellow

_UNSEEN = "no replay was shown; pond = run.watch(pond) shows it"
_LARGE, _SMALL = 100.0, 1e-3  # largest rewards that are worth a look
_ENOUGH = 200  # rows overwritten before a share of them is judged
_LAST = 20  # lines of health that are judged together
_FEW = 40  # returns before learning is judged
_SURE = 3.0  # standard errors


@dataclass
class LogEvidence:
    """Lines of a logged run by kind, oldest first: `LogEvidence.of(run)`, or made up in a test."""

    status: Line
    steps: int = 0  # how long it will be, if that was said
    lines: dict[str, list[Line]] = field(default_factory=dict)

    @staticmethod
    def of(run: LoggedRun) -> LogEvidence:
        """Everything in the run's folder; it may be going on."""
        found = LogEvidence(run.status(), int(run.settings.get("steps") or 0))
        for line in read_metrics(run.metrics):
            found.lines.setdefault(str(line.get("kind")), []).append(line)
        return found

    def __getitem__(self, kind: str) -> list[Line]:
        return self.lines.get(kind, [])

    @property
    def ponds(self) -> list[Line]:
        """The evidence of every pond in every line of health."""
        return [one for line in self["health"] for one in line["learners"]]

    def total(self, name: str) -> int:
        """A count added up over all lines."""
        return sum(one.get(name, 0) for one in self.ponds)

    def most(self, name: str) -> float:
        """The largest value of all lines."""
        return max((one.get(name, 0.0) for one in self.ponds), default=0.0)


def process_health(evidence: LogEvidence) -> Verdict:
    """Red: the loop ended with an error, or its process is gone."""
    name, status = "process-health", evidence.status
    if status["state"] == "failed":
        why = str(status.get("why", "")).partition("\n")[0]
        return red(name, f"the loop failed: {why}", "status.json in its folder has the traceback")
    if status["state"] == "killed":
        remedy = "look at the kernel's log: memory may have been short"
        return red(name, "the loop's process is gone and said nothing", remedy)
    return green(name, f"the loop is {status['state']}")


def divergence(evidence: LogEvidence) -> Verdict:
    """A number that was finite and is not any more."""
    name, once, gone = "divergence", set[str](), dict[str, int]()
    for line in evidence["train"]:
        for key, value in line.items():
            bad = value is None or (isinstance(value, list) and None in value)
            if not bad:
                once.add(key)
                gone.pop(key, None)
            elif key in once:
                gone.setdefault(key, int(line["steps"]))
    if not evidence["train"]:
        return unknown(name, "nothing was logged yet")
    if gone:
        first = min(gone, key=lambda key: gone[key])
        return red(
            name,
            f"'{first}' is no finite number since step {gone[first]:,}",
            "lower the learning rate, scale or clip rewards and gradients",
            **gone,
        )
    return green(name, "the numbers that were logged are finite")


def episode_borders(evidence: LogEvidence) -> Verdict:
    """Rows of a stream must follow each other, and episodes end."""
    name, rows = "episode-borders", evidence.total("rows") + evidence.total("held")
    why = str(evidence.status.get("why", ""))
    ends, broken = evidence.total("ended"), evidence.total("border_breaks")
    faults = int(evidence.most("faults"))
    remedy = "set terminated or truncated in exactly the last row of an episode, by next_flags"
    if broken or faults or why.startswith("BrokenEpisode"):
        message = "a row cannot follow the row before: an end is missing or comes twice"
        if not broken and faults:
            message = f"{faults:,} rows had a bad value or contradicted the row before"
        return red(name, message, remedy, rows=rows, breaks=broken, faults=faults)
    if not evidence.ponds:
        return unknown(name, _UNSEEN)
    if not ends and rows >= 10_000:
        message = f"none of {rows:,} rows ends an episode"
        return yellow(name, message, f"if episodes do end, {remedy}", rows=rows, ended=0)
    return green(name, f"{rows:,} rows follow each other", rows=rows, ended=ends)


def nstep_oracle(evidence: LogEvidence) -> Verdict:
    """Returns of sampled transitions must be those recomputed from the rows as they came."""
    name = "nstep-oracle"
    if not evidence.ponds:
        return unknown(name, _UNSEEN)
    checked, wrong = evidence.total("returns_checked"), evidence.total("returns_wrong")
    numbers = dict(checked=checked, wrong=wrong, unseen=int(evidence.most("unseen")))
    if wrong:
        return red(
            name,
            f"{wrong:,} of {checked:,} returns are not the sum and discount of their rows",
            "something writes into the pond's memory or files: add rows by its methods alone",
            **numbers,
        )
    if numbers["unseen"] and not checked:
        message = f"{numbers['unseen']:,} rows reached the pond unseen"
        return unknown(name, f"{message}: use what run.watch(pond) returned", **numbers)
    if not checked:
        return unknown(name, "no return was checked yet", **numbers)
    return green(name, f"{checked:,} returns recomputed, all equal", **numbers)


def reward_scale(evidence: LogEvidence) -> Verdict:
    """Rewards as they are drawn: what the window makes of the rows', and of what size."""
    name = "reward-scale"
    if "field 'reward'" in str(evidence.status.get("why", "")):
        remedy = "look at the env: it gave a reward that is no finite number"
        return red(name, "the env gave a reward that is no finite number", remedy)
    if not evidence.ponds:
        return unknown(name, _UNSEEN)
    raw, seen = evidence.most("reward_max"), evidence.most("target_reward_max")
    rows = evidence.total("rows") + evidence.total("held")
    share = evidence.total("rewards_nonzero") / max(1, rows)
    clip = evidence.most("reward_clip")
    largest = min(raw, clip) if clip else raw
    numbers: dict[str, Any] = dict(reward_max=raw, nonzero=round(share, 4), drawn=seen)
    if not raw:
        return unknown(name, f"none of {rows:,} rows has a reward yet", **numbers)
    if not _SMALL <= largest <= _LARGE:
        size = "large" if largest > _LARGE else "small"
        remedy = "bring them near 1: scale them in your loss, or Window(reward_clip=...)"
        return yellow(name, f"rewards up to {largest:.3g} are {size}", remedy, **numbers)
    return green(name, f"rewards up to {largest:.3g}, {share:.1%} are not zero", **numbers)


def replay_fill(evidence: LogEvidence) -> Verdict:
    """What is stored should be drawn."""
    name, ponds = "replay-fill", [one for one in evidence.ponds if not one.get("looked")]
    if not ponds:
        why = "draws inside jit cannot be seen" if evidence.ponds else _UNSEEN
        return unknown(name, why)
    stored, capacity, drawn = ponds[-1]["stored"], ponds[-1]["capacity"], evidence.total("sampled")
    numbers = dict(stored=stored, capacity=capacity, drawn=drawn)
    if not drawn and stored >= capacity:
        message = f"all {capacity:,} rows are stored and nothing was ever drawn"
        remedy = "learn earlier, and sample from what run.watch(pond) returned"
        return yellow(name, message, remedy, **numbers)
    if not drawn:
        return green(name, f"filling: {stored:,} of {capacity:,} rows", **numbers)
    return green(name, f"{drawn:,} drawn, {stored:,} of {capacity:,} rows stored", **numbers)


def replay_turnover(evidence: LogEvidence) -> Verdict:
    """Rows that were overwritten and never drawn: about exp(-draws per row) of them, not more."""
    name, ponds = "replay-turnover", [one for one in evidence.ponds if not one.get("looked")]
    if not ponds:
        why = "draws inside jit cannot be seen" if evidence.ponds else _UNSEEN
        return unknown(name, why)
    judged = _after_first(ponds)[-_LAST:]
    old, lost, drawn, taken = (
        sum(one[key] for one in judged)
        for key in ("overwritten", "overwritten_unsampled", "sampled", "rows")
    )
    numbers: dict[str, Any] = dict(overwritten=old, never_drawn=lost)
    if old < _ENOUGH:
        return unknown(name, f"{old:,} rows were overwritten, too few to judge", **numbers)
    ratio = drawn / (taken * min(1.0, old / taken))
    share, expected = lost / old, math.exp(-ratio)
    numbers |= dict(draws_per_row=round(ratio, 3), share=round(share, 4))
    if ponds[-1]["ranked"]:
        return green(name, f"{share:.1%} never drawn, as their priorities would have it", **numbers)
    noise = 5 * math.sqrt(expected * (1 - expected) / old)
    if share > 1.1 * expected + 0.01 + noise:
        return yellow(
            name,
            f"{share:.1%} of the rows were overwritten before they were ever drawn, "
            f"{expected:.1%} would be by chance",
            "part of the replay is never drawn: look at sampler and capacity, or draws come in "
            "bursts",
            **numbers | dict(expected=round(expected, 4)),
        )
    return green(name, f"{share:.1%} never drawn, {expected:.1%} by chance", **numbers)


def _after_first(ponds: list[Line]) -> list[Line]:
    """Lines of health since draws began and the rows from before them were overwritten."""
    began = next((i for i, one in enumerate(ponds) if one["sampled"]), len(ponds))
    stored = ponds[began]["stored"] if began < len(ponds) else 0
    for number in range(began + 1, len(ponds)):
        stored -= ponds[number]["overwritten"]
        if stored < 0:
            return ponds[number + 1 :]
    return []


def learning(evidence: LogEvidence) -> Verdict:
    """Late returns against early ones: what a random policy scores is not known here."""
    name = "learning"
    for kind in ("eval", "train"):
        found = [line["return"] for line in evidence[kind] if _is_number(line.get("return"))]
        if len(found) >= (_FEW if kind == "train" else 8):
            break
    else:
        why = "too few returns were logged: run.log(step, episode_return=...), run.evaluated"
        return unknown(name, why)
    quarter = len(found) // 4
    first, last = found[:quarter], found[-quarter:]
    early, late = statistics.fmean(first), statistics.fmean(last)
    error = math.hypot(*(statistics.stdev(some) / math.sqrt(quarter) for some in (first, last)))
    numbers = dict(first_quarter=round(early, 3), last_quarter=round(late, 3))
    numbers |= dict(error=round(error, 3))
    message = f"{kind} returns: {early:.2f} in the first quarter, {late:.2f} in the last"
    if late - early > _SURE * error:
        return green(name, f"improved: {message}", **numbers)
    if late - early < -_SURE * error:
        remedy = "see to other checks first; then the learning rate, exploration, reward scale"
        return yellow(name, f"got worse: {message}", remedy, **numbers)
    done = evidence.status["steps"]
    if evidence.status["state"] != "finished" and not 0 < evidence.steps <= 2 * done:
        return unknown(name, f"too early: {message}", **numbers)
    remedy = "see to other checks first; then try the learning rate, exploration, reward scale"
    return yellow(name, f"no better: {message}", remedy, **numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


LOGGED_CHECKS: dict[str, Callable[[LogEvidence], Verdict]] = {
    "process-health": process_health,
    "divergence": divergence,
    "episode-borders": episode_borders,
    "nstep-oracle": nstep_oracle,
    "reward-scale": reward_scale,
    "replay-fill": replay_fill,
    "replay-turnover": replay_turnover,
    "learning": learning,
}


def examine_logged(run: LoggedRun) -> list[Verdict]:
    """What every check says of a logged run, worst first; what it cannot say is `unknown`.

    `examine_logged(LoggedRun.open(path))[0].state`.
    """
    evidence = LogEvidence.of(run)
    found = [check(evidence) for check in LOGGED_CHECKS.values()]
    why = "only a run of millpond train records what this needs"
    found += [unknown(name, why) for name in CHECKS if name not in LOGGED_CHECKS]
    return worst_first(found)
