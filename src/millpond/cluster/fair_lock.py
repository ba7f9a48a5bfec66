"""`FairLock`: one thread works in steps, others get a word in between two of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator

from ..engine.crew import SHARES


class FairLock:
    """`with turnstile.step():` around each step, `with turnstile.between():` for everybody else.

    A lock alone is not fair: whoever works would take it again before anyone else could.
    """

    def __init__(self) -> None:
        self._lock, self._guests = threading.Lock(), 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """Nobody else is in meanwhile."""
        with self._changed:
            while self._guests:
                self._changed.wait(1.0)
        with self._lock:
            yield

    @contextlib.contextmanager
    def between(self) -> Generator[None]:
        """Between two steps."""
        with self._changed:
            self._guests += 1
        try:
            with self._lock:
                yield
        finally:
            with self._changed:
                self._guests -= 1
                self._changed.notify_all()


class Stopwatch:
    """Where the time goes: `watch.now("waiting")`; `watch.spent` is in seconds."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = dict[str, float].fromkeys(SHARES, 0.0)
        self._since, self.doing = time.perf_counter(), "waiting"
        self.beats = 0  # grows whenever something is done

    def now(self, doing: str) -> None:
        """From here on: working, waiting or moving data."""
        moment = time.perf_counter()
        self._spent[self.doing] += moment - self._since
        self._since, self.doing = moment, doing
        self.beats += 1

    @property
    def spent(self) -> dict[str, float]:
        """Up to this moment."""
        found = dict(self._spent)
        found[self.doing] += time.perf_counter() - self._since
        return found
