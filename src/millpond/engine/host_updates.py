"""`HostUpdates`: a learner whose rows are kept on the host: sample -> update -> rank, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from ..rows import Array, Batch, Draw, Rows
from .host_replay import HostReplay
from .settings import Settings
from .updates import LEAST, Lesson, lesson_of


class HostUpdates:
    """Any `HostReplay`, one for each policy."""

    def __init__(
        self, settings: Settings, policies: range, replays: Sequence[HostReplay], agent: Any
    ) -> None:
        self.settings, self.replays, self._agent = settings, replays, agent
        self._policies = np.asarray(policies, np.uint32)
        self._update = jax.jit(jax.vmap(self._improve), donate_argnums=0)

    def _improve(
        self, agent: AgentState, batch: Batch, steps: Array, policy: Array
    ) -> tuple[AgentState, Array, Lesson]:
        # Schedules inside jit: outside it they would cost as much as an update.
        now = self.settings.now(steps, policy, jnp)
        agent, found = self._agent.update(agent, batch, now)
        return agent, found.priority, lesson_of(found, batch, self._agent.reports)

    def learn(
        self,
        agent: AgentState,
        rows: Rows | None,
        cycle: int,
        updates: int,
        steps: np.ndarray,
        after: np.ndarray | None,
    ) -> tuple[AgentState, Lesson | None, Any]:
        if rows is not None:
            self.store(rows)
        lessons: list[Lesson] = []
        evidence, first = None, cycle * self.settings.learns.updates
        for number in range(updates):
            batch = self.draw(first + number)
            if batch is None:
                break
            agent, priority, lesson = self._update(agent, batch, steps, self._policies)
            if self.settings.ranked:
                self.rank(batch.draw, np.asarray(priority) + LEAST)
            # Row ids of the host are 64-bit numbers, which JAX would cut.
            lesson = jax.device_get(lesson)._replace(row=np.asarray(batch.draw.row))
            lessons.append(jax.tree.map(lambda leaf: leaf[:, None], lesson))
            bad = np.flatnonzero(np.asarray(agent.bad))
            if bad.size:
                evidence = jax.tree.map(lambda leaf, p=bad[0]: leaf[p], batch)
                break
        lesson = jax.tree.map(lambda *some: np.concatenate(some, 1), *lessons) if lessons else None
        return agent, lesson, evidence

    def store(self, rows: Rows) -> None:
        """Keep one cycle's rows [time, policies, env]."""
        for policy, replay in enumerate(self.replays):
            replay.add(jax.tree.map(lambda leaf, p=policy: leaf[:, p], rows))

    def draw(self, turn: int) -> Batch | None:
        """A batch [policies, batch] for update `turn`; None: there is nothing to draw from."""
        batches = [replay.sample(turn) for replay in self.replays]
        if len(batches) == 1:
            return jax.tree.map(lambda leaf: leaf[None], batches[0])
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        """New priorities [policies, batch]."""
        for policy, replay in enumerate(self.replays):
            replay.rank(jax.tree.map(lambda leaf, p=policy: leaf[p], draw), priority[policy])

    def cut(self, envs: np.ndarray) -> None:
        for replay in self.replays:
            replay.cut(envs)

    def export(self) -> list[dict[str, np.ndarray]]:
        return [replay.export() for replay in self.replays]

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        for replay, one in zip(self.replays, arrays, strict=True):
            replay.restore(one)
