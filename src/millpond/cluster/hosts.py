"""What runs in Ray's processes: a run's shards, weights, actors and learners."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.chunk_dedup import Judgement
from ..engine.settings import Settings
from ..engine.shard import Collected, Shard, Stood
from ..engine.shard_store import Chunk
from ..engine.sharded import shard_folder
from ..engine.trace import digest
from ..rows import Batch, Draw
from .acting import ActorPart
from .learning import LearnerPart
from .links import RaySink, RaySource, RayWeights
from .ray import import_ray

_ORDER_S = 1.0  # how long a chunk waits for the one before it


class ShardHost:
    """A `Shard` that many call at the same time. One thread serves them all, so nothing is torn."""

    def __init__(self, settings: dict[str, Any], index: int, folder: str, session: str) -> None:
        self.settings = Settings.from_json(settings)
        policies = range(self.settings.policies)
        path = shard_folder(Path(folder), index)
        self.shard = Shard(self.settings, index, policies, path, session)
        self._taken = [0] * len(self.settings.groups)
        self._changed = asyncio.Condition()

    async def append(self, chunk: Chunk) -> Judgement:
        """Store a chunk; the answer comes when every learner has taken it. That is the credit."""
        judge = self.shard.ledger.judge
        with contextlib.suppress(asyncio.TimeoutError):
            # Ray keeps no order among calls: an older chunk may be a moment behind this one.
            async with self._changed, asyncio.timeout(_ORDER_S):
                await self._changed.wait_for(lambda: judge(chunk.id, chunk.oldest) != "gap")
        judgement = self.shard.append(chunk)
        if judgement in ("new", "known"):
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: min(self._taken) >= chunk.stop)
        return judgement

    async def collect(self, learner: int, first: int, most: int, wait_s: float) -> Collected:
        """At most so many cycles from `first` on, of which there is none if none came in time."""
        await self.took(learner, first)
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed, asyncio.timeout(wait_s):
                await self._changed.wait_for(lambda: self.shard.available(first) > 0)
        return self.shard.collect(first, most, self.settings.groups[learner])

    async def took(self, learner: int, first: int) -> None:
        """A learner has all rows before `first`."""
        if first > self._taken[learner]:
            self._taken[learner] = first
            self.shard.take(min(self._taken))
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def draw(self, learner: int, counts: np.ndarray, turn: int) -> Batch:
        """Transitions for a learner's policies."""
        return self.shard.draw(self.settings.groups[learner], counts, turn)

    async def rank(self, learner: int, draw: Draw, errors: np.ndarray) -> None:
        """New priorities of a learner's policies."""
        self.shard.rank(self.settings.groups[learner], draw, errors)

    async def cut(self, actor: int, cycle: int) -> None:
        """An actor goes on anew after `cycle`."""
        self.shard.cut(actor, cycle)

    async def stood(self, actor: int) -> Stood | None:
        """How far an actor's rows go here."""
        return self.shard.stood(actor)

    async def export(self, learner: int) -> list[dict[str, np.ndarray]]:
        """The store of a learner's policies."""
        return self.shard.export(self.settings.groups[learner])

    async def restore(
        self, learner: int, cycle: int, arrays: list[Mapping[str, np.ndarray]]
    ) -> None:
        """Go on from what was exported, at `cycle`."""
        self.shard.began(cycle)
        self._taken = [cycle] * len(self._taken)
        if arrays:
            self.shard.restore(self.settings.groups[learner], arrays)

    async def stats(self) -> dict[str, Any]:
        """What is stored here, and what has come and gone."""
        return self.shard.stats()

    async def beat(self) -> dict[str, Any]:
        """It answers, so it does not hang."""
        return {"pid": os.getpid()}


