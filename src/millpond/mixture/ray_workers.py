"""`RayWorkers`: the agents of a mixture as Ray actors; `spread` is its mode `ray`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import numpy as np

from ..cluster.ray import connected, import_ray, passed_on, result_of
from ..engine.environment import child_environment
from .settings import MixSettings
from .spread import RoundWorker, SpreadAgents

_ROUND_S = 3600.0  # a round of an agent that takes longer is lost
_STORE_MB = 1024  # shared memory of a local Ray: all states and Ponds of a mixture pass by


class AgentHost:
    """A `RoundWorker` of a mixture."""

    def __init__(self, settings: dict[str, Any], policy: int) -> None:
        self.worker = RoundWorker(MixSettings.from_json(settings), policy)

    def round(
        self, leaves: list[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """That many updates from a state; it and the sums afterwards."""
        return self.worker.round(leaves, updates)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()


class RayWorkers:
    """`Workers` that are Ray actors, spread over all machines."""

    def __init__(self, settings: MixSettings) -> None:
        self._ray, self._plain = import_ray(), settings.to_json()
        self._environment = passed_on(child_environment(1, True, None))
        self.started: dict[int, Any] = {}

    def start(self, policy: int) -> Any:
        """A worker for a policy."""
        if policy in self.started:
            self._end(self.started[policy])
        options = {"num_cpus": 1.0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        kind = self._ray.remote(AgentHost).options(**options, runtime_env=self._environment)
        self.started[policy] = kind.remote(self._plain, policy)
        return self.started[policy]

    def round(self, worker: Any, leaves: list[np.ndarray], updates: int) -> Any:
        """Begin a round."""
        return worker.round.remote(leaves, updates)

    def result(self, call: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The new state's leaves, and the sums'. What the worker raised is raised here."""
        return result_of(self._ray, call, _ROUND_S)

    def close(self) -> None:
        """End all workers."""
        for worker in self.started.values():
            self._end(worker)

    def _end(self, worker: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(worker, no_restart=True)


def spread(settings: MixSettings) -> SpreadAgents:
    """A mixture's agents on Ray, from the beginning to the end of a session."""
    import_ray()

    @contextlib.contextmanager
    def connect() -> Generator[RayWorkers]:
        number = settings.policies
        with (
            connected(settings.address, number, f"{number} agents", _STORE_MB),
            contextlib.closing(RayWorkers(settings)) as workers,
        ):
            yield workers

    return SpreadAgents(settings, connect)
