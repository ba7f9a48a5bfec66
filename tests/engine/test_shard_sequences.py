"""Shards that draw sequences: against the oracle, priorities by start, whole runs, offline too."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scenarios import ENDLESS, PATTERNS, SPEC, Pattern, Stream, to_rows
from sequence_oracle import SequenceModel, check_sequences
from tiny_runs import WORLD, crash_at, settings

from millpond import Lake, Sequence, prioritized
from millpond.agents import Network, QLambdaSettings
from millpond.engine.chunk_dedup import ChunkId
from millpond.engine.provenance import traced_spec
from millpond.engine.shard_store import Chunk, LakeStore, PondStore
from millpond.engine.sharded import LocalShards, importance
from millpond.envs import spec_of
from millpond.envs.hosted import HostedVector
from millpond.metrics import read_metrics
from millpond.rows import FIRST, Draw, Rows
from millpond.sequence import host_sequences
from millpond.train import Run, Settings, train

pytestmark = pytest.mark.usefixtures("compiled_once")

ALONE = dataclasses.replace(WORLD, agents=1)
LENGTH, WIDTH, ACTORS = 4, 2, 2
CROSS = QLambdaSettings(length=LENGTH, batch=8, min_fill=32, capacity=96, update_every=2, updates=2)


@dataclass(frozen=True)
class Stopping(QLambdaSettings):
    """An agent that stops at ends and wants rows before the start, as one with memory would."""

    def learns(self, stack: int) -> Any:
        window = Sequence(self.length, stack, 0.9, end="stop", burn_in=2)
        return dataclasses.replace(super().learns(stack), window=window)


STOP = Stopping(**{f.name: getattr(CROSS, f.name) for f in dataclasses.fields(CROSS)})


def of(learning: QLambdaSettings = CROSS, sampler: Any = None, **changes: Any) -> Settings:
    """Two actors with two envs each."""
    named = dict(sampler="prioritized", sampling=sampler) if sampler else {}
    base = dict(agent="qlambda", learning=learning, mode="sequential", actors=ACTORS, world=ALONE)
    return settings(**base | dict(replay_shards=1) | named | changes)


# --- what a store draws, row by row --------------------------------------------------------------


class Played:
    """A store and the list model, fed with the same streams by actors that are out of step."""

    def __init__(self, settings: Settings, pattern: Pattern, folder: Path, first: int = 0) -> None:
        self.settings, self.window, self.first = settings, settings.window, first
        actors, turns = range(ACTORS), settings.learns.turns
        if settings.replay == "lake":
            self.store: Any = LakeStore(settings, SPEC, actors, range(1), folder, "one")
            ring = 10**9
        else:
            self.store = PondStore(settings, SPEC, actors, range(1))
            ring = settings.replayed.capacity // settings.envs
        envs, chance = ACTORS * WIDTH, random.Random(5)
        self.model = SequenceModel(envs, ring, self.window, settings.ranked)
        self.streams = [Stream(env, pattern, chance) for env in range(envs)]
        self.turns, self.sent = turns, [0] * ACTORS
        self.incarnation = 0

    def play(self, actor: int, cycles: int, replaced: bool = False) -> None:
        """Some cycles of one actor; `replaced`: by its successor, after a cut."""
        envs = range(actor * WIDTH, (actor + 1) * WIDTH)
        if replaced:
            self.incarnation += 1
            for env in envs:
                self.model.cut(env)
                self.streams[env].cut()
        steps = [[self.streams[env].next() for env in envs] for _ in range(cycles * self.turns)]
        for step in steps:
            for env, row in zip(envs, step, strict=True):
                self.model.add(env, row)
        rows = jax.tree.map(lambda leaf: leaf[:, None], to_rows(steps))  # [time, policy, env]
        number = 0 if replaced else 1 + self.sent[actor]
        id_ = ChunkId(actor, self.incarnation, number)
        first = self.first + self.sent[actor]
        self.store.add(Chunk(id_, number, first, cycles, np.zeros(1, np.uint32), rows))
        self.sent[actor] += cycles

    def expected(self) -> dict[tuple[int, int], dict]:
        """The valid starts, by stream and turn as the store numbers them."""
        late = self.first * self.turns if self.settings.replay != "lake" else 0
        found = self.model.transitions().items()
        return {(env, row + late): sequence for (env, row), sequence in found}


STORES = {
    "uniform": {},
    "prioritised": dict(sampler=prioritized(alpha=1.0, beta=1.0)),
    "lake": dict(replay="lake"),
}


@pytest.mark.parametrize("pattern", ["short", "cuts", "everything"])
@pytest.mark.parametrize("learning", [CROSS, STOP], ids=["cross", "stop"])
@pytest.mark.parametrize("store", STORES)
def test_a_store_draws_the_sequences_of_the_oracle(tmp_path, store, learning, pattern):
    if store == "lake":
        learning = dataclasses.replace(learning, capacity=32_768)
    played = Played(of(learning, **STORES[store]), PATTERNS[pattern], tmp_path, first=3)
    for cycles in (3, 1, 4, 2, 5):  # 30 turns, of which a ring keeps 24
        played.play(0, cycles)
        played.play(1, max(1, cycles - 1))
    played.play(1, 2, replaced=True)
    batch = played.store.draw(0, 1_500, (1, 2))
    check_sequences(batch, played.window, played.expected(), every_valid=True)
    assert len(played.expected()) > 10
    played.store.close()


@pytest.mark.parametrize("store", STORES)
def test_where_cuts_leave_nothing_everything_is_masked(tmp_path, store):
    learning = dataclasses.replace(CROSS, capacity=32_768 if store == "lake" else 96)
    played = Played(of(learning, **STORES[store]), Pattern(cut=1.0), tmp_path)
    for actor in range(ACTORS):
        played.play(actor, 8)
    assert not played.expected()
    batch = played.store.draw(0, 3, (1,))
    assert batch.mask.shape == (3, LENGTH)
    assert not batch.mask.any()
    assert played.store.draw(0, 0, (1,)).mask.shape == (0, LENGTH)
    played.store.close()


def test_priorities_of_nothing_change_nothing(tmp_path):
    played = Played(of(sampler=prioritized(alpha=1.0)), ENDLESS, tmp_path)
    batch = played.store.draw(0, 3, (1,))
    assert not batch.mask.any()
    for actor in range(ACTORS):
        played.play(actor, 8)
    before = played.store.masses()
    played.store.rank(0, batch.draw, np.full(3, 1e-6))
    assert played.store.masses() == before > 0


# --- priorities ----------------------------------------------------------------------------------


def test_a_sequence_of_which_nothing_is_there_has_no_weight():
    batch = host_sequences(SPEC, Sequence(3), 4, ranked=True)
    chance = np.array([0.5, 0.25, 0.125, 0.0], np.float32)
    mask = np.array([[True, False, True], [True] * 3, [True, False, False], [False] * 3])
    batch = batch._replace(mask=mask, draw=batch.draw._replace(probability=chance))
    weight = importance(jax.tree.map(lambda leaf: leaf[None], batch)).weight
    assert weight.tolist() == [[0.25, 0.5, 1.0, 0.0]]


def turns_of(first: int, turns: int) -> Rows:
    """Rows of one long episode of every env, whose rewards name env and turn."""
    lead, spec = (turns, 1, ACTORS * WIDTH), traced_spec(of())
    obs = jax.tree.map(lambda field: np.zeros((*lead, *field.shape), field.dtype), spec.obs)
    turn = first + np.arange(turns)
    reward = np.broadcast_to(turn[:, None, None] + 1000 * np.arange(lead[2]), lead)
    flags = np.broadcast_to(FIRST * (turn == 0)[:, None, None], lead).astype(np.uint8)
    extras = {name: np.zeros(lead, field.dtype) for name, field in spec.extras.items()}
    no = np.zeros(lead, bool)
    return Rows(obs, np.zeros(lead, np.int32), reward.astype(np.float32), no, no, flags, extras)


def test_priorities_go_back_to_the_starts_of_sequences(tmp_path):
    """Of two shards; what each start weighs afterwards is worked out here by hand."""
    learning = dataclasses.replace(CROSS, batch=400, capacity=64)
    base = of(learning, prioritized(alpha=1.0, beta=1.0), replay_shards=2, stack=1)
    shards = LocalShards(base, range(1), tmp_path)
    shards._cycle = late = 3  # as after a loss: their first row is that of turn 6
    for cycle in range(late, late + 10):  # 20 turns, of which rings keep the last 16
        shards.store(turns_of(2 * cycle, 2))
    starts = {(env, row) for env in range(4) for row in range(10, 22)}  # the last has all 4 rows

    def wanted(stream: Any, row: Any) -> Any:
        return np.float32(1) + 3 * stream + row % 5

    batch = shards.draw(2)
    assert batch is not None
    stream, row = batch.draw.stream[0], batch.draw.row[0]
    assert set(zip(stream.tolist(), row.tolist(), strict=True)) == starts
    names = 1000 * stream[:, None] + row[:, None] + np.arange(LENGTH)
    np.testing.assert_array_equal(batch.reward[0], names)
    shards.rank(batch.draw, wanted(batch.draw.stream, batch.draw.row))
    total = sum(wanted(*start) for start in starts)
    batch = shards.draw(4)
    assert batch is not None
    chance = wanted(batch.draw.stream, batch.draw.row) / total
    np.testing.assert_allclose(batch.draw.probability, chance, rtol=1e-5)
    np.testing.assert_allclose(batch.weight, chance.min() / chance, rtol=1e-5)
    # Starts of a shard that was lost, and those that are overwritten meanwhile, are left alone.
    gone = Draw(np.zeros((1, 3), np.int32), np.array([[0, 5, 9]]), None)
    shards.rank(gone, np.full((1, 3), 1e6))
    assert sum(shard.store.masses()[0] for shard in shards.shards) == pytest.approx(total)
    shards.close()


# --- whole runs ----------------------------------------------------------------------------------


def small(**changes: Any) -> Settings:
    return of(**dict(network=Network(width=8), steps=240) | changes)


def clean(run: Run) -> int:
    """Sequences' rows that were drawn; nothing that the witness counted is wrong."""
    lines = [one for line in read_metrics(run.metrics, "health") for one in line["learners"]]
    for name in ("border_breaks", "stack_mismatches", "returns_wrong"):
        assert not any(line[name] for line in lines), name
    return sum(line["sampled"] for line in lines)


