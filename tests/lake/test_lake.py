"""The contract of a Lake: the same as every ring's, but exact at both ends, over many segments."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ListModel, decode
from scenarios import PATTERNS, SPEC, Stream, pick
from scenarios import to_rows as narrow_rows
from sequence_oracle import SequenceModel
from test_contract import SEQUENCES, WINDOWS, WINDOWS_AND_SEQUENCES, check
from test_contract import held as not_masked

from millpond import (
    BadConfig,
    BadState,
    Field,
    NotEnoughData,
    Rows,
    Spec,
    Window,
    prioritized,
    recent,
    stratified,
)
from millpond.lake import Lake

# (streams of the group, streams in use): with many streams a segment holds few rows of each.
SHAPES = {"lake-lockstep": [(48, 48), (1024, 1024)], "lake-ragged": [(1024, 3), (300, 4)]}
WIDE = Spec({**SPEC.obs, "wide": Field("uint8", (40, 30))}, SPEC.action, SPEC.extras)
SEEDS = st.integers(0, 2**32)


def picture(frame: int) -> np.ndarray:
    """A wide observation that names its row; it compresses well, or for some rows not at all."""
    if frame == 0:
        return np.zeros((40, 30), np.uint8)
    noisy = (frame // 7 // 24) % 3 == 2
    rng = np.random.default_rng(frame)
    image = rng.integers(0, 255, (40, 30)) if noisy else np.full((40, 30), 7)
    image.flat[:3] = [(frame >> (8 * k)) & 255 for k in range(3)]
    return image.astype(np.uint8)


def to_rows(steps: list[list[dict]], spec: Spec = SPEC) -> Rows:
    rows = narrow_rows(steps)
    if spec is WIDE:
        wide = np.array([[picture(row["frame"]) for row in step] for step in steps])
        rows.obs["wide"] = wide
    return rows


@st.composite
def stories(draw, kind: str):
    ops = [
        st.tuples(st.just("add"), st.integers(1, 40)),
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("cut"), st.integers(0, 7)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("read"), st.just(0)),
    ]
    number = 6 if kind == "lake-lockstep" else 14
    shape = draw(st.sampled_from(SHAPES[kind]))
    return *shape, draw(st.lists(st.one_of(ops), min_size=1, max_size=number)), draw(SEEDS)


def model_of(window, envs: int) -> ListModel | SequenceModel:
    if hasattr(window, "burn_in"):  # a Sequence
        return SequenceModel(envs, 10**9, window)
    return ListModel(
        envs,
        10**9,
        window.stack,
        window.n_step,
        window.gamma,
        window.life_loss_ends,
        window.pad,
        window.reward_clip,
        exact=True,
    )


def play(
    path, kind: str, window: Window, pattern, story, capacity: int = 10**7, sampler=None, spec=SPEC
):
    """Run a story on a Lake and on the list model; everything they say must agree."""
    streams, used, ops, seed = story
    if streams == 1024 and kind == "lake-lockstep":
        ops = [(op, 1 + number % 6 if op == "add" else number) for op, number in ops]
    chance = random.Random(seed)
    lake = Lake.create(path, spec, capacity, segment_rows=4096)
    model = model_of(window, used)
    sources = [Stream(env, pattern, chance) for env in range(used)]
    writer = lake.writer("g", streams)

    def record(env: int) -> dict:
        row = sources[env].next()
        model.add(env, dict(row))
        return row

    for op, number in ops:
        if op == "add" and kind == "lake-lockstep":
            steps = [[record(env) for env in range(used)] for _ in range(number)]
            rows = to_rows(steps, spec)
            writer.append(rows if number > 1 else pick(rows, 0))
        elif op == "add":
            env = chance.randrange(used)
            rows = to_rows([[record(env)] for _ in range(number)], spec)
            index = (slice(None), 0) if number > 1 else (0, 0)
            writer.append(pick(rows, index), env=env)
        elif op == "cut":
            env = number % used
            writer.cut(env)
            model.cut(env)
            sources[env].cut()
        elif op == "commit":
            writer.commit(sync=chance.random() < 0.2)
        elif op == "read":
            lake.refresh()
        elif op == "reopen":
            writer.close()
            lake = Lake.open(path, "a")
            writer = lake.writer("g", streams, continues=number)
            if not number:
                for env in range(used):
                    model.cut(env)
                    sources[env].cut()
    writer.commit()
    lake.refresh()
    compare(lake, model, window, sampler, chance)
    writer.close()
    lake.refresh()
    compare(lake, model, window, sampler, chance)
    compare(Lake.open(path), model, window, sampler, chance)
    return lake


def compare(lake: Lake, model: ListModel, window: Window, sampler, chance: random.Random) -> None:
    held = lake.streams
    for env, rows in enumerate(model.streams):
        assert (held[env].stop, held[env].env) == (len(rows), env)
        model.gone[env] = held[env].first
    assert len(lake) == sum(s.stop - s.first for s in held)
    expected = model.transitions()
    starts = [(env, i) for env, rows in enumerate(model.streams) for i in range(len(rows))]
    if len(starts) > 1500:
        starts = chance.sample(starts, 1500)
    if starts:
        stream, row = (np.array(part, np.int64) for part in zip(*starts, strict=True))
        batch = lake.take(stream, row, window)
        valid = [start in expected for start in starts]
        np.testing.assert_array_equal(not_masked(batch, model), valid)
        check(batch, model, expected, every_valid=len(starts) < 1500)
        check_pictures(lake, batch)
    rng = np.random.default_rng(chance.randrange(2**32))
    if expected:
        batch = lake.sample(rng, 512, window, sampler)
        check(batch, model, expected, every_valid=False)
        check_pictures(lake, batch)
    else:
        with pytest.raises(NotEnoughData):
            lake.sample(rng, 512, window, sampler)
    check_read(lake, model)


def check_pictures(lake: Lake, batch) -> None:
    if "wide" not in lake.spec.obs:
        return
    if not hasattr(batch, "next_obs"):  # sequences
        frames = decode(batch.obs)
        wanted = np.array([picture(frame) for frame in frames.ravel()])
        np.testing.assert_array_equal(batch.obs["wide"].reshape(wanted.shape), wanted)
        return
    for obs in (batch.obs, batch.next_obs):
        frames = decode(obs)[batch.mask]
        wanted = np.array([[picture(frame) for frame in stack] for stack in frames])
        np.testing.assert_array_equal(
            obs["wide"][batch.mask], wanted.reshape(*frames.shape, 40, 30)
        )


def check_read(lake: Lake, model: ListModel) -> None:
    """Rows come back as they were appended."""
    for env, rows in enumerate(model.streams[:4]):
        first = model.gone[env]
        if len(rows) - first < 1:
            continue
        found = lake.read(env, first, len(rows))
        wanted = to_rows([[row] for row in rows[first:]])
        for name in ("action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name)[:, 0])
        np.testing.assert_array_equal(found.obs["image"], wanted.obs["image"][:, 0])
        cuts = [row["cut"] for row in rows[first:-1]]
        np.testing.assert_array_equal((found.flags[:-1] & 8) != 0, cuts)


def run_cell(folder, kind: str, window: str, pattern: str, sampler, examples: int) -> int:
    ran = 0

    @settings(max_examples=examples)
    @given(stories(kind))
    def run(story):
        nonlocal ran
        ran += 1
        how = WINDOWS_AND_SEQUENCES[window], PATTERNS[pattern]
        play(folder / str(ran), kind, *how, story, sampler=sampler)

    run()
    return ran


def cell(number: int, window: str, pattern: str):
    """Every window meets `everything`; and, if it is no sequence, one other pattern, in turn."""
    others = ("long", "short", "length-1")
    always = pattern == "everything"
    always |= window not in SEQUENCES and pattern == others[number % len(others)]
    return pytest.param(window, pattern, marks=[] if always else [pytest.mark.full])


CELLS = [
    cell(number, window, pattern)
    for number, window in enumerate(WINDOWS_AND_SEQUENCES)
    for pattern in ("long", "short", "length-1", "everything")
]


@pytest.mark.parametrize(("window", "pattern"), CELLS)
@pytest.mark.parametrize("kind", SHAPES)
def test_contract_of_lake(tmp_path, kind, window, pattern, record_property, request):
    examples = max(2, request.config.getoption("--examples") // 2)
    ran = run_cell(tmp_path, kind, window, pattern, None, examples)
    record_property("contract", [kind, window, pattern, ran])


@pytest.mark.parametrize("name", ["stratified", "recent"])
def test_contract_of_lake_samplers(tmp_path, name, record_property, request):
    sampler = {"stratified": stratified(tries=8), "recent": recent(half_life=10)}[name]
    ran = run_cell(tmp_path, "lake-ragged", "stack3-n2-lives", "everything", sampler, 4)
    record_property("contract", [f"lake {name}", "stack3-n2-lives", "everything", ran])


def test_contract_of_lake_with_eviction(tmp_path, record_property):
    """Over capacity the oldest segments go; every remaining transition is still exact."""
    names = ["stack4-n3", "stack4-n3", "stop-stack3-every3-burn5"]
    for seed, window in enumerate(WINDOWS_AND_SEQUENCES[name] for name in names):
        story = (256, 256, [("add", 30), ("commit", 0)] * 4, seed)
        lake = play(
            tmp_path / str(seed), "lake-lockstep", window, PATTERNS["short"], story, 4 * 4096
        )
        assert all(stream.first > 0 for stream in lake.streams)
        assert len(lake) <= 4 * 4096
    for name in set(names):
        record_property("contract", ["lake evicting", name, "short", names.count(name)])


COMPRESSED = [
    pytest.param(streams, window, marks=[] if number % 2 == turn else [pytest.mark.full])
    for turn, streams in enumerate([512, 32])
    for number, window in enumerate(
        ["n3", "stack4", "stack2-n5-first", "stop-stack2-burn2-first", "cross"]
    )
]


@pytest.mark.parametrize(("streams", "window"), COMPRESSED)
def test_contract_of_lake_compressed(tmp_path, window, streams, record_property):
    """Segments compressed and raw side by side, and windows that cross from one to the other."""
    steps = 4096 // streams
    ops = [("add", steps - 1), ("commit", 0), ("add", steps + 2), ("commit", 0), ("add", 5)]
    story = (streams, streams, ops, 7)
    path = tmp_path / "lake"
    lake = play(
        path, "lake-lockstep", WINDOWS_AND_SEQUENCES[window], PATTERNS["short"], story, spec=WIDE
    )
    kinds = [s.meta.columns["obs/wide"].codec for s in lake.reader.seated.values()]
    assert {"zstd", "raw"} == set(kinds)
    assert lake.stats().sealed >= 2
    record_property("contract", [f"lake compressed {streams}", window, "short", 1])


def test_a_group_of_mostly_idle_streams_keeps_its_rows(tmp_path):
    """One of 512 streams writes: its segments hold 8 rows each, and capacity still counts rows."""
    lake = Lake.create(tmp_path / "lake", SPEC, 2 * 4096, segment_rows=4096)
    source = Stream(0, PATTERNS["long"], random.Random(1))
    with lake.writer("g", 512) as writer:
        for _ in range(25):
            rows = to_rows([[source.next()] for _ in range(8)])
            writer.append(pick(rows, (slice(None), 0)), env=5)
            writer.commit()
    lake.refresh()
    assert (lake.streams[5].first, lake.streams[5].stop) == (0, 200)
    assert len(lake.read(5, 0, 200).reward) == 200


@pytest.mark.parametrize("shuffle", [True, False])
def test_iterate_gives_every_valid_start_once_per_epoch(tmp_path, shuffle):
    window, streams = WINDOWS["stack3-n2-lives"], 300
    story = (streams, 4, [("add", 40), ("cut", 1), ("add", 40), ("add", 33)] * 2, 3)
    path = tmp_path / "lake"
    lake = play(path, "lake-ragged", window, PATTERNS["everything"], story)
    batches = list(lake.iterate(32, window, epochs=2, shuffle=shuffle, seed=1))
    assert all(batch.mask.all() for batch in batches)
    starts = [
        list(zip(batch.draw.stream.tolist(), batch.draw.ids().tolist(), strict=True))
        for batch in batches
    ]
    half = len(batches) // 2
    first, second = (list(chain(*part)) for part in (starts[:half], starts[half:]))
    stream, row = np.repeat(np.arange(4), 300), np.tile(np.arange(300), 4)
    mask = lake.take(stream, row, window).mask
    valid = sorted(zip(stream[mask].tolist(), row[mask].tolist(), strict=True))
    assert len(valid) > 100
    assert sorted(first) == sorted(second) == valid
    assert (first == valid) != shuffle
    assert (first == second) != shuffle
    assert {len(batch.reward) for batch in batches[: half - 1]} == {32}


def test_iterate_says_when_the_lake_was_refreshed_meanwhile(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6)
    source = Stream(0, PATTERNS["long"], random.Random(1))
    with lake.writer("g", 1) as writer:
        writer.append(to_rows([[source.next()] for _ in range(50)]))
        writer.commit()
        lake.refresh()
        batches = lake.iterate(8, Window())
        next(batches)
        writer.append(to_rows([[source.next()] for _ in range(50)]))
        writer.commit()
        lake.refresh()
        with pytest.raises(BadState, match="refreshed"):
            next(batches)


def test_threads_change_nothing_but_the_time(tmp_path):
    story = (512, 512, [("add", 8), ("add", 9)], 7)
    path = tmp_path / "lake"
    lake = play(path, "lake-lockstep", WINDOWS["stack4"], PATTERNS["short"], story, spec=WIDE)
    one, three = (
        lake.sample(np.random.default_rng(5), 600, WINDOWS["stack4"], threads=threads)
        for threads in (1, 3)
    )
    for obs in ("obs", "next_obs"):
        np.testing.assert_array_equal(getattr(one, obs)["wide"], getattr(three, obs)["wide"])
    check_pictures(lake, three)


def test_prioritized_is_refused(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6)
    with pytest.raises(BadConfig, match="Pond"):
        lake.sample(np.random.default_rng(0), 8, Window(), prioritized())
