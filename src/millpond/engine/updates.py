"""`Updates`: what a learner does with the rows of a cycle.

`PondUpdates` is one jitted program per cycle, for replay in device memory; `HostUpdates` samples
from any replay on the host; `RolloutUpdates` learns from the rows themselves. Each reports what it
drew, so that it can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Learned
from ..rows import Array, Rows
from ..sequence import Sample
from .checkpoint import Arrays
from .episode_stats import numbers_of
from .provenance import stack_hash

LEAST = np.float32(1e-6)  # added to every priority, so that every row keeps a chance


class Lesson(NamedTuple):
    """What the updates of one cycle found and drew; every field is [policies, updates, ...]."""

    found: Array  # float32[policies, updates, reports]
    stream: Array  # int32[policies, updates, batch]
    row: Array  # ids, as in Draw
    reward: Array
    discount: Array
    mask: Array
    strange: Array  # int32[policies, updates]: stacks that differ from those acted on


class Cycle(NamedTuple):
    """What a learner takes in one cycle."""

    rows: Rows | None  # [time, policies, env] of all actors; offline there are none
    number: int  # since the run began: 1, 2, ...
    updates: int  # due after these rows
    steps: np.ndarray  # uint32[policies]: env steps that the schedules go by
    after: np.ndarray | None  # [policies, env]: values of the states after the rows


# The agents, their lesson, and the batch of the first update that was not finite.
Learnt = tuple[AgentState, Lesson | None, Any]


class Updates(Protocol):
    """The updates of some policies: `agent, lesson, bad = updates.learn(agent, cycle)`."""

    def learn(self, agent: AgentState, cycle: Cycle) -> Learnt:
        """Store the rows, then take the updates of agent [policies] that are due."""
        ...

    def cut(self, envs: np.ndarray) -> None:
        """The next rows of envs bool[env] do not continue their newest ones."""
        ...

    def export(self) -> list[Arrays]:
        """The state of each policy's replay."""
        ...

    def restore(self, arrays: Sequence[Arrays]) -> None:
        """Continue from what `export` returned."""
        ...


def lesson_of(found: Learned, batch: Sample, reports: tuple[str, ...]) -> Lesson:
    """The lesson of one update and its batch. Inside jit."""
    acted = batch.extras.get("stack_hash")  # rows of a given Lake do not have it
    strange = jnp.zeros((), np.int32)
    if acted is not None:
        # A sequence has one more observation than rows.
        obs = batch.obs if batch.mask.ndim == 1 else jax.tree.map(lambda o: o[:, :-1], batch.obs)
        wrong = (stack_hash(obs, batch.mask.ndim) != acted) & batch.mask
        strange = wrong.sum(dtype=np.int32)
    draw = batch.draw
    drawn = (draw.stream, draw.row, batch.reward, batch.discount, batch.mask)
    return Lesson(numbers_of(found, reports), *drawn, strange)
