"""`RayMember`: what actors and learners on Ray share: one thread works, others ask meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..engine.crew import SHARES
from .fair_lock import FairLock


class RayMember:
    """`member.beat()` says how it gets on. Subclasses have `run`."""

    def __init__(self) -> None:
        self.watch, self._door = Stopwatch(), FairLock()
        self.first = True  # until the first cycle or update here, which is compiled before it

    def beat(self) -> dict[str, Any]:
        """How it gets on."""
        watch = self.watch
        return {
            "beats": watch.beats,
            "waits": watch.doing == "waiting",
            "starting": self.first,
            "spent": watch.spent,
            "pid": os.getpid(),
        }


def own(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies: what comes from Ray is read-only and pins shared memory."""
    return {name: np.array(array) for name, array in arrays.items()}


class Stopwatch:
    """Where the time goes: `watch.now("waiting")`; `watch.spent` is in seconds."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = dict[str, float].fromkeys(SHARES, 0.0)
        self._since, self.doing = time.perf_counter(), "waiting"
        self.beats = 0  # grows whenever something is done

    def now(self, doing: str) -> None:
        """From here on: working, waiting or moving data."""
        moment = time.perf_counter()
        self._spent[self.doing] += moment - self._since
        self._since, self.doing = moment, doing
        self.beats += 1

    @property
    def spent(self) -> dict[str, float]:
        """Up to this moment."""
        found = dict(self._spent)
        found[self.doing] += time.perf_counter() - self._since
        return found
