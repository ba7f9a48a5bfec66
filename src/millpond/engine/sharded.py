"""Replay in shards: `LocalShards`, and what all learners from shards have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..rows import Draw, Rows
from ..sequence import Sample
from .checkpoint import Arrays, within
from .chunk_dedup import ChunkId
from .host_replay import Replay
from .settings import Settings
from .shard import Shard
from .shard_sampling import assemble, deal, importance
from .shard_store import Chunk
from .trees import part

_DEAL = 104_729  # so that dealing uses other random numbers than drawing


class LocalShards(Replay):
    """All shards in this process: the same as mode ray, without Ray, to compare it with."""

    def __init__(self, settings: Settings, policies: range, folder: Path) -> None:
        self.settings, self.policies = settings, policies
        self.shards = [
            Shard(settings, index, policies, shard_folder(folder, index), secrets.token_hex(8))
            for index in range(settings.shards)
        ]
        self.stores = [(slice(None), self.store)]
        self._cycle = 0
        self._batches: dict[int, Sample] = {}

    def store(self, rows: Rows) -> None:
        width = self.settings.envs // self.settings.actors
        for shard in self.shards:
            for actor in shard.actors:
                mine = part(rows, np.s_[:, :, actor * width : (actor + 1) * width])
                id_ = ChunkId(actor, 0, self._cycle)
                steps = np.zeros(len(self.policies), np.uint32)
                shard.append(Chunk(id_, self._cycle, self._cycle, 1, steps, mine))
            shard.take(self._cycle + 1)
        self._cycle += 1

    def draw(self, turn: int) -> Sample | None:
        if turn not in self._batches:
            updates = self.settings.learns.updates
            masses = np.array([shard.store.masses() for shard in self.shards])

            def ask(counts: np.ndarray) -> list[Sample]:
                return [
                    shard.draw(self.policies, counts[:, place], turn)
                    for place, shard in enumerate(self.shards)
                ]

            found = draw_together(self.settings, self.policies, masses, turn, updates, ask)
            self._batches = {turn + number: batch for number, batch in enumerate(found)}
        return self._batches.pop(turn, None)

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        for shard in self.shards:
            shard.rank(self.policies, draw, priority)

    def cut(self, envs: np.ndarray) -> None:
        for actor in actors_in(self.settings, envs):
            self.shards[actor % len(self.shards)].cut(actor)

    def export(self) -> list[Arrays]:
        return together([shard.export(self.policies) for shard in self.shards], self._cycle)

    def restore(self, arrays: Sequence[Arrays]) -> None:
        self._cycle, parts = apart(arrays, len(self.shards))
        for shard, one in zip(self.shards, parts, strict=True):
            shard.began(self._cycle)
            shard.restore(self.policies, one)

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def actors_in(settings: Settings, envs: np.ndarray) -> list[int]:
    """The actors to which some of envs bool[env] belong."""
    return np.flatnonzero(envs.reshape(settings.actors, -1).any(1)).tolist()


def draw_together(
    settings: Settings,
    policies: range,
    masses: np.ndarray,
    turn: int,
    updates: int,
    ask: Callable[[np.ndarray], list[Sample]],
) -> list[Sample]:
    """Batches [policies, batch] for updates `turn`, `turn + 1`, ...; none if nothing is stored.

    `masses` is float64[shards, policies]; `ask(counts)` has every shard draw its share.
    """
    key = (settings.seed, _DEAL, policies.start, turn)
    counts = deal(masses, settings.replayed.batch, updates, key)
    if counts is None:
        return []
    found = assemble(ask(counts), counts, masses.sum(0))
    return [importance(one) for one in found] if settings.ranked else found


def shard_folder(folder: Path, index: int) -> Path:
    """Where a shard keeps its Lakes."""
    return folder / "lake" / f"shard-{index}"


def together(shards: list[list[Arrays]], cycle: int) -> list[Arrays]:
    """What all shards exported for each policy, under the number of the shard."""
    found: list[Arrays] = []
    for parts in zip(*shards, strict=True):
        named = {f"{i}/{name}": a for i, part in enumerate(parts) for name, a in part.items()}
        found.append({"cycle": np.array(cycle, np.int64), **named})
    return found


def apart(arrays: Sequence[Arrays], shards: int) -> tuple[int, list[list[Arrays]]]:
    """The reverse of `together`: the cycle, and each shard's stores of the policies."""
    parts: list[list[Arrays]] = [
        [within(one, f"{shard}/") for one in arrays] for shard in range(shards)
    ]
    return int(arrays[0]["cycle"]), parts
