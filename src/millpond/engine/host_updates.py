"""`HostUpdates`: a learner whose rows are kept on the host: sample -> update -> rank, in Python."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from ..rows import Array
from ..sequence import Sample
from .host_replay import Replay
from .lake_share import LakeShare, blend
from .over_policies import over_policies
from .settings import Settings
from .trees import joined, part
from .updates import LEAST, Cycle, Learnt, Lesson, lesson_of


class HostUpdates:
    """Learns from any `Replay`, and from a `share` of a Lake in every minibatch."""

    def __init__(
        self,
        settings: Settings,
        policies: range,
        replay: Replay,
        agent: Any,
        share: LakeShare | None = None,
    ) -> None:
        self._share = share
        self.settings, self.replay, self._agent = settings, replay, agent
        self._stores = replay.stores
        self.cut, self.export, self.restore = replay.cut, replay.export, replay.restore
        self._policies = np.asarray(policies, np.uint32)
        improve = over_policies(self._improve, (0,) * 5, 0)
        self._update = jax.jit(improve, donate_argnums=0)

    def _improve(
        self, agent: AgentState, batch: Sample, drawn: Any, steps: Array, policy: Array
    ) -> tuple[AgentState, Array, Lesson]:
        # Schedules inside jit: outside it they would cost as much as an update.
        now = self.settings.now(steps, policy, jnp)
        agent, found = self._agent.update(agent, blend(batch, drawn), now)
        priority = found.priority[: batch.mask.shape[0]]  # of what was played
        return agent, priority, lesson_of(found, batch, self._agent.reports)

    def learn(self, agent: AgentState, cycle: Cycle) -> Learnt:
        if cycle.rows is not None:
            for policies, add in self._stores:
                add(part(cycle.rows, np.s_[:, policies]))
        lessons: list[Lesson] = []
        evidence, first = None, cycle.number * self.settings.learns.updates
        for number in range(cycle.updates):
            batch = self.replay.draw(first + number)
            if batch is None:
                break
            drawn = self._share and self._share.draw(self._policies.tolist(), first + number)
            which = cycle.steps, self._policies
            agent, priority, lesson = self._update(agent, batch, drawn, *which)
            if self.settings.ranked:
                self.replay.rank(batch.draw, np.asarray(priority) + LEAST)
            # Row ids of the host are 64-bit numbers, which JAX would cut.
            lesson = jax.device_get(lesson)._replace(row=np.asarray(batch.draw.row))
            lessons.append(part(lesson, np.s_[:, None]))
            bad = np.flatnonzero(np.asarray(agent.bad))
            if bad.size:
                played, other = part((batch, drawn), bad[0])
                evidence = blend(played, other, np)
                break
        return agent, joined(lessons, 1) if lessons else None, evidence
