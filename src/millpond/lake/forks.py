"""Safe forks: the child must not inherit locks held by threads that do not exist in it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object to be brought into a consistent state while the process forks."""

    def before_fork(self) -> None: ...

    def after_fork(self, child: bool) -> None: ...


fork_gate = (
    threading.RLock()
)  # held while a process forks, and by whoever must not be forked meanwhile
_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_still: list[ForkAware] = []


def pause_at_fork(thing: ForkAware) -> None:
    """From now on, call `before_fork` and `after_fork` of `thing` around every fork."""
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
