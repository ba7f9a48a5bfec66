"""Check of the processes: whether one was lost, and whether the run still goes."""

from __future__ import annotations

from collections import Counter

from .evidence import Evidence
from .verdict import Verdict, green, red, yellow

_OFTEN = 3  # losses of one process


def process_health(evidence: Evidence) -> Verdict:
    """Red: the run ended because of it, or one process is lost again and again."""
    name = "process-health"
    status, losses = evidence.status, evidence.losses
    lost = Counter(f"{event['process']} {event['index']}" for event in losses)
    numbers = dict(lost=len(losses), **{f"lost {who}": times for who, times in lost.items()})
    again = "millpond resume goes on from the last saved state; events.jsonl has the tracebacks"
    if status["state"] == "failed":
        return red(name, f"the run gave up: {_first(status.get('why', ''))}", again, **numbers)
    if status["state"] == "killed":
        return red(name, "the run's process is gone and said nothing", again, **numbers)
    if not losses:
        return green(name, "no process was lost", lost=0)
    last = losses[-1]
    told = f"{last['process']} {last['index']} was lost: {_first(last.get('why', ''))}"
    often = [who for who, times in lost.items() if times >= _OFTEN]
    if often:
        message = f"{', '.join(often)} is lost again and again; {told}"
        return red(name, message, "read the traceback in events.jsonl", **numbers)
    message = f"{told}; it was replaced"
    return yellow(
        name, message, "read events.jsonl if it comes back; memory may be short", **numbers
    )


def _first(why: str) -> str:
    return why.strip().partition("\n")[0]
