"""`SpreadAgents`: a mixture's agents, each played and taught by its own worker, elsewhere.

A worker keeps nothing: its agent's whole state comes with every round and goes back with its
result. So a lost worker costs the round it was in, which another does again, bit for bit the same.
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

_TRIES = 5  # of one agent's round, each by a new worker


class Workers(Protocol):
    """Somewhere to play: a worker for each policy, which can be lost and started again."""

    def start(self, policy: int) -> Any:
        """A worker for a policy."""
        ...

    def round(self, worker: Any, leaves: list[np.ndarray], updates: int) -> Any:
        """Begin a round; what it returns is for `result`."""
        ...

    def result(self, call: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Leaves of the new state and of the sums; `Lost` if the worker is gone."""
        ...


class RoundWorker:
    """What a worker does: rounds of one policy, from leaves to leaves."""

    def __init__(self, settings: MixSettings, policy: int) -> None:
        self.agents = Agents(settings, only=policy)
        self._tree = jax.tree.structure(jax.eval_shape(self.agents.init))

    def round(
        self, leaves: Sequence[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """That many updates from a state; it and the sums afterwards."""
        state = jax.tree.unflatten(self._tree, [jnp.array(leaf) for leaf in leaves])
        state, sums = self.agents.round(state, updates)
        return jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(sums)


class SpreadAgents(Agents):
    """`Agents` whose rounds are played by workers at the same time."""

    def __init__(
        self, settings: MixSettings, connect: Callable[[], AbstractContextManager[Workers]]
    ) -> None:
        super().__init__(settings)
        self._connect = connect
        one = Agents(settings, only=0)
        whole, part = jax.eval_shape(self.init), jax.eval_shape(one.init)
        self._states = Parts(whole, part, settings.policies)
        self._sums = Parts(no_sums(settings.policies), no_sums(1), settings.policies)
        self._open = ExitStack()
        self._workers: list[Any] = []
        self.replaced = 0  # workers that were lost

    def begin(self, state: AgentsState, resumed: bool) -> AgentsState:
        """Start the workers."""
        self._at = self._open.enter_context(self._connect())
        self._workers = [self._at.start(policy) for policy in range(self.policies)]
        return state

    def close(self) -> None:
        """End them."""
        self._workers = []
        self._open.close()

    def round(self, state: AgentsState, updates: int) -> tuple[AgentsState, Sums]:
        """That many updates of every agent, each by its worker."""
        parts = [self._states.of(jax.device_get(state), i) for i in range(self.policies)]
        calls = [
            self._at.round(worker, leaves, updates)
            for worker, leaves in zip(self._workers, parts, strict=True)
        ]
        found = [
            self._result(policy, call, parts[policy], updates) for policy, call in enumerate(calls)
        ]
        states, sums = (list(some) for some in zip(*found, strict=True))
        new = jax.tree.map(jnp.asarray, self._states.together(states))
        return new, self._sums.together(sums)

    def _result(
        self, policy: int, call: Any, leaves: list[np.ndarray], updates: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        why: Lost | None = None
        for _ in range(_TRIES):
            try:
                return self._at.result(call)
            except Lost as error:
                why = error
                self.replaced += 1
                self._workers[policy] = self._at.start(policy)
                call = self._at.round(self._workers[policy], leaves, updates)
        raise RunFailed(
            f"mixture: {_TRIES} workers for agent {policy} were lost one after the other ({why}); "
            "look at the cluster (ray status), then run millpond resume"
        ) from why


class Parts:
    """A tree of all policies, cut into those of each alone, and back.

    `whole` and `part` are trees of arrays or shapes. A leaf of the same shape in both is shared.
    """

    def __init__(self, whole: Any, part: Any, number: int) -> None:
        self._tree, self._number = jax.tree.structure(whole), number
        pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True)
        self._axes = [_axis(np.shape(a), np.shape(b)) for a, b in pairs]

    def of(self, tree: Any, index: int) -> list[np.ndarray]:
        """The leaves of one policy."""
        return [
            leaf if axis is None else np.split(leaf, self._number, axis)[index]
            for leaf, axis in zip(map(np.asarray, jax.tree.leaves(tree)), self._axes, strict=True)
        ]

    def together(self, parts: Sequence[Sequence[np.ndarray]]) -> Any:
        """The tree of all."""
        leaves = [
            some[0] if axis is None else np.concatenate(some, axis)
            for axis, *some in zip(self._axes, *parts, strict=True)
        ]
        return jax.tree.unflatten(self._tree, leaves)


def _axis(whole: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    """Where two shapes differ; None: nowhere."""
    return next((i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b), None)
