"""`DeviceUpdate`: sample -> update -> rank, for replay in device memory; pure functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from ..agents import AgentState, Learned, Now
from ..replay import Pond, PondState
from ..rows import Array, Batch
from .lake_share import blend
from .over_policies import over_policies
from .updates import LEAST


class Updated(NamedTuple):
    """The result of an update: the new states, what it found, and its batch."""

    agent: AgentState
    pond: PondState
    learned: Learned
    batch: Batch


class DeviceUpdate:
    """`done = update.one(agent, pond, key, now)` for one policy, `update.all(...)` for many."""

    def __init__(self, agent: Any, pond: Pond, batch: int, ranked: bool) -> None:
        self._agent, self._pond, self._batch, self._ranked = agent, pond, batch, ranked

    def one(
        self, agent: AgentState, pond: PondState, key: jax.Array, now: Now, drawn: Any = None
    ) -> Updated:
        """Update one policy; `drawn` is the part of the batch that comes from a Lake."""
        pond, batch = self._pond.sample(pond, key, self._batch)
        agent, learned = self._agent.update(agent, blend(batch, drawn), now)
        if self._ranked:
            priority = learned.priority[: self._batch] + LEAST
            pond = self._pond.update_priorities(pond, batch.draw, priority)
        return Updated(agent, pond, learned, batch)

    def all(self, agent: AgentState, pond: PondState, keys: Array, now: Now) -> Updated:
        """Update every policy: states, keys and `now` are [policies]."""
        axes: Any = self._pond.axes
        out: Any = Updated(*(0, axes, 0, 0))  # pyright: ignore[reportArgumentType]
        return over_policies(self.one, (0, axes, 0, 0), out)(agent, pond, keys, now)
