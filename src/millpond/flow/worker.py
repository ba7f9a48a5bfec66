"""`Worker`: one background thread that does jobs in order. Its error is raised in the caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ..errors import MillpondError

_PATIENCE = 600.0  # seconds after which waiting for the thread is an error


class Worker:
    """At most `depth` jobs wait; `put` waits for room. After an error nothing more is done."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self._jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any]) -> None:
        """Do `job` after the others; raise what went wrong before."""
        self.check()
        try:
            self._jobs.put(job, timeout=_PATIENCE)
        except queue.Full:
            raise MillpondError(f"{self.name}: no job was done for {_PATIENCE:.0f} s") from None

    def check(self) -> None:
        """Raise the thread's error, if there is one."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Return when every job is done; raise what went wrong."""
        done = threading.Event()
        self.put(done.set)
        while not done.wait(0.5):
            self.check()
            if not self._thread.is_alive():
                raise MillpondError(f"{self.name}: its thread has ended")
        self.check()

    def close(self) -> None:
        """End the thread once its jobs are done or have failed."""
        if self._thread.is_alive():
            self._jobs.put(None, timeout=_PATIENCE)
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error
