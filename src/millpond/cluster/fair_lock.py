"""`FairLock`: one thread works in steps, others get a word in between two of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class FairLock:
    """`with lock.step():` around each step, `with lock.between():` for everybody else.

    A lock alone is not fair: whoever works would take it again before anyone else could.
    """

    def __init__(self) -> None:
        self._lock, self._guests = threading.Lock(), 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """No one else is in meanwhile."""
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
