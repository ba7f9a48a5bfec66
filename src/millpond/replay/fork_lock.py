"""`fork_lock()`: a lock that is safe to fork: it is always free in the child.

A fork waits until none of these locks is held. Otherwise the child could inherit a half-changed
store, and a lock whose holder does not exist in it, and hang.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_LOCKS: WeakSet[Any] = WeakSet()
_held: list[Any] = []  # by the fork in progress


def fork_lock() -> Any:
    """A reentrant lock: `with lock: ...`."""
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
