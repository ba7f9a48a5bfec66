"""`WatchedPond`: a HostPond whose rows and draws are recorded for the doctor."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..replay import HostPond
from ..rows import Rows, Tree
from .pond_audit import PondAudit


class WatchedPond:
    """Use it like the `HostPond` that it wraps: `pond = run.watch(pond)`.

    Rows that are added to the wrapped pond directly are not recorded, and the audit then forgets
    everything before them.
    """

    def __init__(self, pond: HostPond[Any]) -> None:
        self.pond = pond
        self._audit, self._mutex = PondAudit(pond), threading.Lock()

    @property
    def news(self) -> int:
        """Rows added or drawn since the last report."""
        return self._audit.news

    def add(
        self,
        rows: Rows,
        next_obs: Tree | None = None,
        env: int | None = None,
        mask: np.ndarray | None = None,
        final_obs: Tree | None = None,
    ) -> None:
        """See `HostPond.add`."""
        with self._mutex:
            self.pond.add(rows, next_obs, env, mask, final_obs)
            self._audit.took(rows, env, mask, final_obs is not None)

    def cut(self, envs: int | np.ndarray | None = None) -> None:
        """See `HostPond.cut`."""
        self.pond.cut(envs)

    def sample(self, batch_size: int, out: Any = None) -> Any:
        """See `HostPond.sample`."""
        with self._mutex:
            batch = self.pond.sample(batch_size, out)
            self._audit.drew(batch)
        return batch

    def report(self) -> dict[str, Any]:
        """The evidence since the last report, as plain values."""
        with self._mutex:
            return self._audit.report()

    def __getattr__(self, name: str) -> Any:
        if name == "pond":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.pond, name)

    def __reduce__(self) -> Any:
        """Copies, also in other processes, are plain ponds, since nothing logs them there."""
        return _plain, (self.pond,)


def _plain(pond: HostPond[Any]) -> HostPond[Any]:
    return pond
