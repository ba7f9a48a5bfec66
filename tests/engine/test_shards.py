"""Shards of the replay: every chunk once and in order, draws in proportion, no shared memory."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from tiny_runs import WORLD, crash_at, dqn, settings

from millpond import prioritized
from millpond.cli.main import main
from millpond.cluster.learner import RayLearner
from millpond.cluster.outbox import Outbox
from millpond.cluster.packs import Packs
from millpond.cluster.ray import Lost, import_ray
from millpond.doctor.actor_checks import lag_bound
from millpond.engine.chunk_dedup import ChunkDedup, ChunkId
from millpond.engine.provenance import EXTRAS, traced_spec
from millpond.engine.shard import Shard, actors_of, narrow
from millpond.engine.shard_store import Chunk
from millpond.engine.sharded import assemble, deal, importance
from millpond.engine.supervised_crew import SupervisedCrew
from millpond.engine.team import Member, Server, StartPoint
from millpond.errors import BadConfig, ChannelClosed
from millpond.metrics import read_metrics
from millpond.rows import FIRST, Rows, host_batch
from millpond.train import Run, Settings, train

pytestmark = pytest.mark.usefixtures("compiled_once")

BASE = settings(mode="sequential", actors=2, replay_shards=1, world=replace(WORLD, agents=1))
LAKE = dqn(replace(BASE, replay="lake"), capacity=32_768)
TURNS, WIDTH = BASE.learns.turns, BASE.envs // BASE.actors


def rows(actor: int, first: int, cycles: int, begins: bool) -> Rows:
    """Rewards tell actor and turn, so that every row can be known again."""
    time, spec = cycles * TURNS, traced_spec(BASE)
    lead = (time, 1, WIDTH)
    obs = jax.tree.map(lambda field: np.zeros((*lead, *field.shape), field.dtype), spec.obs)
    turn = (first * TURNS + np.arange(time, dtype=np.float32))[:, None, None]
    reward = np.broadcast_to(actor * 1000 + turn, lead).astype(np.float32)
    flags = np.zeros(lead, np.uint8)
    if begins:
        flags[0] = FIRST
    extras = {name: np.zeros(lead, field.dtype) for name, field in EXTRAS.items()}
    no = np.zeros(lead, bool)
    return Rows(obs, np.zeros(lead, np.int32), reward, no, no, flags, extras)


def chunk(actor: int, number: int, cycles: int = 1, incarnation: int = 0, first=None) -> Chunk:
    first = number * cycles if first is None else first
    id_ = ChunkId(actor, incarnation, number)
    steps = np.array([(first + cycles) * TURNS * WIDTH], np.uint32)
    return Chunk(id_, number, first, cycles, steps, rows(actor, first, cycles, number == 0))


def make_shard(of: Settings, path: Path, session: str = "one") -> Shard:
    return Shard(of, 0, range(1), path, session)


# --- the ledger ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)), max_size=60))
def test_a_ledger_takes_every_chunk_once_and_in_order(deliveries):
    ledger, taken = ChunkDedup(), []
    for delivery in deliveries:
        id_ = ChunkId(*delivery)
        if ledger.judge(id_, oldest=0) == "new":
            ledger.took(id_)
            taken.append(id_)
            assert ledger.judge(id_, oldest=0) == "known"
    assert len(set(taken)) == len(taken)
    for actor in range(3):
        mine = [id_ for id_ in taken if id_.actor == actor]
        assert mine == sorted(mine)  # an incarnation never comes back
        for before, after in zip(mine, mine[1:], strict=False):
            follows = (before.incarnation, before.number + 1)
            assert (after.incarnation, after.number) in (follows, (after.incarnation, 0))


def test_a_new_ledger_begins_with_the_oldest_chunk_that_is_held():
    ledger = ChunkDedup()
    assert ledger.judge(ChunkId(0, 0, 8), oldest=7) == "gap"
    assert ledger.judge(ChunkId(0, 0, 7), oldest=7) == "new"
    ledger.took(ChunkId(0, 0, 7))
    assert ledger.judge(ChunkId(0, 0, 8), oldest=7) == "new"
    ledger.took(ChunkId(0, 1, 0))
    assert ledger.judge(ChunkId(0, 0, 8), oldest=8) == "replaced"


# --- from outbox to shard, through all that can go wrong ----------------------------------------


class FaultySink:
    """A shard that may die before or after it stored a chunk, and answers late."""

    def __init__(self, make, faults) -> None:
        self.make, self.faults = make, deque(faults)
        self.shard, self.life, self.taken = make(), 0, 0
        self.stored: list[tuple[ChunkId, int]] = []

    def append(self, chunk):
        fault = self.faults.popleft() if self.faults else None
        if fault == "before":
            self.die()
            return None
        life, judgement = self.life, self.shard.append(chunk)
        if judgement == "new":
            self.stored.append((chunk.id, life))
        if fault == "twice":
            assert self.shard.append(chunk) in ("known", "gap", "replaced")
        if fault == "after":
            self.die()
        return life, judgement, chunk.stop

    def die(self):
        self.shard.close()
        self.shard, self.life = self.make(), self.life + 1
        self.shard.take(self.taken)

    def outcome(self, ticket, timeout):
        if ticket is None or ticket[0] != self.life:
            raise Lost("died")
        _, judgement, stop = ticket
        return judgement if judgement == "gap" or self.taken >= stop else None


def ship(sink: FaultySink, cycles: int, collect_every: int) -> list[float]:
    """One actor sends all its cycles; a learner collects. What the learner saw, turn by turn."""
    outbox, seen = Outbox(sink, most=3, patience=60), []
    number = 0

    def collect() -> None:
        found = sink.shard.collect(sink.taken, 2, range(1))
        if found.rows is not None:
            seen.extend(found.rows.reward[:, 0, 0].tolist())
            sink.taken += found.cycles
            sink.shard.take(sink.taken)

    for _ in range(10_000):
        if number == cycles and outbox.empty:
            return seen
        if number < cycles and not outbox.full:
            made = chunk(0, number)
            outbox.put(made._replace(oldest=outbox.oldest(number)))
            number += 1
        if number % collect_every == 0 or outbox.full or number == cycles:
            collect()
        outbox.tend(0.0)
    raise AssertionError(f"stuck after {len(seen)} turns")


FAULTS = st.lists(st.sampled_from([None, None, "before", "after", "twice"]), max_size=40)
ALONE = replace(BASE, actors=1, envs=WIDTH)


@given(FAULTS, st.integers(1, 3))
def test_whatever_dies_the_learner_sees_every_row_once(tmp_path_factory, faults, every):
    def make() -> Shard:
        return make_shard(ALONE, tmp_path_factory.mktemp("shard"))

    sink = FaultySink(make, faults)
    assert ship(sink, 20, every) == list(range(20 * TURNS))
    for life in range(sink.life + 1):  # within one life nothing is stored twice
        ids = [id_ for id_, at in sink.stored if at == life]
        assert len(set(ids)) == len(ids)


@bounded(max_examples=25)
@given(FAULTS, st.integers(1, 3))
def test_a_lake_comes_back_with_its_rows_and_none_twice(tmp_path_factory, faults, every):
    path = tmp_path_factory.mktemp("shard")
    of = dqn(replace(ALONE, replay="lake"), capacity=16_384)
    sink = FaultySink(lambda: make_shard(of, path), faults)
    assert ship(sink, 12, every) == list(range(12 * TURNS))
    lake = sink.shard.store.lakes[0]
    lake.refresh()
    for stream in lake.streams:
        found = lake.read(stream.number, 0, stream.stop)
        assert found.reward.tolist() == list(range(12 * TURNS))
        assert not (found.flags & ~np.uint8(FIRST)).any()  # no cut: the actor lived on
    assert sink.shard.progress(0).cycle == 12
    sink.shard.close()


def test_a_lake_of_another_session_goes_on_after_a_cut(tmp_path):
    for session in ("one", "two"):
        shard = make_shard(LAKE, tmp_path, session)
        for actor in range(2):
            assert shard.append(chunk(actor, 0)) == "new"
        shard.close()
    shard = make_shard(LAKE, tmp_path, "two")
    assert shard.append(chunk(0, 0)) == "known"
    assert len(shard.store.lakes[0]) == 2 * 2 * TURNS * WIDTH
    shard.close()


def test_half_a_chunk_is_completed(tmp_path):
    """Killed between the commits of two policies, or of two segments."""
    of = replace(LAKE, world=WORLD)
    shard = Shard(of, 0, range(2), tmp_path, "one")
    whole = chunk(0, 0)
    both = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], 1), whole.rows)
    whole = whole._replace(rows=both, steps=np.zeros(2, np.uint32))
    commit = shard.store.writers[0][1].append
    shard.store.writers[0][1].append = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        shard.append(whole)
    shard.store.writers[0][1].append = commit
    shard.close()
    shard = Shard(of, 0, range(2), tmp_path, "one")
    assert shard.append(whole) == "new"
    assert [len(lake) for lake in shard.store.lakes] == [TURNS * WIDTH] * 2
    shard.close()


def test_a_shard_that_stays_away_is_told(tmp_path):
    class Away:
        append = staticmethod(lambda chunk: None)

        def outcome(self, ticket, timeout):
            raise Lost("away")

    outbox = Outbox(Away(), most=2, patience=0.0)
    outbox.put(chunk(0, 0))
    outbox.tend(0.0)
    with pytest.raises(ChannelClosed, match="has been away"):
        outbox.tend(0.0)


# --- what is collected and drawn ----------------------------------------------------------------


def test_collecting_waits_for_the_slowest_actor_and_tells_cuts(tmp_path):
    shard = make_shard(BASE, tmp_path)
    for number in range(2):
        shard.append(chunk(0, number))
    assert shard.collect(0, 4, range(1)).cycles == 0
    shard.append(chunk(1, 0))
    shard.append(chunk(1, 0, incarnation=1, first=1))
    found = shard.collect(0, 4, range(1))
    assert found.cycles == 2
    assert found.cuts == [(1, 1)]
    assert found.rows.reward.shape == (2 * TURNS, 1, 2 * WIDTH)
    assert found.rows.reward[:, 0, 0].tolist() == list(range(4))
    assert found.rows.reward[:, 0, WIDTH].tolist() == [1000 + turn for turn in range(4)]
    assert shard.append(chunk(1, 1)) == "replaced"
    shard.take(2)
    assert shard.available(2) == 0


@pytest.mark.parametrize("of", [BASE, LAKE], ids=["host", "lake"])
def test_what_is_stored_shares_no_memory_with_what_came(tmp_path, of):
    shard = make_shard(of, tmp_path)
    for number in range(6):
        for actor in range(2):
            came = chunk(actor, number)
            for leaf in jax.tree.leaves(came.rows):
                leaf.flags.writeable = False  # as Ray hands them out
            shard.append(came)
            for leaf in jax.tree.leaves(came.rows):
                leaf.flags.writeable = True
                leaf[...] = 0 if leaf.dtype == bool else 9
    assert 9 not in shard.collect(0, 6, range(1)).rows.reward[:, 0, 0].tolist()[:8]
    batch = shard.draw(range(1), np.array([[64]]), 0)
    assert batch.mask.all()
    first = (batch.draw.stream >= WIDTH) * 1000 + batch.draw.row
    gamma = np.float32(of.learning.gamma)
    assert np.allclose(batch.reward, first + gamma * (first + 1))
    kept = narrow(came.rows)
    assert kept.obs is None
    assert not np.shares_memory(kept.reward, came.rows.reward)
    shard.close()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 40), st.integers(1, 4))
def test_dealing_gives_every_batch_its_size(masses, batch, updates):
    table = np.array(masses, np.float64)[:, None]
    counts = deal(table, batch, updates, (1, 2))
    if not table.any():
        assert counts is None
        return
    assert (counts.sum(1) == batch).all()
    assert not counts[:, table[:, 0] == 0].any()
    assert (counts == deal(table, batch, updates, (1, 2))).all()


def test_shards_are_drawn_in_proportion_to_their_mass():
    counts = deal(np.array([[1.0], [3.0], [6.0]]), 100, 400, (0,))
    share = counts.sum((0, 2)) / counts.sum()
    assert np.allclose(share, [0.1, 0.3, 0.6], atol=0.01)


def test_within_a_shard_every_actor_has_its_share_of_every_update(tmp_path):
    shard = make_shard(BASE, tmp_path)
    for number in range(4):
        for actor in range(2):
            shard.append(chunk(actor, number))
    counts = np.full((200, 1), 8)
    batch = shard.draw(range(1), counts, 0)
    actor = (batch.draw.stream // WIDTH).reshape(200, 8)
    assert 0.45 < actor.mean() < 0.55
    assert actor[:, 0].mean() == pytest.approx(actor[:, -1].mean(), abs=0.15)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
def test_assembled_batches_hold_what_each_place_gave(places, policies, updates, size):
    masses = np.ones((places, policies))
    counts = deal(masses, size, updates, (3,))
    template = make_batch(0)
    parts, wanted = [], {}
    for place in range(places):
        marks = []
        for policy in range(policies):
            for update in range(updates):
                number = int(counts[update, place, policy])
                here = [place * 100 + policy * 10 + update] * number
                marks += here
                wanted.setdefault((update, policy), []).extend(here)
        parts.append(make_batch(len(marks))._replace(reward=np.array(marks, np.float32)))
    found = assemble(parts, counts, masses.sum(0))
    assert len(found) == updates
    for (update, policy), marks in wanted.items():
        assert found[update].reward[policy].tolist() == marks
    assert template.reward.shape == (0,)


def make_batch(number: int):
    batch = host_batch(traced_spec(BASE), 1, number)
    return jax.tree.map(np.zeros_like, batch)


def test_the_rarest_row_of_a_batch_has_weight_one():
    batch = jax.tree.map(lambda leaf: leaf[None], make_batch(4))
    chance = np.array([[0.5, 0.25, 0.125, 0.0]], np.float32)
    batch = batch._replace(
        mask=np.array([[True, True, True, False]]), draw=batch.draw._replace(probability=chance)
    )
    assert importance(batch).weight.tolist() == [[0.25, 0.5, 1.0, 0.0]]


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "stratified", "recent"])
@pytest.mark.parametrize("of", [BASE, ALONE], ids=["2 actors", "1 actor"])
def test_a_shard_may_be_dealt_nothing(tmp_path, of, sampler):
    shard = make_shard(dqn(of, sampler=sampler), tmp_path)
    assert shard.draw(range(1), np.array([[0]]), 0).reward.shape == (0,)
    for number in range(4):
        for actor in shard.actors:
            shard.append(chunk(actor, number))
    batch = shard.draw(range(1), np.array([[0], [3], [0]]), 0)
    assert batch.reward.shape == (3,)
    assert shard.draw(range(1), np.array([[0], [0]]), 3).reward.shape == (0,)


def test_priorities_find_their_shard_and_their_row(tmp_path):
    of = dataclasses.replace(BASE, sampler="prioritized", sampling=prioritized(1.0, beta=1.0))
    shard = make_shard(of, tmp_path)
    for number in range(4):
        for actor in range(2):
            shard.append(chunk(actor, number))
    batch = shard.draw(range(1), np.array([[64]]), 0)
    draw = jax.tree.map(lambda leaf: leaf[None], batch.draw)
    only = (batch.draw.stream == WIDTH) & (batch.draw.row == batch.draw.row[0])
    shard.rank(range(1), draw, np.where(only, 1.0, 0.0)[None])
    rest = shard.store.masses()[0]
    assert rest < 20


# --- what is fetched while a learner learns ------------------------------------------------------


class Nearby:
    """The `RemoteShards` of one shard that is in this process, and may be away."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.away = shard, False

    def collect(self, first, most, timeout):
        if self.away:
            raise Lost("shard 0: died")
        found = self.shard.collect(first, most, range(1))
        return [found] if found.cycles else None

    def draw_from_each(self, counts, turn):
        return [self.shard.draw(range(1), counts[:, 0], turn)]

    def took(self, first):
        self.shard.take(first)


