"""`RayWorkers`: the agents of a mixture as Ray actors, for mode `ray`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import numpy as np

from ..cluster.ray import connected, import_ray, passed_on, result_of
from ..engine.environment import child_environment
from .remote_agents import RemoteAgents, RoundWorker
from .settings import MixSettings

_ROUND_S = 3600.0  # a worker that takes longer for a round counts as lost
_STORE_MB = 1024  # shared memory of a local Ray: all agents' states and Ponds pass through it


class AgentHost:
    """The Ray actor that holds a `RoundWorker`."""

    def __init__(self, settings: dict[str, Any], policy: int) -> None:
        self.worker = RoundWorker(MixSettings.from_json(settings), policy)

    def round(
        self, leaves: list[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Make `updates` updates; returns the leaves of the new state and of the sums."""
        return self.worker.round(leaves, updates)

    def pid(self) -> int:
        """Its process id."""
        return os.getpid()


class RayWorkers:
    """`Workers` that are Ray actors, spread over all machines of the cluster."""

    def __init__(self, settings: MixSettings) -> None:
        self._ray, self._plain = import_ray(), settings.to_json()
        self._environment = passed_on(child_environment(1, True, None))
        self.started: dict[int, Any] = {}

    def start(self, policy: int) -> Any:
        """Start a worker for a policy, in place of its old one if there is one."""
        if policy in self.started:
            self._end(self.started[policy])
        options = {"num_cpus": 1.0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        kind = self._ray.remote(AgentHost).options(**options, runtime_env=self._environment)
        self.started[policy] = kind.remote(self._plain, policy)
        return self.started[policy]

    def round(self, worker: Any, leaves: list[np.ndarray], updates: int) -> Any:
        """Begin a round; the reference it returns is for `result`."""
        return worker.round.remote(leaves, updates)

    def result(self, call: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The leaves of the new state and of the sums; reraises what the worker raised."""
        return result_of(self._ray, call, _ROUND_S)

    def close(self) -> None:
        """End all workers."""
        for worker in self.started.values():
            self._end(worker)

    def _end(self, worker: Any) -> None:
        with contextlib.suppress(Exception):  # it may be gone already
            self._ray.kill(worker, no_restart=True)


def ray_agents(settings: MixSettings) -> RemoteAgents:
    """A mixture's agents on Ray; the workers live as long as the session."""
    import_ray()

    @contextlib.contextmanager
    def connect() -> Generator[RayWorkers]:
        number = settings.policies
        with (
            connected(settings.address, number, f"{number} agents", _STORE_MB),
            contextlib.closing(RayWorkers(settings)) as workers,
        ):
            yield workers

    return RemoteAgents(settings, connect)
