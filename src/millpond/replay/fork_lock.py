"""`fork_lock()`: a lock for a store that changes, which a forked child finds free.

A fork waits until no one holds any of them. Otherwise a child would inherit a lock whose holder
does not exist there, and hang, and a store that was half changed.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_LOCKS: WeakSet[Any] = WeakSet()
_held: list[Any] = []  # by the fork that continues now


def fork_lock() -> Any:
    """A lock that its holder may enter again: `with lock: ...`."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def _hold() -> None:
    for lock in list(_LOCKS):
        lock.acquire()
        _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)
