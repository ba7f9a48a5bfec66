"""`Heartbeats`: a few numbers for each process in shared memory, so that the parent sees progress.

Each process alone writes its line; the parent reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..engine.stopwatch import SHARES, Stopwatch
from ..transport.memory import PAGE, Memory

STARTING, WORKING, WAITING = range(3)
_WORDS = 8  # a line: one cache line per process
_BEAT, _STATE, _CYCLE, _STEPS, _SPENT, _BAD = 0, 1, 2, 3, 4, 7  # spent: three words


class Line(NamedTuple):
    """What a process reports."""

    beat: int  # grows whenever it makes progress
    state: int
    cycle: int
    steps: int  # of one policy, by an actor
    spent_ns: tuple[int, int, int]  # working, waiting, moving data
    bad: bool  # a learner met an update that was not finite


class Heartbeats:
    """`board = Heartbeats.create(processes)` in the parent, `board.mine(i)` in a process."""

    def __init__(self, memory: Memory, number: int) -> None:
        self._memory, self.number = memory, number
        self._words = memory.words()

    @staticmethod
    def create(number: int) -> Heartbeats:
        """A line for each of `number` processes."""
        return Heartbeats(Memory.create(number * _WORDS * 8), number)

    def share(self) -> tuple[dict[str, Any], list[int]]:
        """What another process needs to attach."""
        plain, fds = self._memory.share()
        return {"number": self.number, "memory": plain}, fds

    @staticmethod
    def attach(plain: Mapping[str, Any], fds: Sequence[int]) -> Heartbeats:
        """What the parent shared."""
        return Heartbeats(Memory.attach(plain["memory"], fds), int(plain["number"]))

    def line(self, process: int) -> Line:
        """What a process reports now."""
        beat, state, cycle, steps, *spent, bad = self._of(process).tolist()
        return Line(beat, state, cycle, steps, (spent[0], spent[1], spent[2]), bool(bad))

    def wipe(self, process: int) -> None:
        """Clear a line, for a new incarnation."""
        words = self._of(process)
        for word in range(_WORDS):
            words[word] = 0

    def mine(self, process: int) -> SharedStopwatch:
        """A stopwatch that writes the line of this process."""
        return SharedStopwatch(self._of(process))

    def _of(self, process: int) -> memoryview:
        at = PAGE // 8 + process * _WORDS
        return self._words[at : at + _WORDS]


class SharedStopwatch(Stopwatch):
    """A stopwatch that writes to a line of the `Heartbeats`."""

    def __init__(self, words: memoryview) -> None:
        super().__init__()
        self._words = words

    def now(self, doing: str) -> None:
        super().now(doing)
        for word, name in enumerate(SHARES, _SPENT):
            self._words[word] = self._spent[name]
        working = STARTING if self.starting else WORKING
        self._words[_STATE] = WAITING if doing == "waiting" else working
        self._words[_BEAT] = self.beats

    def beat(self) -> None:
        """Still alive: to be called while waiting for others."""
        self.beats += 1
        self._words[_BEAT] = self.beats

    def reached(self, cycle: int, steps: int = 0, bad: bool = False) -> None:
        """Cycles done; an actor's env steps, or whether a learner met a non-finite update."""
        self._words[_BAD], self._words[_CYCLE], self._words[_STEPS] = bad, cycle, steps
        self.beat()
