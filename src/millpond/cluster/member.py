"""`RayMember`: what actors and learners on Ray share: one thread works, others ask meanwhile."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ..engine.calls import Calls
from ..engine.stopwatch import Stopwatch
from .fair_lock import FairLock


class RayMember(Calls):
    """`member.beat()` reports its progress. Subclasses have `run`."""

    def __init__(self) -> None:
        self.watch, self._door = Stopwatch(), FairLock()

    def between(self) -> contextlib.AbstractContextManager[Any]:
        return self._door.between()

    def beat(self) -> dict[str, Any]:
        """Its progress."""
        watch = self.watch
        return {
            "beats": watch.beats,
            "waits": watch.doing == "waiting",
            "starting": watch.starting,
            "spent": watch.spent,
            "pid": os.getpid(),
        }
