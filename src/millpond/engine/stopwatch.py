"""`Stopwatch`: where an actor's or learner's time goes, and whether it makes progress."""

from __future__ import annotations

import time

SHARES = ("working", "waiting", "moving")  # what time is spent on


class Stopwatch:
    """`watch.now("waiting")`; `watch.spent` is in nanoseconds."""

    def __init__(self) -> None:
        self._spent: dict[str, int] = dict[str, int].fromkeys(SHARES, 0)
        self._since, self.doing = time.perf_counter_ns(), "waiting"
        self.beats = 0  # grows whenever something is done
        self.starting = True  # until the first cycle or update, which is compiled before it

    def now(self, doing: str) -> None:
        """From here on: working, waiting or moving data."""
        moment = time.perf_counter_ns()
        self._spent[self.doing] += moment - self._since
        self._since, self.doing = moment, doing
        self.beats += 1

    @property
    def spent(self) -> dict[str, int]:
        """Up to this moment."""
        found = dict(self._spent)
        found[self.doing] += time.perf_counter_ns() - self._since
        return found
