"""What a shard keeps its actors' rows in: a HostPond for each actor, or a Lake for all of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import NotEnoughData
from ..lake import Lake, Writer
from ..replay import HostPond
from ..rows import Draw, Rows
from ..sequence import Sample, blank_batch
from ..spec import Spec
from .checkpoint import Arrays, within
from .chunk_dedup import ChunkId
from .host_replay import open_or_create
from .settings import Settings
from .trees import joined, part


class Chunk(NamedTuple):
    """The rows of some cycles of one actor, as it sends them to a shard."""

    id: ChunkId
    oldest: int  # the number of the oldest chunk that the actor still holds
    first: int  # its first cycle
    cycles: int
    steps: np.ndarray  # uint32[policies]: env steps of the actor after it
    rows: Rows  # [cycles * turns, policies, envs of the actor]

    @property
    def stop(self) -> int:
        """The cycle after its last one."""
        return self.first + self.cycles

    @property
    def anew(self) -> bool:
        """Whether it begins an incarnation: its rows do not continue those before it."""
        return self.id.number == 0 and self.id.incarnation > 0


class PondStore:
    """A HostPond for each actor and policy, so actors need not keep step.

    It is sampled as if there were one ring for each policy. Streams are numbered over all actors of
    the run, rows by the turn in which they were acted. Its rows are lost with its process.
    """

    def __init__(self, settings: Settings, spec: Spec, actors: range, policies: range) -> None:
        learns, self.width = settings.replayed, settings.envs // settings.actors
        self.policies, self.turns, ranked = policies, learns.turns, settings.ranked
        self._blank = lambda number: blank_batch(spec, learns.window, number, None, ranked)
        self.rings = {
            actor: [
                HostPond(
                    spec,
                    learns.capacity // settings.envs * self.width,
                    self.width,
                    learns.window,
                    settings.sampling,
                    seed=(settings.seed * 1000 + policy) * 10_000 + actor,
                )
                for policy in policies
            ]
            for actor in actors
        }
        self.base = dict.fromkeys(actors, 0)  # the turn of each ring's first row

    def add(self, chunk: Chunk) -> None:
        """Store a copy of a chunk's rows."""
        rings = self.rings[chunk.id.actor]
        if not rings[0].size:
            self.base[chunk.id.actor] = chunk.first * self.turns
        for policy, ring in enumerate(rings):
            if chunk.anew:
                ring.cut()
            ring.add(part(chunk.rows, np.s_[:, policy]))

    def cut(self, actor: int) -> None:
        """An actor's next rows do not continue its newest ones."""
        for ring in self.rings[actor]:
            ring.cut()

    def masses(self) -> np.ndarray:
        """float64[policies]: the valid starts or, with priorities, their sum."""
        return np.array([[r.mass for r in rings] for rings in self.rings.values()]).sum(0)

    def draw(self, policy: int, number: int, key: Sequence[int]) -> Sample:
        """`number` samples; with priorities, `draw.probability` is the mass of each."""
        actors = list(self.rings)
        if not number:
            return self._blank(0)  # all of the batch was assigned to other shards
        if len(actors) == 1:
            return self._from(actors[0], policy, number)
        masses = np.array([self.rings[actor][policy].mass for actor in actors])
        random = np.random.default_rng(list(key))
        total = masses.sum()  # 0 where cuts have come since the masses were asked for
        which = random.choice(len(actors), number, p=masses / total if total else None)
        parts = [
            self._from(actor, policy, count)
            for actor, count in zip(actors, np.bincount(which, None, len(actors)), strict=True)
            if count
        ]
        # A row's place in the batch must not tell its actor: several updates share one draw.
        back = np.empty(number, np.int64)
        back[np.argsort(which, kind="stable")] = np.arange(number)
        return part(joined(parts), back)

    def _from(self, actor: int, policy: int, number: int) -> Sample:
        ring = self.rings[actor][policy]
        mass = ring.mass
        try:
            batch = ring.sample(int(number))
        except NotEnoughData:  # young, and cut: it has no valid start
            batch = _masked(self._blank(int(number)))
        stream, row, chance = batch.draw
        stream += actor * self.width
        row += self.base[actor]
        if chance is not None:
            chance *= mass
        return batch

    def rank(self, policy: int, draw: Draw, errors: np.ndarray) -> None:
        """New priorities."""
        actor_of = draw.stream // self.width
        for actor, rings in self.rings.items():
            mine = actor_of == actor
            if mine.any():
                stream, row = draw.stream[mine] - actor * self.width, draw.ids()[mine]
                known = row >= self.base[actor]  # others belong to a shard that was lost
                here = Draw(stream[known], row[known] - self.base[actor], None)
                rings[policy].update_priorities(here, errors[mine][known])

    def export(self, policy: int) -> Arrays:
        """The state of a policy's rings."""
        found: dict[str, np.ndarray] = {}
        for actor, rings in self.rings.items():
            found |= {f"{actor}/{name}": a for name, a in rings[policy].export().items()}
            found[f"{actor}/base"] = np.array(self.base[actor], np.int64)
        return found

    def restore(self, policy: int, arrays: Arrays) -> None:
        """Continue from an exported state."""
        for actor, rings in self.rings.items():
            mine = within(arrays, f"{actor}/")
            self.base[actor] = int(mine.pop("base"))
            rings[policy].restore(mine)

    def size(self) -> tuple[int, int]:
        """Rows stored, and their bytes."""
        rings = [ring for rings in self.rings.values() for ring in rings]
        return sum(ring.size for ring in rings), sum(ring.nbytes for ring in rings)

    def close(self) -> None:
        pass


