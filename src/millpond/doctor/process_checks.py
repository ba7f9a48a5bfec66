"""Check of the processes: whether one was lost, and whether the run still goes."""

from __future__ import annotations

from collections import Counter

from ..plugins import user_line
from .evidence import Evidence
from .verdict import Verdict, green, red, yellow

_OFTEN = 3  # losses of one process


def process_health(evidence: Evidence) -> Verdict:
    """Red: the run ended because of it, or one process is lost again and again."""
    name = "process-health"
    status, losses = evidence.status, evidence.losses
    lost = Counter(f"{event['process']} {event['index']}" for event in losses)
    numbers = dict(lost=len(losses), **{f"lost {who}": times for who, times in lost.items()})
    if status["state"] == "failed":
        traceback = status.get("traceback", "")
        where = f", in {user_line(traceback)}" if traceback else ""
        message = f"the run failed: {_first(status.get('why', ''))}{where}"
        again = "correct what the traceback names; millpond resume then goes on from the last state"
        more = {"traceback": traceback} if traceback else {}
        return red(name, message, again, **numbers, **more)
    if status["state"] == "killed":
        again = "millpond resume goes on from the last saved state; the kernel's log may say more"
        if evidence.events:
            again += "; events.jsonl has what happened to its processes"
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
