"""`HostUpdates`: a learner whose rows are kept on the host: sample -> update -> rank, in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from ..rows import Array, Draw, Rows
from ..sequence import Sample
from .host_replay import HostReplay
from .lake_share import LakeShare, blend
from .over_policies import over_policies
from .settings import Settings
from .trees import joined, part, stacked
from .updates import LEAST, Cycle, Learnt, Lesson, lesson_of

# A policy and what takes its rows [time, env]; or all policies, [time, policies, env], at once.
Stores = Sequence[tuple[int | slice, Callable[[Rows], None]]]


class Replay(Protocol):
    """The replay of a learner's policies: one store for each, or shards."""

    @property
    def stores(self) -> Stores:
        """Where one cycle's rows of all actors go, unless they already are there."""
        ...

    def draw(self, turn: int) -> Sample | None:
        """A batch [policies, batch] for update `turn`; None: there is nothing to draw from."""
        ...

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        """New priorities [policies, batch]."""
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


class HostUpdates:
    """Any `Replay` on the host."""

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


class Replays:
    """A `HostReplay` for each policy."""

    def __init__(self, replays: Sequence[HostReplay]) -> None:
        self.replays = replays
        self.stores: Stores = [(policy, one.add) for policy, one in enumerate(replays)]

    def draw(self, turn: int) -> Sample | None:
        return stacked([replay.sample(turn) for replay in self.replays])

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        for policy, replay in enumerate(self.replays):
            replay.rank(part(draw, policy), priority[policy])

    def cut(self, envs: np.ndarray) -> None:
        for replay in self.replays:
            replay.cut(envs)

    def export(self) -> list[dict[str, np.ndarray]]:
        return [replay.export() for replay in self.replays]

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        for replay, one in zip(self.replays, arrays, strict=True):
            replay.restore(one)
