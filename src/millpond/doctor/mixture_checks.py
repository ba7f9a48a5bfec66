"""Checks of a mixture: whether resets pay, and what BigAgent and agents make of their data."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..metrics import read_metrics
from ..mixture import MixRun, MixSettings
from .evidence import Evidence, Line
from .examine import examine
from .verdict import Verdict, green, red, unknown, worst_first, yellow

_AS_GOOD = 0.9  # of the agents' return, at which a clone loses next to nothing
_ALIKE = 0.05  # share of states in which two agents act differently
_HIGH, _FAR = 2.0, 0.5  # values this many times the realised return, and this much above it
_SLEEPING = 0.5  # share of dormant units
_UNMEASURED = "nothing was measured before a reset yet"


@dataclass
class MixEvidence:
    """Lines of a mixture by kind, oldest first: `MixEvidence.of(run)`, or made up in a test."""

    settings: MixSettings
    lines: dict[str, list[Line]] = field(default_factory=dict)

    @staticmethod
    def of(run: MixRun) -> MixEvidence:
        """Everything in a mixture's folder; it may be going on."""
        found = MixEvidence(run.settings)
        for line in read_metrics(run.folder.metrics):
            found.lines.setdefault(line["kind"], []).append(line)
        return found

    def __getitem__(self, kind: str) -> list[Line]:
        return self.lines.get(kind, [])


def hand_over(evidence: MixEvidence) -> Verdict:
    """Right after a reset the agents should be about as good as they were before."""
    name = "hand-over"
    pairs = [_around(evidence, reset) for reset in evidence["reset"] if any(reset["cloned"])]
    pairs = [pair for pair in pairs if pair is not None]
    if not pairs:
        return unknown(name, "no agent was cloned yet")
    before, after = pairs[-1]
    numbers: dict[str, Any] = dict(
        before=[round(a, 2) for a, _ in pairs], after=[round(b, 2) for _, b in pairs]
    )
    message = f"agents had {before:.2f} before the last reset and {after:.2f} after it"
    if after >= before - (1 - _AS_GOOD) * abs(before):
        return green(name, message, **numbers)
    return yellow(
        name,
        message,
        "let the BigAgent learn more (--big.minibatches-per-1k), begin from the best agent "
        "(--big.init best_agent), or refuse more of them (--clone.gate 1)",
        **numbers,
    )


def recovery(evidence: MixEvidence) -> Verdict:
    """Agents should be back where they were long before the next reset comes."""
    name, told = "recovery", evidence["recovery"]
    if not told:
        return unknown(name, "no cycle has ended since a reset")
    took = told[-1]["frames_to_recovery"]
    back = sum(frames is not None for frames in took)
    cycle = evidence.settings.updates * evidence.settings.frames_per_update
    known = [frames for frames in took if frames is not None]
    share = statistics.median(known) / cycle if known else None
    numbers: dict[str, Any] = dict(members=len(took), recovered=back, share_of_cycle=share)
    remedy = "put resets further apart (--updates), or make the hand-over better"
    if 2 * back < len(took):
        message = f"{back} of {len(took)} members got back to their return before the last reset"
        return red(name, message, remedy, **numbers)
    assert share is not None
    message = f"it took {share:.0%} of a cycle to get back ({back} of {len(took)} members)"
    if share > 0.5 or back < len(took):
        return yellow(name, message, remedy, **numbers)
    return green(name, message, **numbers)


def big_reuse(evidence: MixEvidence) -> Verdict:
    """The BigAgent should see every row of BigPond at least once."""
    name = "big-reuse"
    if not evidence["big"]:
        return unknown(name, "the BigAgent has not learned yet")
    reuse = evidence["big"][-1]["samples_per_row"]
    message = f"{reuse:.2g} samples per row of BigPond"
    if reuse < 1:
        remedy = "raise --big.minibatches-per-1k, or lower --big.capacity to what it can learn from"
        return yellow(name, f"{message}: most rows are never seen", remedy, samples_per_row=reuse)
    return green(name, message, samples_per_row=reuse)


