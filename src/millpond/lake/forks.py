"""What must hold when a process forks: no lock is held by a thread that the child does not have."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something with a part in a fork; it holds still while the process is copied."""

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


fork_gate = (
    threading.RLock()
)  # held while a process forks, and by whoever must not be forked meanwhile
_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_still: list[ForkAware] = []


def pause_at_fork(thing: ForkAware) -> None:
    """From now on `thing` is asked to hold still for a fork."""
    with fork_gate:
        _watched.add(thing)


def _before() -> None:
    fork_gate.acquire()
    for thing in list(_watched):
        _still.append(thing)
        thing.before_fork()


def _after(child: bool) -> None:
    for thing in _still:
        thing.after_fork(child)
    _still.clear()
    fork_gate.release()


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(child=False),
    after_in_child=lambda: _after(child=True),
)
