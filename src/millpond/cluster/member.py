"""`RayMember`: what actors and learners on Ray share. One thread works, others ask meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator
from typing import Any

from ..engine.crew_member import CrewMember
from ..engine.stopwatch import Stopwatch


class RayMember(CrewMember):
    """`member.beat()` reports its progress. Subclasses have `run`, and work in `with self.step():`.

    A plain lock would not be fair: the working thread would take it again before anyone else could.
    """

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._lock, self._changed = threading.Lock(), threading.Condition()
        self._guests = 0  # threads that wait to get in between two steps

    @contextlib.contextmanager
    def step(self) -> Generator[None]:
        """Around each piece of work: no other thread is in `between` meanwhile."""
        with self._changed:
            while self._guests:
                self._changed.wait(1.0)
        with self._lock:
            yield

    @contextlib.contextmanager
    def between(self) -> Generator[None]:
        with self._changed:
            self._guests += 1
        try:
            with self._lock:
                yield
        finally:
            with self._changed:
                self._guests -= 1
                self._changed.notify_all()

    def beat(self) -> dict[str, Any]:
        """How far it is, and where its time goes."""
        watch = self.watch
        return {
            "beats": watch.beats,
            "waits": watch.doing == "waiting",
            "starting": watch.starting,
            "spent": watch.spent,
            "pid": os.getpid(),
        }