def packs_of(path: Path, ahead: int, cycles: int = 9, start_s: float = 60.0) -> Packs:
    of = replace(ALONE, mode="ray", crew=replace(BASE.crew, chunk=4, start_s=start_s))
    shard = make_shard(of, path)
    for number in range(cycles):
        shard.append(chunk(0, number))
    return Packs(of, range(1), Nearby(shard), 0, ahead)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_packs_bring_every_cycle_once_with_the_batches_that_are_due(tmp_path, ahead):
    packs, turns, batches = packs_of(tmp_path, ahead), [], {}
    while len(turns) < 9 * TURNS:
        pack = packs.take(timeout=60.0)
        assert pack.rows.reward.shape == (pack.cycles * TURNS, 1, WIDTH)
        turns += pack.rows.reward[:, 0, 0].tolist()
        batches |= pack.batches
    assert turns == list(range(9 * TURNS))
    updates, limiter = packs.settings.learns.updates, packs.limiter
    due = [cycle for cycle in range(1, 10) if limiter.due(cycle)]
    assert sorted(batches) == list(range(due[0] * updates, (due[-1] + 1) * updates))
    assert packs.take(timeout=0.0) is None
    packs.close()  # returns, although no more rows will ever come
    assert all(fetched.done() for fetched in packs._fetched)


