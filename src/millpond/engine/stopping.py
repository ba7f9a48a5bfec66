"""Signals: SIGINT, SIGTERM and SIGHUP ask a run to save its state and end.

A signal may reach the whole process group, and one process twice: GNU `timeout` signals the process
it started and then its group. Signals that arrive together count as one request. What to do about
it is for the run's own process to say, so a process that it started only passes a signal on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOGETHER_S = 1.0  # a second Ctrl-C within this time counts as the first one

heard: list[int] = []  # signals that this worker process has not passed on yet
_here = threading.local()  # `_here.asked`: the signals that `stop_asked` of this thread noted


class Stopped(Exception):
    """The parent told this worker process to end."""


@contextlib.contextmanager
def stop_asked() -> Generator[list[int]]:
    """The list of signals received so far. A second Ctrl-C ends the run without saving a state."""
    asked: list[int] = []
    before: dict[int, Any] = {}
    first = [0.0]

    def note(number: int, frame: Any) -> None:
        impatient = number == signal.SIGINT and number in asked
        if impatient and time.monotonic() - first[0] > _TOGETHER_S:
            signal.signal(number, before[number])
            signal.raise_signal(number)
            return
        if not asked:
            first[0] = time.monotonic()
        asked.append(number)

    outer, _here.asked = getattr(_here, "asked", None), asked
    try:
        with contextlib.suppress(ValueError):  # not the main thread: signals are the caller's
            for number in SIGNALS:
                nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
                if not nohup:
                    before[number] = signal.signal(number, note)
        yield asked
    finally:
        _here.asked = outer
        for number, handler in before.items():
            signal.signal(number, handler)


def ask_to_stop(number: int) -> None:
    """Ask this thread's run to stop: one of its processes was sent a signal."""
    asked: list[int] | None = getattr(_here, "asked", None)
    if asked is not None:
        asked.append(number)


def is_stop_asked() -> bool:
    """Whether this thread's run was asked to stop."""
    return bool(getattr(_here, "asked", None))


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt if this thread's run was asked to stop and has nothing to save."""
    if is_stop_asked():
        raise KeyboardInterrupt


def hear_signals() -> None:
    """In a worker process: from now on note signals, which `held_back` had blocked until now."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: heard.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """A process started within begins with these signals blocked, so that none ends it early."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