def test_a_sharded_run_resumes_bit_by_bit(tmp_path):
    base = small(sampler=prioritized(), actors=4, replay_shards=3)
    whole, broken = (Run.create(tmp_path / name, base) for name in ("whole", "broken"))
    digest = train(whole)
    assert clean(whole) > 50
    health = read_metrics(whole.metrics, "health")
    assert sum(line["learners"][0]["returns_checked"] for line in health) > 0
    crash_at(broken, 120)
    assert train(Run.open(broken.path)) == digest


def test_a_sharded_run_over_lakes_trains_on_what_was_acted_on(tmp_path):
    learning = dataclasses.replace(CROSS, capacity=32_768)
    run = Run.create(tmp_path / "run", small(learning=learning, replay="lake", replay_shards=2))
    train(run)
    assert clean(run) > 50


def test_offline_it_learns_from_a_lake_and_resumes_exactly(tmp_path):
    lake, rng = Lake.create(tmp_path / "lake", spec_of(ALONE), 10_000), np.random.default_rng(0)
    envs = HostedVector(ALONE, 4, seed=1)
    with lake.writer("play", 4) as writer:
        for _ in range(60):
            rows = envs.step(rng.integers(0, 4, (1, 4)))
            writer.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows))
    base = small(mode="auto", actors=1, replay_shards=0, from_lake=str(tmp_path / "lake"))
    base = dataclasses.replace(base, steps=80, log_every=20, eval_every=80, resume_every=20)
    whole, broken = (Run.create(tmp_path / name, base) for name in ("whole", "broken"))
    digest = train(whole)
    assert clean(whole) > 80 * CROSS.batch
    losses = [line["loss"] for line in read_metrics(whole.metrics, "train")]
    assert np.isfinite(losses).all()
    crash_at(broken, 60)
    assert train(Run.open(broken.path)) == digest