def big_values(evidence: MixEvidence) -> Verdict:
    """What the BigAgent believes should not be far above what its states really came to."""
    name = "big-values"
    if not evidence["measure"]:
        return unknown(name, _UNMEASURED)
    line = evidence["measure"][-1]
    believed, real = (statistics.fmean(line[key]) for key in ("big_max_q", "realised"))
    numbers: dict[str, Any] = dict(max_q=round(believed, 3), realised=round(real, 3))
    message = f"mean max-Q {believed:.2f}, realised discounted return {real:.2f}"
    if believed > _HIGH * abs(real) and believed - real > _FAR:
        remedy = "let it play a share itself (--big.own_fraction 0.2), or lower its n-step"
        return yellow(name, f"values far above what came: {message}", remedy, **numbers)
    return green(name, message, **numbers)


def diversity(evidence: MixEvidence) -> Verdict:
    """Agents that all do the same fill the Lake with one agent's data."""
    name = "diversity"
    if evidence.settings.agents < 2:
        return unknown(name, "there is one agent")
    if not evidence["measure"]:
        return unknown(name, _UNMEASURED)
    apart = statistics.fmean(evidence["measure"][-1]["disagreement"])
    message = f"two agents act differently in {apart:.0%} of the states"
    if apart < _ALIKE:
        remedy = "give them different epsilons (--clone.spread), or put resets further apart"
        return yellow(name, message, remedy, disagreement=apart)
    return green(name, message, disagreement=apart)


def dormant(evidence: MixEvidence) -> Verdict:
    """Units that never fire cannot learn."""
    name = "dormant-units"
    if not evidence["measure"]:
        return unknown(name, _UNMEASURED)
    line = evidence["measure"][-1]
    agents = statistics.fmean(share for member in line["dormant"] for share in member)
    big = statistics.fmean(line["big_dormant"])
    numbers: dict[str, Any] = dict(agents=round(agents, 3), big=round(big, 3))
    message = f"{agents:.0%} of the agents' units, {big:.0%} of the BigAgent's"
    if max(agents, big) > _SLEEPING:
        remedy = "use --big.init shrink_perturb, or lower the learning rate"
        return yellow(name, message, remedy, **numbers)
    return green(name, message, **numbers)


def divergence(evidence: MixEvidence) -> Verdict:
    """A number that is not finite: an agent was replaced, or a BigAgent not used."""
    name = "divergence"
    again = len(evidence["recloned"])
    lost = sum(any(line["diverged"]) for line in evidence["big"])
    if not evidence["train"]:
        return unknown(name, "no round has ended yet")
    remedy = "lower the learning rate of agents or BigAgent, or clip rewards"
    if lost:
        return red(name, f"the BigAgent diverged in {lost} cycles", remedy, big=lost, agents=again)
    if again:
        return yellow(name, f"{again} agents were replaced by copies", remedy, big=0, agents=again)
    return green(name, "all numbers were finite", big=0, agents=0)


MIXTURE_CHECKS: dict[str, Callable[[MixEvidence], Verdict]] = {
    "divergence": divergence,
    "hand-over": hand_over,
    "recovery": recovery,
    "big-reuse": big_reuse,
    "big-values": big_values,
    "diversity": diversity,
    "dormant-units": dormant,
}


def examine_mixture(run: MixRun) -> list[Verdict]:
    """What every check says of a mixture, worst first; one line names those that do not fit.

    `examine_mixture(MixRun.open(path))[0].state`.
    """
    found = [check(MixEvidence.of(run)) for check in MIXTURE_CHECKS.values()]
    plain = examine(Evidence.of(run.folder))
    found += [verdict for verdict in plain if verdict.state != "unknown"]
    names = [verdict.name for verdict in plain if verdict.state == "unknown"]
    why = f"{len(names)} checks need processes or a run with replay; a mixture is one program"
    return [
        *worst_first(found),
        unknown("others", why, checks=names),
    ]


def _around(evidence: MixEvidence, reset: Line) -> tuple[float, float] | None:
    """Mean return of the members that were cloned, before and right after a reset."""
    for line in evidence["eval"]:
        if line.get("when") == "after" and line["cycle"] == reset["cycle"]:
            cloned = [i for i, was in enumerate(reset["cloned"]) if was]
            before = statistics.fmean(reset["target"][i] for i in cloned)
            return before, statistics.fmean(statistics.fmean(line["returns"][i]) for i in cloned)
    return None
