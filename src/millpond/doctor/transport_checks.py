"""Checks of what lies between processes: rows one way, parameters the other."""

from __future__ import annotations

from .evidence import Evidence
from .verdict import Verdict, green, red, unknown, yellow

_MUCH, _MOST = 0.3, 0.6  # shares of a process's time spent on moving data
_ALONE = "actors and learners share one process: nothing lies between them"


def shared_memory(evidence: Evidence) -> Verdict:
    """The start-up canary: what one process writes into shared memory, the others must see."""
    name = "shared-memory"
    if not evidence.in_processes:
        return unknown(name, _ALONE)
    if evidence.settings.way == "ray":
        return unknown(name, "on a cluster rows and parameters travel by value")
    found = sum(event["event"] == "not shared" for event in evidence.events)
    if found or evidence.told("travelled by value"):
        return red(
            name,
            "memory between processes is not shared: one of them works on a private copy",
            "pass a Channel or Weights itself to a process, never an array over its memory",
            not_shared=max(1, found),
        )
    if not evidence.speed:
        return unknown(name, "no round has ended yet")
    return green(name, "every process saw the others' canaries", not_shared=0)


def channel_integrity(evidence: Evidence) -> Verdict:
    """Pushes that were not what was written. None was delivered."""
    name = "channel-integrity"
    if not evidence.in_processes:
        return unknown(name, _ALONE)
    broken = [event for event in evidence.events if event["event"] == "broken channel"]
    torn = max(len(broken), int(evidence.most("torn")))
    if torn:
        why = f": {broken[-1]['why']}" if broken else ""
        return red(
            name,
            f"{torn:,} pushes were not what was written, and not delivered{why}",
            "if it comes back, test the machine's memory; nothing else may write there",
            torn=torn,
        )
    if not evidence.health:
        return unknown(name, "no round has ended yet")
    rows = evidence.total("rows")
    return green(name, f"{rows:,} rows arrived as they were written", torn=0, rows=rows)


def weights_hash(evidence: Evidence) -> Verdict:
    """Parameters that did not have the hash they were published with. None was delivered."""
    name = "weights-hash"
    if not evidence.in_processes:
        return unknown(name, _ALONE)
    torn = max((line.get("weights_torn", 0) for line in evidence.speed), default=0)
    if torn or evidence.told("WeightsBroken"):
        return red(
            name,
            f"{max(1, torn):,} published parameters did not have their hash, and were not used",
            "if it comes back, test the machine's memory; one process alone may publish",
            torn=max(1, torn),
        )
    if not evidence.speed:
        return unknown(name, "no round has ended yet")
    return green(name, "all parameters had the hash they were published with", torn=0)


def transfer_share(evidence: Evidence) -> Verdict:
    """How much of its time each process spends on moving rows and parameters."""
    name = "transfer-share"
    if not evidence.in_processes:
        return unknown(name, _ALONE)
    shares = evidence.speed[-1].get("shares") if evidence.speed else None
    if not shares:
        return unknown(name, "no round has ended yet")
    moving = {process: found[2] for process, found in shares.items()}
    worst = max(moving, key=lambda process: moving[process])
    most = moving[worst]
    message = f"{worst} spends {most:.0%} of its time on moving data"
    remedy = "move more at once: raise dqn.update_every or envs, or lower --actors"
    if most > _MOST:
        return red(name, message, remedy, **moving)
    if most > _MUCH:
        return yellow(name, message, remedy, **moving)
    return green(name, message, **moving)