class LakeStore:
    """A Lake for each policy, with a writer group for each actor. It outlives its process.

    Before a chunk is written, a note next to the Lake records which one it is and where its rows
    will end, so that the next process knows whether all of it, or a part, was stored.
    """

    def __init__(
        self,
        settings: Settings,
        spec: Spec,
        actors: range,
        policies: range,
        folder: Path,
        session: str,
    ) -> None:
        self.settings, self.folder, self.session = settings, folder, session
        self._blank = lambda number: blank_batch(spec, settings.window, number)
        self._stack = contextlib.ExitStack()
        width = settings.envs // settings.actors
        self._least = len(actors) * width * (settings.window.n_step + 1)
        notes = {actor: self._read_note(actor) for actor in actors}
        capacity = settings.replayed.capacity // settings.shards
        self.lakes: list[Lake] = []
        self.writers: dict[int, list[Writer]] = {actor: [] for actor in actors}
        for policy in policies:
            path = folder / f"policy-{policy}"
            lake = open_or_create(path, spec, capacity, len(actors))
            self.lakes.append(lake)
            for actor in actors:
                # Within a session rows continue without a cut, even after a new process started.
                writer = lake.writer(f"actor-{actor}", width, continues=bool(notes[actor]))
                self.writers[actor].append(self._stack.enter_context(writer))
        self.notes = {actor: note for actor, note in notes.items() if note}

    def _note_path(self, actor: int) -> Path:
        return self.folder / f"actor-{actor}.json"

    def _read_note(self, actor: int) -> dict[str, Any]:
        path = self._note_path(actor)
        note = json.loads(path.read_text(encoding="ascii")) if path.exists() else {}
        return note if note.get("session") == self.session else {}

    def known(self) -> dict[int, dict[str, Any]]:
        """Each actor's newest chunk of this session, and whether it is stored whole."""
        return {
            actor: {**note, "whole": all((w.next_row >= note["end"]).all() for w in writers)}
            for actor, writers in self.writers.items()
            if (note := self.notes.get(actor))
        }

    def add(self, chunk: Chunk) -> None:
        actor, time = chunk.id.actor, len(chunk.rows.reward)
        writers = self.writers[actor]
        note = self.notes.get(actor)
        same = note is not None and tuple(note["id"]) == tuple(chunk.id)
        if note is None or not same:
            note = {
                "session": self.session,
                "id": list(chunk.id),
                "stop": chunk.stop,
                "steps": chunk.steps.tolist(),
                "end": int(writers[0].next_row[0]) + time,
            }
            draft = self._note_path(actor).with_suffix(".tmp")
            draft.write_text(json.dumps(note), encoding="ascii")
            os.replace(draft, self._note_path(actor))
            self.notes[actor] = note
        for policy, writer in enumerate(writers):
            rows = part(chunk.rows, np.s_[:, policy])
            there = time - (note["end"] - writer.next_row)  # rows already stored, by stream
            if chunk.anew and not there.any():
                writer.cut()
            if (there == there[0]).all():
                writer.append(part(rows, slice(int(there[0]), None)))
            else:
                for env, begin in enumerate(there.tolist()):
                    one = part(rows, np.s_[begin:, env])
                    writer.append(one, env)
            writer.commit()
            self.lakes[policy].refresh()

    def cut(self, actor: int) -> None:
        for writer in self.writers[actor]:
            writer.cut()

    def masses(self) -> np.ndarray:
        sizes = [len(lake) for lake in self.lakes]
        return np.array([float(size) if size > self._least else 0.0 for size in sizes])

    def draw(self, policy: int, number: int, key: Sequence[int]) -> Sample:
        if not number:
            return self._blank(0)
        settings, lake = self.settings, self.lakes[policy]
        random = np.random.default_rng(list(key))
        try:
            return lake.sample(random, number, settings.window, settings.sampling)
        except NotEnoughData:  # no stretch between two cuts is long enough
            return _masked(self._blank(number))

    def rank(self, policy: int, draw: Draw, errors: np.ndarray) -> None:
        raise AssertionError("Settings refuses priorities in a Lake")

    def export(self, policy: int) -> Arrays:
        for writers in self.writers.values():
            writers[policy].commit(sync=True)
        return {}

    def restore(self, policy: int, arrays: Arrays) -> None:
        """A Lake is not wound back: the rows of another session follow after a cut."""

    def size(self) -> tuple[int, int]:
        stats = [lake.stats() for lake in self.lakes]
        return sum(one.rows for one in stats), sum(one.bytes_on_disk for one in stats)

    def close(self) -> None:
        self._stack.close()


def _masked(batch: Sample) -> Sample:
    """A batch of nothing. Its row is -1, so priorities that come back for it are ignored."""
    batch = jax.tree.map(np.zeros_like, batch)
    batch.draw.row.fill(-1)
    return batch
