"""`stop_asked()`: SIGINT, SIGTERM and SIGHUP ask a run to save its state and end, once.

A signal may come to the whole process group, and to one process twice: GNU `timeout` signals the
process it started and then its group. All that come together are one request.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOGETHER_S = 1.0  # a second Ctrl-C that comes sooner is the first one once more

_here = threading.local()  # `_here.asked`: what `stop_asked` of this thread has noted


@contextlib.contextmanager
def stop_asked() -> Generator[list[int]]:
    """Signals received; a second Ctrl-C is no longer ours: it ends the run without a state."""
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
        with contextlib.suppress(ValueError):  # not in the main thread: signals are the caller's
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
    """A process of this thread's run was sent a signal: that asks the run to stop."""
    asked: list[int] | None = getattr(_here, "asked", None)
    if asked is not None:
        asked.append(number)


def is_stop_asked() -> bool:
    """Whether the run of this thread was asked to stop."""
    return bool(getattr(_here, "asked", None))


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt if the run of this thread was asked to stop: where nothing is new."""
    if is_stop_asked():
        raise KeyboardInterrupt