class WeightsHost:
    """Keeps each learner's newest parameters. Actors of one machine share one copy of them."""

    def __init__(self, learners: int) -> None:
        self._ray = import_ray()
        self._newest: list[tuple[int, Any, int] | None] = [None] * learners

    async def publish(self, learner: int, version: int, params: Any) -> None:
        """Replace a learner's parameters by newer ones."""
        before = self._newest[learner]
        if before is None or version != before[0]:
            # Ours, so that they outlive the learner; a copy, because what came is a view.
            self._newest[learner] = (version, self._ray.put(params), digest(params))

    async def pull(self, have: list[int]) -> list[tuple[int, list[Any], int] | None]:
        """Of every learner version, reference and hash, where they are not those at hand."""
        return [
            (one[0], [one[1]], one[2]) if one is not None and one[0] != mine else None
            for one, mine in zip(self._newest, have, strict=True)
        ]

    async def beat(self) -> dict[str, Any]:
        """It answers, so it does not hang."""
        return {"pid": os.getpid()}


class ActorHost:
    """An `ActorPart`. `run` keeps one thread busy; others answer meanwhile."""

    def __init__(
        self,
        settings: dict[str, Any],
        index: int,
        incarnation: int,
        cycle: int,
        steps: np.ndarray,
        shard: Any,
        weights: Any,
    ) -> None:
        self.part = ActorPart(
            Settings.from_json(settings),
            index,
            incarnation,
            cycle,
            steps,
            RaySink(shard),
            RayWeights(weights),
        )

    def run(self, goal: int) -> tuple[int, int]:
        """Act until a cycle, or until a pause."""
        return self.part.run(goal)

    def pause(self, timeout: float) -> int:
        """Stop after the cycle that is under way."""
        return self.part.pause(timeout)

    def report(self) -> dict[str, np.ndarray]:
        """Sums since the last report."""
        return self.part.report()

    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""
        return self.part.export()

    def restore(self, cycle: int, arrays: Mapping[str, np.ndarray]) -> bool:
        """Go on from an exported state."""
        return self.part.restore(cycle, _own(arrays))

    def beat(self) -> dict[str, Any]:
        """How it gets on."""
        return _beat(self.part)


class LearnerHost:
    """A `LearnerPart`. `run` keeps one thread busy; others answer meanwhile."""

    def __init__(
        self,
        settings: dict[str, Any],
        index: int,
        folder: str,
        shards: list[Any],
        weights: Any,
    ) -> None:
        self.part = LearnerPart(
            Settings.from_json(settings),
            index,
            Path(folder),
            RaySource(index, shards),
            RayWeights(weights),
        )

    def run(self, goal: int) -> tuple[int, list[dict[str, int]]]:
        """Learn until a cycle."""
        return self.part.run(goal)

    def aim(self, goal: int) -> None:
        """Change the goal of a `run` that is under way."""
        self.part.goal = goal

    def reach(self, cycle: int, timeout: float) -> tuple[int, bool]:
        """Wait for a cycle, at most so long: where it is, and whether a policy is bad."""
        return self.part.reach(cycle, timeout), self.part.learner.bad

    def report(self) -> list[dict[str, Any]]:
        """Of each policy its progress."""
        return self.part.report()

    def params(self) -> Any:
        """The parameters, [policies]."""
        return self.part.params

    def batch(self) -> dict[str, np.ndarray]:
        """The batch of the first bad update."""
        return self.part.batch()

    def stood(self, actor: int) -> tuple[int, np.ndarray]:
        """How far an actor's rows have come."""
        return self.part.stood(actor)

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole state of each policy."""
        return self.part.export()

    def restore(self, arrays: list[Mapping[str, np.ndarray]]) -> None:
        """Go on from an exported state."""
        self.part.restore([_own(one) for one in arrays])

    def cut(self, actor: int) -> None:
        """An actor's envs begin anew."""
        self.part.cut(actor)

    def beat(self) -> dict[str, Any]:
        """How it gets on."""
        return _beat(self.part)


def _beat(part: ActorPart | LearnerPart) -> dict[str, Any]:
    watch = part.watch
    return {
        "cycle": part.cycle,
        "beats": watch.beats,
        "waits": watch.doing == "waiting",
        "starting": part.first,
        "spent": watch.spent,
        "pid": os.getpid(),
    }


def _own(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies: what comes from Ray is read-only and pins shared memory."""
    return {name: np.array(array) for name, array in arrays.items()}
