"""What ends a process of a run: its parent's order, never a signal that asks the run to stop.

SIGINT, SIGTERM and SIGHUP reach a whole group, or one process alone. What to do about them is the
parent's to say, so a process that gets one passes it on.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator

from ..engine.stopping import SIGNALS

heard: list[int] = []  # those that this process was sent and has not passed on yet


class Stopped(Exception):
    """The parent asked this process to end."""


def hear_signals() -> None:
    """From here on signals are noted. Before, they were blocked: see `held_back`."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: heard.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """A process that is started within begins with these signals blocked: none ends it early."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