@pytest.mark.parametrize("ahead", [0, 1])
def test_packs_wait_for_a_shard_that_is_lost_but_not_for_ever(tmp_path, ahead):
    packs = packs_of(tmp_path, ahead, cycles=0, start_s=0.5)
    packs.shards.away = True
    with pytest.raises(ChannelClosed, match=r"shard 0: died: it has been away for 0\.5 s"):
        packs.take(timeout=60.0)
    packs.close()


# --- whole runs in one process -------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(dqn(BASE, sampler="prioritized"), id="prioritised"),
        pytest.param(replace(BASE, actors=4, replay_shards=3), id="4 actors in 3 shards"),
        pytest.param(LAKE, id="lake"),
    ],
)
def test_a_sharded_run_trains_on_what_was_acted_on(tmp_path, base):
    run = Run.create(tmp_path / "run", replace(base, steps=240))
    train(run)
    lines = [e for line in read_metrics(run.metrics, "health") for e in line["learners"]]
    for name in ("border_breaks", "stack_mismatches", "returns_wrong"):
        assert not any(line[name] for line in lines)
    assert sum(line["sampled"] for line in lines) > 50
    if base.replay != "lake":
        assert sum(line["returns_checked"] for line in lines) > 0


def test_a_sharded_run_resumes_bit_by_bit(tmp_path):
    base = dqn(replace(BASE, actors=4, replay_shards=2, steps=240), sampler="prioritized")
    whole, broken = (Run.create(tmp_path / name, base) for name in ("whole", "broken"))
    digest = train(whole)
    crash_at(broken, 120)
    assert train(Run.open(broken.path)) == digest


