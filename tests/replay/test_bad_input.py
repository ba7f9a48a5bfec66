"""Bad input raises a typed error that names field, expected, got, remedy; nothing changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond import (
    BadConfig,
    BadState,
    BrokenEpisode,
    FaultsFound,
    Field,
    Flag,
    HostPond,
    Lake,
    NotEnoughData,
    Pond,
    Rows,
    Spec,
    SpecMismatch,
    Window,
    border_row,
    prioritized,
)

SPEC = Spec(obs=Field("float32", (4,)), action=Field("int32", (), 0, 2))
PIXELS = Spec(obs=Field("uint8", (2, 2)), action=Field("int32", (), 0, 2))


def rows(n: int = 3, spec: Spec = SPEC, **changes) -> Rows:
    good = Rows(
        obs=np.zeros((n, *spec.obs.shape), spec.obs.dtype),
        action=np.zeros(n, np.int32),
        reward=np.ones(n, np.float32),
        terminated=np.zeros(n, bool),
        truncated=np.zeros(n, bool),
        flags=np.full(n, Flag.FIRST, np.uint8),
    )
    return good._replace(**changes)


CASES = {
    "(1, F) for (F,)": (dict(obs=np.zeros((3, 1, 4), np.float32)), "field 'obs'"),
    "(N, 1) for (N, F)": (dict(obs=np.zeros((3, 1), np.float32)), "field 'obs'"),
    "(N, 1) reward": (dict(reward=np.ones((3, 1), np.float32)), "field 'obs'"),
    "(N, 1) action": (dict(action=np.zeros((3, 1), np.int32)), "field 'action'"),
    "scalar terminated": (dict(terminated=np.False_), "field 'terminated'"),
    "float into int": (dict(action=np.ones(3, np.float32)), "field 'action'"),
    "bool into float": (dict(obs=np.zeros((3, 4), bool)), "field 'obs'"),
    "int terminated": (dict(terminated=np.zeros(3, np.int64)), "field 'terminated'"),
    "missing field": (dict(obs={"a": np.zeros((3, 4), np.float32)}), "missing ['obs']"),
    "unknown extra": (dict(extras={"speed": np.zeros(3)}), "unknown ['extras/speed']"),
}
VALUES = {
    "action too high": (dict(action=np.array([0, 3, 0], np.int32)), "3 at index (0, 1)"),
    "action negative": (dict(action=np.array([0, 0, -1], np.int32)), "-1 at index (0, 2)"),
    "wide action": (dict(action=np.array([0, 2**40, 0], np.int64)), "field 'action'"),
    "nan reward": (dict(reward=np.array([0, np.nan, 0], np.float32)), "field 'reward'"),
    "inf reward": (dict(reward=np.array([0, 0, np.inf], np.float32)), "field 'reward'"),
    "unknown flag": (dict(flags=np.array([1, 64, 1], np.uint8)), "field 'flags'"),
}


def host(spec: Spec = SPEC) -> HostPond:
    pond = HostPond(spec, 30, 3, Window(n_step=2))
    pond.add(rows(spec=spec))
    return pond


def frozen(pond: HostPond) -> dict:
    return pond.export()


@pytest.mark.parametrize("case", CASES | VALUES)
def test_host_raises_and_stays_as_it_was(case):
    changes, words = (CASES | VALUES)[case]
    pond = host()
    before = frozen(pond)
    with pytest.raises(SpecMismatch) as caught:
        pond.add(rows(flags=np.zeros(3, np.uint8))._replace(**changes))
    message = str(caught.value)
    assert words in message
    assert "expected" in message
    assert ";" in message, "the remedy"
    for name, array in frozen(pond).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("case", CASES)
def test_device_raises_while_tracing(case):
    changes, words = CASES[case]
    pond = Pond(SPEC, 30, 3)
    with pytest.raises(SpecMismatch) as caught:
        jax.jit(pond.add)(pond.init(), rows(**changes))
    assert words in str(caught.value)


def test_300_7_never_becomes_44():
    pond = HostPond(PIXELS, 30, 3)
    with pytest.raises(SpecMismatch, match="expected uint8, got float64"):
        pond.add(rows(spec=PIXELS, obs=np.full((3, 2, 2), 300.7)))
    with pytest.raises(SpecMismatch, match="300 at index"):
        pond.add(rows(spec=PIXELS, obs=np.full((3, 2, 2), 300)))
    assert pond.size == 0
    pond.add(rows(spec=PIXELS, obs=np.full((3, 2, 2), 255)))  # int64 that fits is welcome


def test_device_counts_bad_values_and_keeps_them_out_of_samples():
    pond = Pond(SPEC, 30, 3)
    add = jax.jit(pond.add)
    state = pond.init()
    inner = dict(flags=np.zeros(3, np.uint8))
    state = add(state, rows())
    state = add(state, rows(action=np.array([0, 9, 0], np.int32), **inner))
    state = add(state, rows(reward=np.array([np.nan, 1, 1], np.float32), **inner))
    state = add(state, rows(**inner))
    with pytest.raises(FaultsFound, match="2 rows with a value outside"):
        pond.check(state)
    state, batch = pond.sample(state, jax.random.key(0), 512)
    keep = np.asarray(batch.mask)
    drawn = set(zip(np.asarray(batch.draw.stream)[keep], batch.draw.ids()[keep], strict=True))
    # Neither as a start, nor as the row a start bootstraps from.
    assert not drawn & {(1, 1), (0, 2), (1, 0), (0, 1)}
    assert len(drawn) == 3 * 3 - 4
    assert np.isfinite(np.asarray(batch.reward)).all()


def test_device_turns_a_contradiction_into_a_cut():
    pond = Pond(SPEC, 30, 3)
    state = pond.add(pond.init(), rows())
    state = pond.add(state, rows())  # FIRST after an ordinary row: the episode was lost
    state = pond.add(state, rows(flags=np.zeros(3, np.uint8)))
    with pytest.raises(FaultsFound, match="3 rows whose flags contradict"):
        pond.check(state)
    batch = pond.take(state, jnp.zeros(2, np.int32), jnp.array([0, 1]))
    assert np.asarray(batch.mask).tolist() == [False, True]


def test_host_refuses_broken_episodes():
    ended = np.array([True, False, False])
    pond = HostPond(SPEC, 30, 3)
    pond.add(rows(terminated=ended))
    before = frozen(pond)
    with pytest.raises(BrokenEpisode, match=r"env 0.*terminated.*BORDER row.*next_flags"):
        pond.add(rows(flags=np.zeros(3, np.uint8)))
    for name, array in frozen(pond).items():
        np.testing.assert_array_equal(array, before[name])
    border = np.array([2, 0, 0], np.uint8)
    pond.add(rows(flags=border, reward=np.float32([0, 1, 1])))
    with pytest.raises(BrokenEpisode, match="after a BORDER row expected a FIRST row"):
        pond.add(rows(flags=np.zeros(3, np.uint8)))
    pond.cut()
    pond.add(rows())  # after a cut anything may follow


def test_single_env_episode_with_border_row():
    pond = HostPond(SPEC, 10)
    row = Rows(np.ones(4, np.float32), 1, 2.0, False, True, int(Flag.FIRST))
    pond.add(row)
    pond.add(border_row(SPEC, np.full(4, 7, np.float32)))
    pond.add(row._replace(truncated=False))
    batch = pond.sample(4)
    np.testing.assert_array_equal(batch.next_obs, np.full((4, 1, 4), 7))
    np.testing.assert_allclose(batch.discount, 0.99)
    assert batch.truncated.all()


ONE = Rows(np.ones(4, np.float32), 1, 2.0, False, False, 1)


@pytest.mark.parametrize(
    "change",
    [
        dict(flags=-1),
        dict(flags=16),
        dict(flags=1.0),
        dict(action=3),
        dict(action=-1),
        dict(action=1.0),
        dict(action=True),
        dict(reward=float("nan")),
        dict(reward=np.float32("inf")),
        dict(terminated=5),
        dict(obs=np.ones(3, np.float32)),
        dict(obs=np.ones(4)[None]),
        dict(extras={"speed": 1.0}),
    ],
    ids=str,
)
def test_one_bad_row_is_refused_and_leaves_the_ring_as_it_was(change):
    pond = HostPond(SPEC, 10)
    pond.add(ONE)
    before = frozen(pond)
    with pytest.raises(SpecMismatch):
        pond.add(ONE._replace(**{"flags": 0, **change}))
    for name, array in frozen(pond).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("ring", [Pond, HostPond])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(capacity=10, num_envs=3), "use 9 or 12"),
        (dict(capacity=0), "capacity"),
        (dict(capacity=-5), "capacity"),
        (dict(capacity=10.5), "capacity"),
        (dict(capacity=10, num_envs=0), "num_envs"),
        (dict(capacity=4, window=Window(stack=3, n_step=2)), "raise capacity or shorten"),
        (dict(capacity=10, window=Window(life_loss_ends=True)), "life_lost"),
    ],
)
def test_impossible_rings_are_refused(ring, settings, words):
    with pytest.raises(BadConfig, match=words):
        ring(SPEC, **settings)


def test_impossible_windows_are_refused():
    for wrong in (
        dict(stack=0),
        dict(n_step=0),
        dict(gamma=1.5),
        dict(pad="edge"),
        dict(stack=1.5),
    ):
        with pytest.raises(BadConfig, match="Window"):
            Window(**wrong)


def test_underfilled_rings_say_so():
    pond = HostPond(SPEC, 30, 3, Window(n_step=2))
    with pytest.raises(NotEnoughData, match="can_sample"):
        pond.sample(4)
    assert not pond.can_sample()
    device = Pond(SPEC, 30, 3, Window(n_step=2))
    state = device.init()
    assert not device.can_sample(state)
    assert not np.asarray(device.sample(state, jax.random.key(0), 8)[1].mask).any()
    only_context = rows(flags=np.full(3, Flag.FIRST | Flag.CONTEXT, np.uint8))
    pond.add(only_context)
    for _ in range(4):
        pond.add(rows(flags=np.full(3, Flag.CONTEXT, np.uint8)))
    with pytest.raises(NotEnoughData, match="none of the 15 stored rows"):
        pond.sample(4)


def test_wrong_env_index_and_out_buffers():
    pond = host()
    with pytest.raises(SpecMismatch, match=r"env must lie in \[0, 2\]"):
        pond.add(jax.tree.map(lambda leaf: leaf[0], rows()), env=3)
    for _ in range(3):
        pond.add(rows(flags=np.zeros(3, np.uint8)))
    batch = pond.sample(8)
    with pytest.raises(SpecMismatch, match="batch of 9"):
        pond.sample(9, out=batch)


def test_64_bit_fields_are_refused_on_a_device():
    with pytest.raises(BadConfig, match="32-bit"):
        Pond(Spec(obs=Field("float64", (4,)), action=Field("int32")), 10)


def test_device_capacity_beyond_32_bits_is_refused():
    with pytest.raises(BadConfig, match="64-bit positions"):
        Pond(SPEC, 2**31)


@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_no_rows_at_all_change_nothing(layout):
    good = rows()
    none = jax.tree.map(lambda leaf: leaf[None][:0], good)  # [0, env]
    host, device = (cls(SPEC, 30, 3, layout=layout) for cls in (HostPond, Pond))
    host.add(good)
    state = device.add(device.init(), good)
    before, kept = host.export(), device.export(state)
    host.add(none)
    state = device.add(state, none)
    for name, array in host.export().items():
        np.testing.assert_array_equal(array, before[name])
    for name, array in device.export(state).items():
        np.testing.assert_array_equal(array, kept[name])


def test_no_rows_at_all_change_no_lake(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 100_000)
    with lake.writer("a", 3) as writer:
        writer.append(jax.tree.map(lambda leaf: leaf[None][:0], rows()))
        writer.append(rows())
        writer.append(jax.tree.map(lambda leaf: leaf[None][:0], rows()))
        writer.commit()
    lake.refresh()
    assert len(lake) == 3


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_cut_means_the_same_on_every_store(place, layout):
    """`Pond.cut(state, 3)` used to cut every env."""

    def cut_off(*envs) -> list[int]:
        if place == "host":
            pond = HostPond(SPEC, 30, 3, layout=layout)
            pond.add(rows())
            pond.cut(*envs)
            pond.add(rows(flags=np.zeros(3, np.uint8)))
            batch = pond.take(np.arange(3), np.zeros(3, int))
        else:
            pond = Pond(SPEC, 30, 3, layout=layout)
            state = pond.cut(pond.add(pond.init(), rows()), *envs)
            state = pond.add(state, rows(flags=np.zeros(3, np.uint8)))
            batch = pond.take(state, jnp.arange(3), jnp.zeros(3, int))
        return np.flatnonzero(~np.asarray(batch.mask)).tolist()

    assert cut_off(1) == cut_off(np.int64(1)) == cut_off(np.array([False, True, False])) == [1]
    assert cut_off() == cut_off(None) == [0, 1, 2]
    assert cut_off(np.zeros(3, bool)) == []
    for wrong in (7, -1, 1.0, True, np.array([1, 2]), np.ones(2, bool)):
        with pytest.raises(SpecMismatch, match="pass an env's index, or one bool per env"):
            cut_off(wrong)


WRONG_ROWS = {
    "half a row": ([0], [1.5], "row ids must be whole numbers"),
    "a flag": ([True], [0], "streams must be whole numbers"),
    "nothing": (None, [0], "streams must be whole numbers"),
    "another stream": ([-1], [0], r"streams must lie in \[0, 2\], got -1 to -1"),
    "no such stream": ([0, 3], [0, 0], r"streams must lie in \[0, 2\], got 0 to 3"),
    "shapes": ([0, 1], [0, 0, 0], r"one shape, got \(2,\) and \(3,\)"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_rows_that_cannot_be_asked_for(case, tmp_path):
    """-1 used to be the last stream, and 1.5 the row 1."""
    stream, row, said = WRONG_ROWS[case]
    pond = HostPond(SPEC, 30, 3)
    pond.add(rows())
    for ask in (pond.take, pond.read):
        with pytest.raises(BadConfig, match=said):
            ask(stream, row)
    with pytest.raises(BadConfig, match=r"same length, got shapes \(2,\) and \(1,\)"):
        pond.take([0, 1], [0])
    lake = Lake.create(tmp_path / "lake", SPEC, 100_000)
    with lake.writer("a", 3) as writer:
        writer.append(rows())
    lake.refresh()
    if "whole numbers" in said:
        for wrong in (
            lambda: lake.take(stream, row),
            lambda: lake.gather(stream, row, 2),
            lambda: lake.read(stream and stream[0], 0, row[0]),
        ):
            with pytest.raises(BadConfig, match=r"must be (a )?whole number"):
                wrong()
    device = Pond(SPEC, 30, 3)
    state = device.add(device.add(device.init(), rows()), rows(flags=np.zeros(3, np.uint8)))
    batch = device.take(state, np.array([0, -1, 3, 0, 0]), np.array([0, 0, 0, -10, 10]))
    assert np.asarray(batch.mask).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("wrong", [0, "uniform", [], 1.5])
def test_what_is_no_window_no_sampler_and_no_number_of_threads(wrong, tmp_path):
    lake, rng = Lake.create(tmp_path / "lake", SPEC, 100_000), np.random.default_rng(0)
    for refused, call in (
        ("window", lambda: HostPond(SPEC, 30, 3, window=wrong)),
        ("window", lambda: Pond(SPEC, 30, 3, window=wrong)),
        ("window", lambda: lake.sample(rng, 4, wrong)),
        ("window", lambda: lake.starts(wrong)),
        ("sampler", lambda: HostPond(SPEC, 30, 3, sampler=wrong)),
        ("sampler", lambda: Pond(SPEC, 30, 3, sampler=wrong)),
        ("sampler", lambda: lake.sample(rng, 4, sampler=wrong)),
        ("threads", lambda: lake.sample(rng, 4, threads=wrong)),
        ("threads", lambda: lake.gather([0], [0], 2, threads=wrong)),
    ):
        with pytest.raises(BadConfig, match=refused):
            call()


@pytest.mark.parametrize("wrong", [None, "x", -1, 1.5, [], np.zeros((2, 2), complex), {}])
@pytest.mark.parametrize("place", [HostPond, Pond])
def test_an_export_in_which_anything_is_another_thing_is_refused(place, wrong):
    pond = place(SPEC, 30, 3, sampler=prioritized())
    arrays = HostPond(SPEC, 30, 3, sampler=prioritized()).export()
    for name in set(arrays) - {"rng"}:
        if isinstance(wrong, float) and name in ("priorities/highest", "priorities/samples"):
            continue  # a number, if not the one that was there
        with pytest.raises(BadState):
            pond.restore({**arrays, name: wrong})
    with pytest.raises(BadState, match="restore takes the arrays"):
        pond.restore(wrong if not isinstance(wrong, dict) else None)


def test_what_is_no_draw_no_batch_and_no_out(tmp_path):
    pond = HostPond(SPEC, 30, 3, sampler=prioritized())
    with pytest.raises(SpecMismatch, match=r"'draw'.*pass `batch.draw`"):
        pond.update_priorities((0, 1), np.ones(2))
    with pytest.raises(SpecMismatch, match="1 or more, got True"):
        pond.sample(True)
    lake = Lake.create(tmp_path / "lake", SPEC, 100_000)
    with lake.writer("a", 3) as writer:
        writer.append(rows())
    with pytest.raises(SpecMismatch, match="a dict of arrays by path"):
        lake.gather([0], [0], 2, out=[1])
