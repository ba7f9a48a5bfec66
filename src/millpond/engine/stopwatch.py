"""`Stopwatch`: where an actor's or learner's time goes, and whether it makes progress."""

from __future__ import annotations

import time

SHARES = ("working", "waiting", "moving")  # "moving": copying or sending data


class Stopwatch:
    """`watch.now("waiting")`; `watch.spent` gives nanoseconds by activity."""

    def __init__(self) -> None:
        self._spent: dict[str, int] = dict[str, int].fromkeys(SHARES, 0)
        self._since, self.doing = time.perf_counter_ns(), "waiting"
        self.beats = 0  # grows whenever something is done
        self.starting = True  # until the first cycle or update is done, which is compiled first

    def now(self, doing: str) -> None:
        """Switch to another activity of `SHARES`."""
        moment = time.perf_counter_ns()
        self._spent[self.doing] += moment - self._since
        self._since, self.doing = moment, doing
        self.beats += 1

    @property
    def spent(self) -> dict[str, int]:
        """Nanoseconds spent so far on each activity."""
        found = dict(self._spent)
        found[self.doing] += time.perf_counter_ns() - self._since
        return found
