"""What runs in Ray's processes other than actors and learners: a run's shards and weights."""

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
from ..engine.shard import Collected, Shard
from ..engine.shard_store import Chunk
from ..engine.sharded import shard_folder
from ..engine.trace import digest
from .ray import import_ray

_ORDER_S = 1.0  # how long a chunk waits for the one before it


class ShardHost(Shard):
    """A `Shard` that many call at the same time. One thread serves them all, so nothing is torn."""

    def __init__(self, settings: dict[str, Any], index: int, folder: str, session: str) -> None:
        of = Settings.from_json(settings)
        path = shard_folder(Path(folder), index)
        super().__init__(of, index, range(of.policies), path, session)
        self._reached = [0] * len(of.groups)  # by each learner
        self._changed = asyncio.Condition()

    async def deliver(self, chunk: Chunk) -> Judgement:
        """Store a chunk; the answer comes when every learner has taken it. That is the credit."""
        judge = self.ledger.judge
        with contextlib.suppress(asyncio.TimeoutError):
            # Ray keeps no order among calls: an older chunk may be a moment behind this one.
            async with self._changed, asyncio.timeout(_ORDER_S):
                await self._changed.wait_for(lambda: judge(chunk.id, chunk.oldest) != "gap")
        judgement = self.append(chunk)
        if judgement in ("new", "known"):
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: min(self._reached) >= chunk.stop)
        return judgement

    async def fetch(self, learner: int, first: int, most: int, wait_s: float) -> Collected:
        """At most that many cycles from `first` on, of which there is none if none came in time."""
        await self.took(learner, first)
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed, asyncio.timeout(wait_s):
                await self._changed.wait_for(lambda: self.available(first) > 0)
        return self.collect(first, most, self.settings.groups[learner])

    async def took(self, learner: int, first: int) -> None:
        """A learner has all rows before `first`."""
        if first > self._reached[learner]:
            self._reached[learner] = first
            self.take(min(self._reached))
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def began(self, cycle: int) -> None:
        super().began(cycle)
        self._reached = [cycle] * len(self._reached)

    def go_on(self, policies: range, cycle: int, arrays: list[Mapping[str, np.ndarray]]) -> None:
        """All continue from `cycle`, a learner's policies from what was exported."""
        self.began(cycle)
        if arrays:
            self.restore(policies, arrays)

    def beat(self) -> dict[str, Any]:
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
