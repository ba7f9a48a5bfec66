"""`RemoteAgents`: a mixture's agents, each played and trained by a worker in another process.

Workers are stateless: an agent's whole state is sent with every round and comes back with the
result. So a lost worker costs only its current round, which a new one repeats bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..cluster.ray import Lost
from ..engine.episode_stats import Sums, no_sums
from ..errors import RunFailed
from .agents import Agents, AgentsState
from .settings import MixSettings

_TRIES = 5  # for one agent's round, each with a new worker


class Workers(Protocol):
    """A worker per policy; workers can be lost and started again."""

    def start(self, policy: int) -> Any:
        """Start a worker for a policy."""
        ...

    def round(self, worker: Any, leaves: list[np.ndarray], updates: int) -> Any:
        """Begin a round; returns a handle for `result`."""
        ...

    def result(self, call: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Wait for the leaves of the new state and of the sums; `Lost` if the worker is gone."""
        ...


class RoundWorker:
    """What a worker does: it plays rounds of one policy."""

    def __init__(self, settings: MixSettings, policy: int) -> None:
        self.agents = Agents(settings, only=policy)
        self._tree = jax.tree.structure(jax.eval_shape(self.agents.init))

    def round(
        self, leaves: Sequence[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Make `updates` updates; returns the leaves of the new state and of the sums."""
        state = jax.tree.unflatten(self._tree, [jnp.array(leaf) for leaf in leaves])
        state, sums = self.agents.round(state, updates)
        return jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(sums)


class RemoteAgents(Agents):
    """`Agents` whose rounds are played by workers in parallel."""

    def __init__(
        self, settings: MixSettings, connect: Callable[[], AbstractContextManager[Workers]]
    ) -> None:
        super().__init__(settings)
        self._connect = connect
        one = Agents(settings, only=0)
        whole, part = jax.eval_shape(self.init), jax.eval_shape(one.init)
        self._states = PolicySplit(whole, part, settings.policies)
        self._sums = PolicySplit(no_sums(settings.policies), no_sums(1), settings.policies)
        self._open = ExitStack()
        self._workers: list[Any] = []
        self.replaced = 0  # lost workers so far

    def begin(self, state: AgentsState, resumed: bool) -> AgentsState:
        """Start the workers."""
        self._pool = self._open.enter_context(self._connect())
        self._workers = [self._pool.start(policy) for policy in range(self.policies)]
        return state

    def close(self) -> None:
        """End the workers."""
        self._workers = []
        self._open.close()

    def round(self, state: AgentsState, updates: int) -> tuple[AgentsState, Sums]:
        """Make `updates` updates of every agent, each on its worker."""
        parts = [self._states.split(jax.device_get(state), i) for i in range(self.policies)]
        calls = [
            self._pool.round(worker, leaves, updates)
            for worker, leaves in zip(self._workers, parts, strict=True)
        ]
        found = [
            self._result(policy, call, parts[policy], updates) for policy, call in enumerate(calls)
        ]
        states, sums = (list(some) for some in zip(*found, strict=True))
        new = jax.tree.map(jnp.asarray, self._states.join(states))
        return new, self._sums.join(sums)

    def _result(
        self, policy: int, call: Any, leaves: list[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        why: Lost | None = None
        for _ in range(_TRIES):
            try:
                return self._pool.result(call)
            except Lost as error:
                why = error
                self.replaced += 1
                self._workers[policy] = self._pool.start(policy)
                call = self._pool.round(self._workers[policy], leaves, updates)
        raise RunFailed(
            f"mixture: agent {policy} lost {_TRIES} workers one after the other ({why}); check "
            "the cluster (ray status), then run millpond resume"
        ) from why


class PolicySplit:
    """Splits a tree of all policies into one per policy, and joins them again.

    `whole` and `part` are trees of arrays or shapes, of all policies and of one. A leaf with the
    same shape in both is shared by all policies.
    """

    def __init__(self, whole: Any, part: Any, number: int) -> None:
        self._tree, self._number = jax.tree.structure(whole), number
        pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True)
        self._axes = [_axis(np.shape(a), np.shape(b)) for a, b in pairs]

    def split(self, tree: Any, index: int) -> list[np.ndarray]:
        """The leaves of policy `index`."""
        return [
            leaf if axis is None else np.split(leaf, self._number, axis)[index]
            for leaf, axis in zip(map(np.asarray, jax.tree.leaves(tree)), self._axes, strict=True)
        ]

    def join(self, parts: Sequence[Sequence[np.ndarray]]) -> Any:
        """The tree of all policies, from the leaves of each."""
        leaves = [
            some[0] if axis is None else np.concatenate(some, axis)
            for axis, *some in zip(self._axes, *parts, strict=True)
        ]
        return jax.tree.unflatten(self._tree, leaves)


def _axis(whole: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    """The first axis in which two shapes differ; None if they are equal."""
    return next((i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b), None)
