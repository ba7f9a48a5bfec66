"""`Shard`: a part of the replay, separate from the learners, for some of the actors.

Actors append chunks of rows. A learner collects the small columns of all rows (rewards, flags,
provenance) cycle by cycle; observations reach it only in the batches that it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..rows import Draw, Rows
from ..sequence import Sample
from .checkpoint import Arrays
from .chunk_dedup import ChunkDedup, Judgement
from .provenance import traced_spec
from .settings import Settings
from .shard_store import Chunk, LakeStore, PondStore
from .trees import joined, part

_DRAW = 7_919  # so that draws use random numbers of their own


class Collected(NamedTuple):
    """Some cycles of all actors of a shard, without observations and actions."""

    cycles: int
    rows: Rows | None  # [cycles * turns, policies, envs of these actors]
    cuts: list[tuple[int, int]]  # (cycle, actor): the actor began new episodes before it
    masses: np.ndarray  # float64[policies], after these rows or later ones


class ActorProgress(NamedTuple):
    """How far the rows of an actor reach."""

    cycle: int
    steps: np.ndarray  # uint32[policies]


class Shard:
    """`shard.append(chunk)`, which actors may repeat; `shard.collect(...)`, `shard.draw(...)`.

    In a Lake the rows of one `session` continue without a cut, whichever process stores them.
    """

    def __init__(
        self,
        settings: Settings,
        index: int,
        policies: range,
        folder: Path,
        session: str,
    ) -> None:
        self.settings, self.index, self.policies = settings, index, policies
        self.actors = actors_of(settings, index)
        self.turns = settings.learns.turns
        spec = traced_spec(settings)
        self.ledger, self._progress = ChunkDedup(), dict[int, ActorProgress]()
        if settings.replay == "lake":
            folder.mkdir(parents=True, exist_ok=True)
            self.store = LakeStore(settings, spec, self.actors, policies, folder, session)
            self._remember(self.store)
        else:
            self.store = PondStore(settings, spec, self.actors, policies)
        self._pending: dict[int, list[Chunk]] = {actor: [] for actor in self.actors}
        self._taken = 0
        self.counts = {"chunks": 0, "rows": 0, "again": 0, "refused": 0, "drawn": 0}

    def _remember(self, store: LakeStore) -> None:
        """Note what an earlier process of the same session has stored."""
        known: dict[int, tuple[int, int]] = {}
        for actor, note in store.known().items():
            _, incarnation, number = note["id"]
            known[actor] = (incarnation, number + bool(note["whole"]))
            if note["whole"]:
                self._progress[actor] = ActorProgress(
                    note["stop"], np.array(note["steps"], np.uint32)
                )
        self.ledger = ChunkDedup(known)

    def append(self, chunk: Chunk) -> Judgement:
        """Store a copy of a chunk, unless it is stored already."""
        judgement = self.ledger.judge(chunk.id, chunk.oldest)
        if judgement == "new":
            self.store.add(chunk)
            self.ledger.took(chunk.id)
            self._progress[chunk.id.actor] = ActorProgress(chunk.stop, np.array(chunk.steps))
            self.counts["chunks"] += 1
            self.counts["rows"] += chunk.rows.reward.size
        elif judgement == "known":
            self.counts["again"] += 1
        else:
            self.counts["refused"] += 1
            return judgement
        # The learner may not have seen rows that an earlier process stored.
        pieces = self._pending[chunk.id.actor]
        if chunk.stop > self._taken and all(piece.first != chunk.first for piece in pieces):
            pieces.append(chunk._replace(steps=np.array(chunk.steps), rows=narrow(chunk.rows)))
            pieces.sort(key=lambda piece: piece.first)  # an older one may be sent again later
        return judgement

    def available(self, first: int) -> int:
        """Whole cycles from `first` on that every actor here has sent."""
        ends: list[int] = []
        for pieces in self._pending.values():
            end = first
            for piece in pieces:
                if piece.first <= end < piece.stop:
                    end = piece.stop
            ends.append(end)
        return min(ends) - first

    def collect(self, first: int, most: int, policies: range) -> Collected:
        """At most that many cycles from `first` on."""
        number = min(most, self.available(first))
        masses = self.store.masses()[self._local(policies)]
        if number <= 0:
            return Collected(0, None, [], masses)
        parts: list[Rows] = []
        cuts: list[tuple[int, int]] = []
        for actor, pieces in self._pending.items():
            mine: list[Rows] = []
            for piece in pieces:
                low, high = max(first, piece.first), min(first + number, piece.stop)
                if low >= high:
                    continue
                if piece.anew and low == piece.first:
                    cuts.append((low, actor))
                time = slice((low - piece.first) * self.turns, (high - piece.first) * self.turns)
                mine.append(part(piece.rows, time))
            parts.append(joined(mine))
        rows = part(joined(parts, 2), np.s_[:, self._local(policies)])
        return Collected(number, rows, cuts, masses)

    def take(self, cycle: int) -> None:
        """All learners have collected what came before `cycle`."""
        self._taken = max(self._taken, cycle)
        for actor, pieces in self._pending.items():
            self._pending[actor] = [piece for piece in pieces if piece.stop > self._taken]

    def draw(self, policies: range, counts: np.ndarray, turn: int) -> Sample:
        """counts.sum() samples, policy by policy; counts is int64[updates, policies]."""
        parts: list[Sample] = []
        for policy, number in zip(policies, counts.sum(0).tolist(), strict=True):
            local = policy - self.policies.start
            key = (self.settings.seed, _DRAW, self.index, policy, turn)
            parts.append(self.store.draw(local, number, key))
        self.counts["drawn"] += int(counts.sum())
        return joined(parts)

    def rank(self, policies: range, draw: Draw, errors: np.ndarray) -> None:
        """Set priorities [policies, batch]; rows that were not drawn here are ignored."""
        for policy in policies:
            one = part(draw, policy - policies.start)
            error = errors[policy - policies.start]
            self.store.rank(policy - self.policies.start, one, error)

    def cut(self, actor: int, cycle: int | None = None) -> None:
        """An actor begins new episodes after `cycle`; chunks that it sent since then say so."""
        progress = self._progress.get(actor)
        if cycle is None or progress is None or progress.cycle <= cycle:
            self.store.cut(actor)

    def progress(self, actor: int) -> ActorProgress | None:
        """How far an actor's rows reach; None if it has sent none."""
        return self._progress.get(actor)

    def restart_at(self, cycle: int) -> None:
        """Everybody continues at `cycle`; what was in flight is dropped."""
        self._taken, self.ledger, self._progress = cycle, ChunkDedup(), {}
        self._pending = {actor: [] for actor in self.actors}

    def stats(self) -> dict[str, Any]:
        """Rows stored, bytes, and counts since the start."""
        rows, nbytes = self.store.size()
        return {"stored": rows, "bytes": nbytes, **self.counts}

    def export(self, policies: range) -> list[Arrays]:
        """The store of each policy."""
        return [self.store.export(policy - self.policies.start) for policy in policies]

    def restore(self, policies: range, arrays: Sequence[Arrays]) -> None:
        """Continue from exported stores."""
        for policy, one in zip(policies, arrays, strict=True):
            self.store.restore(policy - self.policies.start, one)

    def close(self) -> None:
        self.store.close()

    def _local(self, policies: range) -> slice:
        return slice(policies.start - self.policies.start, policies.stop - self.policies.start)


def actors_of(settings: Settings, shard: int) -> range:
    """The actors whose rows a shard keeps."""
    return range(shard, settings.actors, settings.shards)


def narrow(rows: Rows) -> Rows:
    """A copy of the columns that a learner must see of every row: no observations, no actions.

    (Rows from shared memory are views, which keep all of it alive.)
    """
    extras = {name: rows.extras[name] for name in ("policy_version", "epsilon")}
    return jax.tree.map(np.array, rows._replace(obs=None, action=None, extras=extras))
