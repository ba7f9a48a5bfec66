"""A run's replay on a cluster: a `ShardHost` is one part, `RemoteShards` are all of one learner.

A shard may be lost and come back; a call then raises `Lost` and may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.checkpoint import Arrays
from ..engine.chunk_dedup import Judgement
from ..engine.host_replay import Replay
from ..engine.settings import Settings
from ..engine.shard import Collected, Shard
from ..engine.shard_store import Chunk
from ..engine.sharded import actors_in, apart, shard_folder, together
from ..engine.team import CALL_S
from ..rows import Draw, Rows
from ..sequence import Sample
from .ray import Lost, import_ray, result_of, until_back

_ORDER_S = 1.0  # how long a chunk waits for the one before it
_WAIT_S = 0.5  # how long a shard keeps a learner waiting before it answers that it has nothing


class ShardHost(Shard):
    """A `Shard` that many call concurrently; one thread serves them all, so no lock is needed."""

    def __init__(self, settings: dict[str, Any], index: int, folder: str, session: str) -> None:
        of = Settings.from_json(settings)
        path = shard_folder(Path(folder), index)
        super().__init__(of, index, range(of.policies), path, session)
        self._reached = [0] * len(of.groups)  # cycles that each learner has taken
        self._changed = asyncio.Condition()

    async def deliver(self, chunk: Chunk) -> Judgement:
        """Store a chunk, and answer when every learner has taken it: that answer is the credit."""
        judge = self.ledger.judge
        with contextlib.suppress(asyncio.TimeoutError):
            # Ray does not keep calls in order: an older chunk may be a moment behind this one.
            async with self._changed, asyncio.timeout(_ORDER_S):
                await self._changed.wait_for(lambda: judge(chunk.id, chunk.oldest) != "gap")
        judgement = self.append(chunk)
        if judgement in ("new", "known"):
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: min(self._reached) >= chunk.stop)
        return judgement

    async def fetch(self, learner: int, first: int, most: int, wait_s: float) -> Collected:
        """At most `most` cycles from `first` on; none if none arrived within `wait_s` seconds."""
        await self.took(learner, first)
        with contextlib.suppress(asyncio.TimeoutError):
            async with self._changed, asyncio.timeout(wait_s):
                await self._changed.wait_for(lambda: self.available(first) > 0)
        return self.collect(first, most, self.settings.groups[learner])

    async def took(self, learner: int, first: int) -> None:
        """A learner has all rows before cycle `first`."""
        if first > self._reached[learner]:
            self._reached[learner] = first
            self.take(min(self._reached))
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def restart_at(self, cycle: int) -> None:
        super().restart_at(cycle)
        self._reached = [cycle] * len(self._reached)

    def restore_at(self, policies: range, cycle: int, arrays: list[Arrays]) -> None:
        """Continue at `cycle`, with the exported stores of a learner's policies."""
        self.restart_at(cycle)
        if arrays:
            self.restore(policies, arrays)

    def beat(self) -> dict[str, Any]:
        """An answer shows that it does not hang."""
        return {"pid": os.getpid()}


class RemoteShards(Replay):
    """One learner's replay in shards elsewhere, which are all asked at the same time.

    Actors send their rows there; `Packs` collects what a learner needs of them and draws its
    batches. `cut`, `export` and `restore` wait for a lost shard to come back; priorities do not.
    """

    def __init__(self, settings: Settings, learner: int, shards: Sequence[Any]) -> None:
        self._ray, self._shards = import_ray(), shards
        self._learner, self._policies = learner, settings.groups[learner]
        self.settings, self.cycle = settings, 0
        self.stores = [(slice(None), self.store)]
        self.batches: dict[int, Sample] = {}  # that came with a pack, by the number of the update
        # Time for a shard that hangs to be ended for it and to come back.
        self._patience = 2 * settings.crew.start_s
        self._unanswered: list[tuple[int, Any]] = []  # calls that nobody waits for

    # --- what `Packs` fetches --------------------------------------------------------------------

    def collect(self, first: int, most: int, timeout: float) -> list[Collected] | None:
        """At most `most` cycles from `first` on of every shard; None if one has none yet."""
        self._check_unanswered()
        wait_s = min(timeout, _WAIT_S)
        asked = [shard.fetch.remote(self._learner, first, most, wait_s) for shard in self._shards]
        found: list[Collected] = self._results(asked)
        return found if all(one.cycles for one in found) else None

    def took(self, first: int) -> None:
        """All rows before `first` have come; the next `collect` says so too."""
        for place, shard in enumerate(self._shards):
            self._unanswered.append((place, shard.took.remote(self._learner, first)))

    def draw_from_each(self, counts: np.ndarray, turn: int) -> list[Sample]:
        """Each shard's share of the batches: counts int64[updates, shards, policies]."""
        asked = [
            shard.draw.remote(self._policies, counts[:, place], turn)
            for place, shard in enumerate(self._shards)
        ]
        return self._results(asked)

    # --- what a learner does with its replay -----------------------------------------------------

    def store(self, rows: Rows) -> None:
        """One cycle's rows, which the shards have already."""
        self.cycle += 1

    def draw(self, turn: int) -> Sample | None:
        return self.batches.pop(turn, None)

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        with contextlib.suppress(Lost):  # rows and priorities went with the shard
            self._check_unanswered()
            for place, shard in enumerate(self._shards):
                self._unanswered.append((place, shard.rank.remote(self._policies, draw, priority)))

    def cut(self, envs: np.ndarray) -> None:
        for actor in actors_in(self.settings, envs):
            until_back(functools.partial(self._cut, actor), self._patience)

    def _cut(self, actor: int) -> None:
        place = actor % len(self._shards)
        self._result(place, self._shards[place].cut.remote(actor, self.cycle))

    def export(self) -> list[Arrays]:
        def ask() -> list[Any]:
            return self._results([shard.export.remote(self._policies) for shard in self._shards])

        return together(until_back(ask, self._patience), self.cycle)

    def restore(self, arrays: Sequence[Arrays]) -> None:
        self.cycle, parts = apart(arrays, self.settings.shards)
        self.batches = {}

        def ask() -> None:
            pairs = zip(self._shards, parts, strict=True)
            calls = [one.restore_at.remote(self._policies, self.cycle, part) for one, part in pairs]
            self._results(calls)

        until_back(ask, self._patience)

    def _check_unanswered(self) -> None:
        """Raise what a call that nobody waited for raised: at most one round is in flight."""
        before, self._unanswered = self._unanswered, []
        for place, one in before:
            self._result(place, one)

    def _results(self, asked: Sequence[Any]) -> list[Any]:
        return [self._result(place, one) for place, one in enumerate(asked)]

    def _result(self, place: int, asked: Any) -> Any:
        try:
            return result_of(self._ray, asked, CALL_S)
        except Lost as lost:
            raise Lost(f"shard {place}: {lost}") from lost
