"""`Updates`: rows in, better agents out: what a learner does with the rows of a cycle.

`PondUpdates` is one jitted program per cycle, for replay in device memory; `HostUpdates` draws from
any store on the host; `RolloutUpdates` learns from the rows themselves. All say what they drew, so
that it can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Learned
from ..rows import Array, Rows
from ..sequence import Sample
from .episode_stats import numbers_of
from .provenance import stack_hash

LEAST = np.float32(1e-6)  # is added to every priority, so that no row is lost for ever


class Lesson(NamedTuple):
    """What one cycle's updates found and drew; every field [policies, updates, ...]."""

    found: Array  # float32[policies, updates, reports]
    stream: Array  # int32[policies, updates, batch]
    row: Array  # ids, as in Draw
    reward: Array
    discount: Array
    mask: Array
    strange: Array  # int32[policies, updates]: stacks that are not those acted on


class Cycle(NamedTuple):
    """What a learner takes at once."""

    rows: Rows | None  # [time, policies, env] of all actors; offline there are none
    number: int  # since the run began: 1, 2, ...
    updates: int  # that are due
    steps: np.ndarray  # uint32[policies]: env steps that the schedules go by
    after: np.ndarray | None  # [policies, env]: what the states after the rows are worth


# The agents, what was drawn and found, and the batch of the first update that was not finite.
Learnt = tuple[AgentState, Lesson | None, Any]


class Updates(Protocol):
    """The updates of some policies: `agent, lesson, bad = updates.learn(agent, cycle)`."""

    def learn(self, agent: AgentState, cycle: Cycle) -> Learnt:
        """Take the rows, then the updates of agent [policies] that are due."""
        ...

    def cut(self, envs: np.ndarray) -> None:
        """Continuity is lost after the newest rows of envs bool[env]."""
        ...

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole replay of each policy."""
        ...

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Continue from exported replays."""
        ...


def lesson_of(found: Learned, batch: Sample, reports: tuple[str, ...]) -> Lesson:
    """What is worth knowing of one update and its batch. Inside jit."""
    acted = batch.extras.get("stack_hash")  # a Lake from elsewhere does not know it
    strange = jnp.zeros((), np.int32)
    if acted is not None:
        # A sequence has one observation more than rows.
        obs = batch.obs if batch.mask.ndim == 1 else jax.tree.map(lambda o: o[:, :-1], batch.obs)
        wrong = (stack_hash(obs, batch.mask.ndim) != acted) & batch.mask
        strange = wrong.sum(dtype=np.int32)
    draw = batch.draw
    drawn = (draw.stream, draw.row, batch.reward, batch.discount, batch.mask)
    return Lesson(numbers_of(found, reports), *drawn, strange)