def test_actors_are_shared_out_among_shards():
    of = replace(BASE, actors=4, replay_shards=3)
    assert [list(actors_of(of, shard)) for shard in range(3)] == [[0, 3], [1], [2]]


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(mode="processes", replay_shards=1), "in one piece"),
        (dict(mode="ray", replay_shards=3), "at most 2"),
        (dict(mode="processes", address="auto"), "mode ray"),
        (dict(mode="ray", agent="pqn", learning=None), "pqn acts and learns in turn"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, why):
    with pytest.raises(BadConfig, match=why):
        replace(BASE, **{"replay_shards": 0, **changes})


def test_without_ray_the_remedy_is_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadConfig, match=r"pip install 'millpond\[ray\]'"):
        import_ray()
    folder = tmp_path / "run"
    assert main(["train", "treasurehunt-small", "--mode", "ray", "--run", str(folder)]) == 2
    assert "millpond[ray]" in capsys.readouterr().err
    assert not folder.exists()


class Shelf:
    """`Weights` that notes what was published."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, learner: int, version: int, params: Any) -> None:
        self.versions.append(version)


@pytest.mark.parametrize("every", [1, 8])
def test_parameters_are_published_after_so_many_updates(every):
    part = object.__new__(RayLearner)
    part.settings = replace(BASE, crew=replace(BASE.crew, publish_every=every))
    part.index, part.published, part.weights = 0, 0, Shelf()
    part.learner = SimpleNamespace(version=0, params={})
    part._publish(again=True)
    for part.learner.version in (0, 3, 3, 6, 9, 15, 17, 40):
        part._publish()
    part.learner.version = 2  # the run was taken back
    part._publish()
    wanted = {1: [0, 3, 6, 9, 15, 17, 40, 2], 8: [0, 9, 17, 40, 2]}
    assert part.weights.versions == wanted[every]


def test_age_is_judged_by_what_is_published():
    of = replace(BASE, mode="ray", crew=replace(BASE.crew, publish_every=8))
    bounds = {}
    for mode in ("ray", "sequential"):
        evidence = SimpleNamespace(settings=replace(of, mode=mode), losses=0)
        bounds[mode] = lag_bound(evidence)
    assert bounds == {"ray": of.ahead * of.learns.updates + 7, "sequential": 0}


class Silent:
    """A `Team` of which only the weights answer; it notes whom it kills."""

    def __init__(self) -> None:
        self.killed: list[Any] = []
        self.weights = "weights"
        self.servers = [Server("weights", 0, self.weights)]

    def call(self, member: Any, method: str, *args: Any) -> Any:
        return member, method

    def wait(self, calls: Any, number: int, timeout: float) -> list[Any]:
        return [call for call in calls if call[0] == self.weights]

    def result(self, call: Any, timeout: float = 0.0) -> Any:
        return {}

    def kill(self, member: Any) -> None:
        self.killed.append(member)


def test_nobody_hangs_because_the_driver_was_away(tmp_path):
    now = [0.0]
    of = replace(BASE, mode="ray", crew=replace(BASE.crew, hang_s=60.0))
    crew = SupervisedCrew(of, tmp_path, Silent(), lambda: now[0])
    start = StartPoint([0], np.zeros(1, np.uint32))
    seen = dict(beats=100, seen=0.0, starting=False)
    crew.members["actor", 0] = Member("actor", 0, 0, start, "handle", **seen)

    def look_until(end: float) -> None:
        while now[0] < end:
            now[0] += 0.5
            crew.watch.look(crew.cycle)

    look_until(50)
    now[0] = 500.0  # an evaluation, or a large state
    look_until(508)
    assert not crew.team.killed  # 58 seconds of silence that could have been heard
    look_until(515)
    assert crew.team.killed == ["handle"]
