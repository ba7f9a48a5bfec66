"""`Worker`: a background thread that runs jobs in order and raises its errors in the caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ..errors import MillpondError

_PATIENCE = 600.0  # seconds after which waiting for the thread is an error


class Worker:
    """Up to `depth` jobs wait; with more, `put` blocks. After an error, no further job is run."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self._jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any]) -> None:
        """Queue a job; raise the error of an earlier one, if there is one."""
        self.check()
        try:
            self._jobs.put(job, timeout=_PATIENCE)
        except queue.Full:
            raise MillpondError(
                f"{self.name}: no job was finished for {_PATIENCE:.0f} s; check the disk"
            ) from None

    def check(self) -> None:
        """Raise the error of a job, if there is one."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Return when every job is done; raise the error of one, if there is one."""
        done = threading.Event()
        self.put(done.set)
        while not done.wait(0.5):
            self.check()
            if not self._thread.is_alive():
                raise MillpondError(f"{self.name}: its thread has ended unexpectedly")
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
