"""Replay in shards: `LocalShards`, and what all learners from shards have in common."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from ..rows import Draw, Rows
from ..sequence import Sample
from .checkpoint import Arrays, within
from .chunk_dedup import ChunkId
from .host_replay import Replay
from .settings import Settings
from .shard import Shard
from .shard_store import Chunk
from .trees import joined, part

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
            shard.restart_at(self._cycle)
            shard.restore(self.policies, one)

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def actors_in(settings: Settings, envs: np.ndarray) -> list[int]:
    """The actors to which some of envs bool[env] belong."""
    return np.flatnonzero(envs.reshape(settings.actors, -1).any(1)).tolist()


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


# --- sampling from several shards as if they were one --------------------------------------------


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


def deal(masses: np.ndarray, batch: int, updates: int, key: Sequence[int]) -> np.ndarray | None:
    """int64[updates, places, policies]: rows that each place gives, in proportion to its mass.

    `masses` is float64[places, policies]. Each row is assigned independently, so on average a place
    has exactly its share. `key` seeds it. None if a policy has nothing stored anywhere.
    """
    total = masses.sum(0)
    if not (total > 0).all():
        return None
    counts = np.zeros((updates, *masses.shape), np.int64)
    if len(masses) == 1:
        counts[:] = batch
        return counts
    random = np.random.default_rng(list(key))
    for policy in range(masses.shape[1]):
        share = masses[:, policy] / total[policy]
        counts[:, :, policy] = random.multinomial(batch, share, updates)
    return counts


def assemble(parts: Sequence[Sample], counts: np.ndarray, total: np.ndarray) -> list[Sample]:
    """Batches [policies, batch], one for each update, from what every place gave.

    A place gives its rows policy by policy and, within a policy, update by update. With priorities,
    their `draw.probability` is the mass of the row; here it is divided by the mass of all places.
    """
    updates, places, policies = counts.shape
    size = int(counts[0, :, 0].sum())
    if places == 1:  # views, no copy
        shape = (policies, updates, size)
        whole = jax.tree.map(
            lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]).swapaxes(0, 1), parts[0]
        )
    else:
        order = _order(counts, size)
        whole = part(joined(parts), order)
    mass = whole.draw.probability
    if mass is not None:
        chance = mass / total[:, None].astype(np.float32)
        whole = whole._replace(draw=whole.draw._replace(probability=chance))
    return [part(whole, update) for update in range(updates)]


def _order(counts: np.ndarray, size: int) -> np.ndarray:
    """int64[updates, policies, size]: where each row lies among those of all places."""
    updates, places, policies = counts.shape
    order = np.empty((updates, policies, size), np.int64)
    filled = np.zeros((updates, policies), np.int64)
    begin = 0
    for place in range(places):
        for policy in range(policies):
            for update, number in enumerate(counts[:, place, policy].tolist()):
                at = filled[update, policy]
                order[update, policy, at : at + number] = np.arange(begin, begin + number)
                filled[update, policy] += number
                begin += number
    return order


def importance(batch: Sample) -> Sample:
    """Weights [policies, batch] of samples drawn by priority, relative to a batch's rarest."""
    drawn = batch.mask if batch.mask.ndim == 2 else batch.mask.any(-1)  # of sequences: any row
    mass = np.where(drawn, batch.draw.probability, np.float32(np.finfo(np.float32).max))
    weight = mass.min(-1, keepdims=True) / mass * drawn
    return batch._replace(weight=weight.astype(np.float32))
