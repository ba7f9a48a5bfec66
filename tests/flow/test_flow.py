"""Pond → Lake → Pond: nothing is lost, doubled or invented, and every transition is as likely."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from oracle import check_batch, decode, frame_of
from scenarios import PATTERNS, SPEC, Stream, pick, to_rows
from scipy import stats
from test_contract import WINDOWS
from test_lake import compare, model_of

from millpond import (
    BadConfig,
    Field,
    Flag,
    HostPond,
    LakeFailed,
    MillpondError,
    NotEnoughData,
    Pond,
    Rows,
    RowsGone,
    Spec,
    SpecMismatch,
    Window,
)
from millpond.flow import Drain, Fill, drain, fill
from millpond.lake import Lake

ENVS = 3


def make_lake(path, streams: int = ENVS, groups: int = 1) -> Lake:
    return Lake.create(path / "lake", SPEC, 10**7, groups=groups, segment_rows=4096)


class Source:
    """Envs that feed a pond and the list model alike."""

    def __init__(self, pattern: str, seed: int, window: Window = WINDOWS["plain"]) -> None:
        chance = random.Random(seed)
        self.streams = [Stream(env, PATTERNS[pattern], chance) for env in range(ENVS)]
        self.model = model_of(window, ENVS)

    def step(self):
        return [self.row(env) for env in range(ENVS)]

    def row(self, env: int) -> dict:
        row = self.streams[env].next()
        self.model.add(env, dict(row))
        return row

    def cut(self, env: int) -> None:
        self.model.cut(env)
        self.streams[env].cut()


@pytest.mark.parametrize("pattern", ["short", "everything"])
@pytest.mark.parametrize("placement", ["device", "host"])
def test_drain_moves_every_row_once(tmp_path, placement, pattern):
    window, lake = WINDOWS["stack3-n2-lives"], make_lake(tmp_path)
    source, length = Source(pattern, 3, window), 40
    chance = random.Random(1)
    host = placement == "host"
    pond = (HostPond if host else Pond)(SPEC, length * ENVS, ENVS, window)
    state = None if host else pond.init()
    add = jax.jit(pond.add, donate_argnums=0) if not host else None
    cut = jax.jit(pond.cut, donate_argnums=0) if not host else None
    with lake.writer("a", ENVS) as writer, Drain(pond, writer) as draining:
        for turn in range(12):
            rows = to_rows([source.step() for _ in range(19)])
            if host:
                pond.add(rows)
            else:
                state = add(state, rows)
            if turn % 3 < 2:
                draining(state)
            if turn % 4 == 1:  # after the newest row was drained
                env = chance.randrange(ENVS)
                source.cut(env)
                if host:
                    pond.cut(env)
                else:
                    state = cut(state, np.arange(ENVS) == env)
        draining(state)
        draining.finish()
        lake.refresh()
        compare(lake, source.model, window, None, chance)


def test_drain_of_per_env_rings_of_unequal_length(tmp_path):
    lake, source = make_lake(tmp_path), Source("everything", 4)
    pond = HostPond(SPEC, 50 * ENVS, ENVS, WINDOWS["plain"], layout="per_env")
    chance = random.Random(2)
    with lake.writer("a", ENVS) as writer, Drain(pond, writer) as draining:
        for _ in range(9):
            for env in range(ENVS):
                for _ in range(chance.randrange(16)):
                    pond.add(pick(to_rows([[source.row(env)]]), (0, 0)), env=env)
            draining()
    lake.refresh()
    compare(lake, source.model, WINDOWS["plain"], None, chance)


def test_drain_says_which_rows_were_overwritten_and_goes_on_behind_a_cut(tmp_path):
    lake, source = make_lake(tmp_path), Source("long", 5)
    pond = HostPond(SPEC, 10 * ENVS, ENVS)
    with lake.writer("a", ENVS) as writer, Drain(pond, writer) as draining:
        pond.add(to_rows([source.step() for _ in range(5)]))
        draining()
        pond.add(to_rows([source.step() for _ in range(13)]))
        with pytest.raises(RowsGone, match="rows 5 to 7 of stream 0"):
            draining()
        draining()
    lake.refresh()
    flags = lake.read(0, 0, 15).flags
    assert len(lake) == 15 * ENVS
    assert flags[4] & 8  # nothing crosses the gap


def test_drain_raises_what_the_background_met(tmp_path):
    lake, source = make_lake(tmp_path), Source("long", 5)
    pond = HostPond(SPEC, 50 * ENVS, ENVS)
    writer = lake.writer("a", ENVS)
    draining = Drain(pond, writer)
    pond.add(to_rows([source.step() for _ in range(5)]))
    writer.close()
    draining()
    with pytest.raises(LakeFailed, match="closed"):
        draining.finish()
    with pytest.raises(LakeFailed, match="closed"):
        draining()
    with pytest.raises(LakeFailed, match="closed"):
        draining.close()


def filled_lake(path, pattern: str, steps: int, seed: int = 0) -> tuple[Lake, Source]:
    lake, source = make_lake(path), Source(pattern, seed)
    with lake.writer("a", ENVS) as writer:
        writer.append(to_rows([source.step() for _ in range(steps)]))
    lake.refresh()
    return lake, source


@pytest.mark.parametrize(
    ("placement", "window", "runs"),
    [
        ("device", "n3", 1),
        ("device", "stack4-n3", 1),
        ("device", "stack3-n2-lives", 5),
        ("host", "n3", 3),
        ("host", "stack4-n3", 1),
        ("host", "stack3-n2-lives", 1),
    ],
)
def test_filled_ponds_give_the_lakes_transitions(tmp_path, placement, window, runs):
    """Exactly those, and over one turn of all cores every one of them, equally often."""
    lake, source = filled_lake(tmp_path, "everything", 400)
    window = WINDOWS[window]
    core, envs = 16, 5
    run = window.before + core + window.n_step
    cores = ENVS * 25
    pond = (HostPond if placement == "host" else Pond)(SPEC, run * 15 * envs, envs, window)
    with Fill(lake, pond, core=core, seed=3, runs=runs) as filling:
        assert filling.blocks * envs * runs == cores
        state = filling.whole()
    if placement == "host":
        stream = np.repeat(np.arange(envs), run * 15)
        batch = pond.take(stream, np.tile(np.arange(run * 15), envs))
    else:
        stream = np.repeat(np.arange(envs), run * 15)
        batch = jax.tree.map(
            np.asarray, jax.jit(pond.take)(state, stream, np.tile(np.arange(run * 15), envs))
        )
        pond.check(state)
    source.model.stack, source.model.n_step = window.stack, window.n_step
    source.model.gamma, source.model.life_loss_ends = window.gamma, window.life_loss_ends
    source.model.reward_clip = window.reward_clip
    expected = source.model.transitions()
    frames = decode(batch.obs)[batch.mask][:, -1]
    wanted = sorted(frame_of(env, i) for env, i in expected)
    # By age a ring gives up the rows at its two ends; every other start is there once.
    assert sorted(frames.tolist()) == [f for f in wanted if f in set(frames.tolist())]
    assert len(wanted) - len(frames) <= envs * (window.before + window.n_step)
    by_frame = {frame_of(env, i): (env, i) for env, i in expected}
    where = [by_frame[f] for f in frames.tolist()]
    masked = jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(batch.mask)], batch)
    draw = masked.draw._replace(
        stream=np.array([w[0] for w in where]), row=np.array([w[1] for w in where], np.int64)
    )
    check_batch(masked._replace(draw=draw), expected, every_valid=False)


@pytest.mark.parametrize("choice", ["uniform", "balanced"])
def test_every_transition_is_equally_likely_over_many_fills(tmp_path, choice):
    lake, source = filled_lake(tmp_path, "short", 230)
    window = WINDOWS["n3"]
    source.model.n_step, source.model.gamma = 3, 0.9
    expected = source.model.transitions()
    counts: dict[int, int] = {}
    pond = HostPond(SPEC, 4 * 60, 4, window)
    for seed in range(300):
        fill(lake, pond, core=16, seed=seed, choice=choice)
        row = np.tile(np.arange(pond.added[0] - 60, pond.added[0]), 4)
        batch = pond.take(np.repeat(np.arange(4), 60), row)
        for frame in decode(batch.obs)[batch.mask][:, -1].tolist():
            counts[frame] = counts.get(frame, 0) + 1
    wanted = [frame_of(env, i) for env, i in expected]
    assert set(counts) <= set(wanted)
    # Starts of one core come and go together: compare cores, each by its mean count per start.
    cores: dict[tuple[int, int], list[int]] = {}
    for env, i in expected:
        cores.setdefault((env, i // 16), []).append(counts.get(frame_of(env, i), 0))
    means = np.array([np.mean(c) for c in cores.values()])
    assert stats.chisquare(means).pvalue > 1e-4
    assert means.min() > 0


def test_recent_fills_prefer_new_rows(tmp_path):
    lake, _ = filled_lake(tmp_path, "long", 1600)
    pond = HostPond(SPEC, 4 * 600, 4, WINDOWS["plain"])
    fill(lake, pond, core=16, seed=1, choice="recent", half_life=200)
    row = np.tile(np.arange(pond.added[0] - 500, pond.added[0]), 4)
    batch = pond.take(np.repeat(np.arange(4), 500), row)
    ids = (decode(batch.obs)[batch.mask][:, -1] - 1) // 7
    share = np.mean(ids >= 1400)
    assert 0.35 < share < 0.65  # half of all starts lie in the newest half life


@pytest.mark.parametrize(("since", "first"), [(0, 0), (150, 160), (160, 160), (299, 288)])
def test_newest_fills_take_every_row_since_and_no_older_one(tmp_path, since, first):
    """Whole cores only: one that is in part older is left out, unless it is the only one."""
    lake, source = filled_lake(tmp_path, "long", 300)
    pond = HostPond(SPEC, 4 * 400, 4, WINDOWS["plain"])
    with Fill(lake, pond, core=16, seed=1, choice="newest", since=since) as filling:
        for _ in range(-(-ENVS * (300 - first) // 16 // 4)):
            filling()
    rows = int(pond.added[0])
    batch = pond.take(np.repeat(np.arange(4), rows), np.tile(np.arange(rows), 4))
    source.model.stack, source.model.n_step = 1, 1
    wanted = {frame_of(env, i) for env, i in source.model.transitions() if i >= first}
    assert set(decode(batch.obs)[batch.mask][:, -1].tolist()) == wanted


def test_fills_are_decided_by_their_seed(tmp_path):
    lake, _ = filled_lake(tmp_path, "short", 300)
    contents = []
    for seed in (1, 1, 2):
        pond = HostPond(SPEC, 200 * ENVS, ENVS)
        with Fill(lake, pond, core=16, seed=seed) as filling:
            filling()
            filling.refresh()
            filling()
        contents.append(pond.export()["columns/obs/image"].tobytes())
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_blocks_come_in_one_order_however_early_they_begin(tmp_path, limit):
    lake, _ = filled_lake(tmp_path, "short", 300)
    early, late = HostPond(SPEC, 200 * ENVS, ENVS), HostPond(SPEC, 200 * ENVS, ENVS)
    with Fill(lake, early, core=16, seed=1) as first, Fill(lake, late, core=16, seed=1) as second:
        first.start(limit)
        assert len(first._ready) == min(limit or 4, 4)
        for _ in range(5):
            first()
            second()
    for name, content in late.export().items():
        np.testing.assert_array_equal(early.export()[name], content)


def test_a_block_that_comes_late_is_not_lost(tmp_path, monkeypatch):
    lake, _ = filled_lake(tmp_path, "short", 300)
    late, usual = HostPond(SPEC, 200 * ENVS, ENVS), HostPond(SPEC, 200 * ENVS, ENVS)
    go = threading.Event()
    with Fill(lake, late, core=16, seed=1) as first, Fill(lake, usual, core=16, seed=1) as second:
        gather = first.runs.rows_of

        def slow(*args):
            assert go.wait(60)
            return gather(*args)

        monkeypatch.setattr(first.runs, "rows_of", slow)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["millpond.flow.fill"], "_PATIENCE", 0.01)
            with pytest.raises(MillpondError, match="no block was ready"):
                first()
        go.set()
        for _ in range(3):
            first()
            second()
    for name, content in usual.export().items():
        np.testing.assert_array_equal(late.export()[name], content)


def test_gathers_and_refreshes_go_on_beside_each_other(tmp_path):
    """Four threads gather, whole blocks at a time, while rows are written, sealed and evicted."""
    spec = Spec(Field("uint8", (512,)), Field("int32"))
    lake = Lake.create(tmp_path / "lake", spec, 32_768, segment_rows=4096)
    over, wrong, looked = threading.Event(), list[Any](), [0] * 4

    def look(number: int) -> None:
        while not over.is_set():
            first, stop = lake.streams[0].first, lake.streams[0].stop
            start = np.arange(first, stop - 64, 64)
            if not len(start):
                continue
            try:
                rows = lake.gather(np.zeros_like(start), start, 64, threads=4)
            except RowsGone:
                continue  # evicted since
            ids = (start[:, None] + np.arange(64)) % 251
            if not (np.asarray(rows.obs) == ids[..., None]).all():
                wrong.append(start)
            looked[number] += 1

    with lake.writer("a", 1) as writer, ThreadPoolExecutor(4) as pool:
        seen = [pool.submit(look, number) for number in range(4)]
        try:
            row = 0
            while (min(looked) < 20 or row < 65_536) and not any(one.done() for one in seen):
                ids = np.arange(row, row + 1024)
                obs = np.repeat((ids % 251).astype(np.uint8), 512).reshape(1024, 1, 512)
                zero, none = np.zeros((1024, 1)), np.zeros((1024, 1), bool)
                flags = np.where(ids == 0, Flag.FIRST, 0).astype(np.uint8)[:, None]
                action, reward = zero.astype(np.int32), zero.astype(np.float32)
                writer.append(Rows(obs, action, reward, none, none, flags))
                writer.commit()
                lake.refresh()
                row += 1024
        finally:
            over.set()
    for one in seen:
        one.result(60)
    assert not wrong
    assert lake.streams[0].first > 0


@pytest.mark.parametrize("threads", [1, 3])
def test_runs_of_several_dictionaries_and_raw_ones_are_gathered_together(tmp_path, threads):
    """Two groups that look different, each with a dictionary, and an open segment of each."""
    spec = Spec(Field("uint8", (1024,)), Field("int32"))
    lake = Lake.create(tmp_path / "lake", spec, 10**6, groups=2, segment_rows=4096)
    rng, rows = np.random.default_rng(0), 5000
    looks = rng.integers(0, 255, (2, 1024), np.uint8)
    frames = np.repeat(looks[:, None], rows, 1)
    frames[..., :2] = np.arange(rows, dtype=np.uint16)[:, None].view(np.uint8)
    for group, some in enumerate(frames):
        with lake.writer(f"g{group}", 1) as writer:
            none, flags = np.zeros((rows, 1), bool), np.zeros((rows, 1), np.uint8)
            flags[0] = Flag.FIRST
            zero = np.zeros((rows, 1))
            new = Rows(
                some[:, None], zero.astype(np.int32), zero.astype(np.float32), none, none, flags
            )
            writer.append(new)
    lake.refresh()
    assert len(lake.reader.codecs["obs"]) == 2
    short = rng.integers(0, rows - 32, 200)
    short[:8] = rows - 24  # of some the end is not stored
    for start, length in (
        (short, 32),
        (np.array([4090, 4500, 4093]), 900),  # the longest stretch is raw, the first is not
        (np.array([0, 4990]), 9000),  # more is missing than the longest stretch holds
    ):
        stream = rng.integers(0, 2, len(start))
        found = lake.gather(stream, start, length, threads=threads)
        ids = start[:, None] + np.arange(length)
        there = ids < rows
        stored = frames[stream[:, None], ids.clip(max=rows - 1)]
        np.testing.assert_array_equal(found.obs, np.where(there[..., None], stored, 0))
        assert ((found.flags & Flag.CUT) != 0)[~there].all()


def test_packed_rows_are_the_same_rows(tmp_path):
    """What `pond.packed` takes and gives, and a writer takes, is what lies in ring and file."""
    spec = Spec({"bits": Field("bool", (3, 7)), "x": Field("float32", (2,))}, Field("int32"))
    rng = np.random.default_rng(0)
    bits, x = rng.random((6, 2, 3, 7)) < 0.4, rng.random((6, 2, 2)).astype(np.float32)
    none, flags = np.zeros((6, 2), bool), np.zeros((6, 2), np.uint8)
    flags[0] = Flag.FIRST
    action, reward = np.ones((6, 2), np.int32), np.zeros((6, 2), np.float32)
    whole = Rows({"bits": bits, "x": x}, action, reward, none, none, flags)
    byte = np.packbits(bits.reshape(6, 2, -1), axis=-1, bitorder="little")
    packed = whole._replace(obs={"bits": byte, "x": x})
    pond = Pond(spec, 16, 2)
    assert Pond(SPEC, 16, 2).packed.spec.fingerprint() == SPEC.packed.fingerprint()
    state = pond.add(pond.init(), whole)
    same = pond.packed.add(pond.init(), packed)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)
    read = pond.packed.read(state, np.arange(2), np.arange(6)[:, None])
    np.testing.assert_array_equal(read.obs["bits"], byte)
    stored = []
    for name, rows in (("whole", whole), ("packed", packed)):
        lake = Lake.create(tmp_path / name, spec, 10_000)
        with lake.writer("a", 2) as writer:
            writer.append(rows, packed=name == "packed")
            with pytest.raises(SpecMismatch, match="obs/bits"):
                writer.append(rows, packed=name != "packed")
        lake.refresh()
        stored.append(lake.read(0, 0, 6))
        again = lake.gather(np.array([1]), np.array([0]), 6, packed=True)
        np.testing.assert_array_equal(again.obs["bits"][0], byte[:, 1])
    np.testing.assert_array_equal(stored[0].obs["bits"], bits[:, 0])
    np.testing.assert_array_equal(stored[1].obs["bits"], bits[:, 0])


def test_whole_drain_and_fill_round_trip(tmp_path):
    lake, source = make_lake(tmp_path), Source("short", 8)
    pond = Pond(SPEC, 64 * ENVS, ENVS)
    state = jax.jit(pond.add)(pond.init(), to_rows([source.step() for _ in range(100)]))
    with lake.writer("a", ENVS) as writer:
        drain(pond, writer, state)
    lake.refresh()
    assert len(lake) == 64 * ENVS
    other = HostPond(SPEC, 80 * ENVS, ENVS)
    fill(lake, other, core=8)
    frames = decode(other.sample(500).obs)
    model = {frame_of(env, i) for env, i in source.model.transitions() if i >= 36}
    assert set(frames.ravel().tolist()) <= model


def test_flow_refuses_what_cannot_work(tmp_path):
    lake = make_lake(tmp_path)
    with lake.writer("a", ENVS) as writer:
        with pytest.raises(BadConfig, match="shared"):
            Drain(HostPond(SPEC, 10, layout="shared"), writer)
        with pytest.raises(BadConfig, match="2 envs"):
            Drain(HostPond(SPEC, 10, 2), writer)
    with pytest.raises(NotEnoughData):
        fill(lake, HostPond(SPEC, 100, 1))
    lake, _ = filled_lake(tmp_path / "other", "short", 50)
    with pytest.raises(BadConfig, match="stream"):
        fill(lake, HostPond(SPEC, 300, 3, layout="per_env"))
    with pytest.raises(BadConfig, match="core"):
        fill(lake, HostPond(SPEC, 30, 3), core=64)
    with pytest.raises(BadConfig, match="choice"):
        fill(lake, HostPond(SPEC, 300, 3), core=8, choice="latest")
    with pytest.raises(BadConfig, match="since=5 needs choice 'newest'"):
        Fill(lake, HostPond(SPEC, 300, 3), core=8, since=5)
    for since in (-1, 2.0):
        with pytest.raises(BadConfig, match="since must be a row id, 0 or more, got"):
            Fill(lake, HostPond(SPEC, 300, 3), core=8, choice="newest", since=since)
    with pytest.raises(NotEnoughData, match="no row 9999 or later"):
        Fill(lake, HostPond(SPEC, 300, 3), core=8, choice="newest", since=9999)
