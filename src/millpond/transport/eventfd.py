"""`EventFd`: wakes the other process; a wait ends at a deadline or when the other end dies."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable

from .memory import fence

SLICE_S = 0.05  # how often a wait looks whether the other end is alive, or was not heard


class EventFd:
    """An event that one process rings and another waits for: `bell.ring()`."""

    def __init__(self, fd: int | None = None) -> None:
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._fd = os.eventfd(0, flags) if fd is None else fd
        self._open = True
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    @property
    def fd(self) -> int:
        """Its descriptor, which becomes an `EventFd(fd)` in another process."""
        return self._fd

    def ring(self) -> None:
        """Wake the one that waits, or the next one that does."""
        with contextlib.suppress(BlockingIOError):  # the counter is full
            os.eventfd_write(self._fd, 1)

    def wait(
        self,
        ready: Callable[[], bool],
        timeout: float,
        waiting: memoryview,
        alive: Callable[[], bool] | None,
    ) -> bool:
        """True as soon as `ready()`; False after `timeout` seconds, or once not `alive()`.

        `waiting[0]` is 1 meanwhile; only then does the other end ring.
        """
        deadline = time.monotonic() + timeout
        try:
            while True:
                waiting[0] = 1
                fence()  # either the other end sees that we wait, or we see what it did
                if ready():
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._poll.poll(min(left, SLICE_S) * 1000 + 0.5):
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._fd)
                # Look once more after its death: what it published before must not be lost.
                if not ready() and alive is not None and not alive():
                    return ready()
        finally:
            waiting[0] = 0

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._open = False
            os.close(self._fd)
