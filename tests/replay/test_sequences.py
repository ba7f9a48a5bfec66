"""Sequences beyond the contract: short episodes, ends, stored state, bad input, other windows."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import decode, frame_of
from scenarios import (
    PATTERNS,
    SPEC,
    SUBJECTS,
    DeviceSubject,
    HostSubject,
    Stream,
    model_of,
    to_rows,
)
from sequence_oracle import SequenceModel, check_sequences, started
from test_contract import SAMPLERS, SEQUENCES
from test_refused_rows import play as play_refused

from millpond import (
    BadConfig,
    FaultsFound,
    Field,
    Flag,
    HostPond,
    Lake,
    NotEnoughData,
    Pond,
    Rows,
    Sequence,
    Spec,
    SpecMismatch,
    Window,
    prioritized,
    sequence_priority,
)
from millpond.flow import Fill
from millpond.replay.bits import remainder, words

PLAIN = Spec(Field("float32", (1,)), Field("int32", (), 0, 3), {"state": Field("float32", (2,))})


def episode(steps: int, first: float = 1.0, truncated: bool = False) -> Rows:
    """An episode of one env and its border row, [steps + 1, 1]; rewards and obs count up."""
    number = np.arange(steps + 1, dtype=np.float32)
    last = number == steps - 1
    flags = np.zeros(steps + 1, np.uint8)
    flags[0], flags[-1] = Flag.FIRST, Flag.BORDER
    rows = Rows(
        obs=(first + number)[:, None],
        action=np.zeros(steps + 1, np.int32),
        reward=np.where(number < steps, 10 + number, 0).astype(np.float32),
        terminated=last & (not truncated),
        truncated=last & truncated,
        flags=flags,
        extras={"state": np.stack([first + number, -number], -1)},
    )
    return jax.tree.map(lambda leaf: leaf[:, None], rows)


@pytest.mark.parametrize("store", ["host", "device", "lake"])
def test_a_finished_episode_of_4_steps_gives_its_4_rows_at_once(store, tmp_path):
    window, rows = Sequence(64, end="stop", gamma=0.9), episode(4)
    if store == "host":
        pond = HostPond(PLAIN, 100, window=window)
        pond.add(rows)
        batch = pond.take(np.zeros(1, int), np.zeros(1, int))
        assert set(pond.sample(64).draw.row.tolist()) == {0, 1, 2, 3}
    elif store == "device":
        pond = Pond(PLAIN, 100, window=window)
        state = jax.jit(pond.add)(pond.init(), rows)
        batch = jax.jit(pond.sample, static_argnums=2)(state, jax.random.key(0), 64)[1]
        assert set(batch.draw.ids().tolist()) == {0, 1, 2, 3}
        batch = jax.jit(pond.take)(state, np.zeros(1, np.int32), np.zeros(1, np.int32))
    else:
        lake = Lake.create(tmp_path / "lake", PLAIN, 10_000)
        with lake.writer("a", 1) as writer:
            writer.append(rows)
        lake.refresh()
        batch = lake.take([0], [0], window)
    mask = np.asarray(batch.mask[0])
    assert mask.tolist() == [True] * 4 + [False] * 60
    assert np.asarray(batch.reward[0])[:5].tolist() == [10, 11, 12, 13, 0]
    assert np.asarray(batch.obs[0])[:5, 0, 0].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(np.asarray(batch.discount[0])[:5], [0.9, 0.9, 0.9, 0, 0])
    assert not np.asarray(batch.reward[0])[4:].any()


def test_across_a_truncation_the_true_final_observation_follows_the_last_row():
    pond = HostPond(PLAIN, 40, window=Sequence(6, gamma=0.9))
    pond.add(episode(2, 1, truncated=True))
    pond.add(episode(5, 100))
    batch = pond.take(np.zeros(1, int), np.zeros(1, int))
    assert batch.obs[0, :, 0, 0].tolist() == [1, 2, 3, 100, 101, 102, 103]
    assert batch.mask[0].tolist() == [True, True, False, True, True, True]
    assert batch.first[0].tolist() == [True, False, False, True, False, False]
    assert batch.truncated[0].tolist() == [False, True, False, False, False, False]
    # The row that was truncated bootstraps from its final observation; the border row from none.
    np.testing.assert_allclose(batch.discount[0], [0.9, 0.9, 0, 0.9, 0.9, 0.9])


def test_the_stored_state_is_that_of_the_first_row_that_is_there():
    pond = HostPond(PLAIN, 40, window=Sequence(3, burn_in=4, end="stop"))
    pond.add(episode(8))
    batch = pond.take(np.zeros(2, int), np.array([2, 5]))
    assert batch.mask.tolist() == [
        [False, False, True, True, True, True, True],
        [True, True, True, True, True, True, True],
    ]
    assert batch.extras["state"][:, 0].tolist() == [[1, 0], [2, -1]]  # of row 0, and of row 1
    assert batch.first[:, :5].tolist() == [[False, False, True, False, False], [False] * 5]


def test_arrays_given_as_out_are_used_again():
    pond = HostPond(PLAIN, 40, window=Sequence(3), seed=4)
    pond.add(episode(20))
    batch = pond.sample(16)
    twin = HostPond(PLAIN, 40, window=Sequence(3), seed=4)
    twin.add(episode(20))
    other = twin.sample(16)
    again = pond.sample(16, out=batch)
    assert again.obs is batch.obs
    for ours, theirs in zip(
        jax.tree.leaves(again), jax.tree.leaves(twin.sample(16, out=other)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(SpecMismatch, match="16 sequences of 3 rows"):
        pond.sample(16, out=pond.sample(8))
    plain = HostPond(PLAIN, 40)
    plain.add(episode(20))
    with pytest.raises(SpecMismatch, match="16 sequences of 3 rows"):
        pond.sample(16, out=plain.sample(16))


@pytest.mark.parametrize("shape", [(), (3,), (64, 64)], ids=["number", "short", "long"])
@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_rows_copied_as_one_stretch_are_those_that_are_stored(shape, layout):
    """Stretches of a few bytes and of many, those that go around the ring's end too."""
    spec, length = Spec(Field("float32", shape), Field("int32", (), 0, 999)), 20
    pond = HostPond(spec, 2 * length, 2, window=Sequence(9), layout=layout)
    first, no = np.full(2, Flag.FIRST, np.uint8), np.zeros(2, bool)
    for step in range(3 * length + 7):
        number = np.array([step, 500 + step], np.int32)
        obs = np.broadcast_to(number.reshape(2, *(1,) * len(shape)), (2, *shape))
        flags = first if step == 0 else np.zeros(2, np.uint8)
        pond.add(Rows(obs.astype(np.float32), number, np.float32(number), no, no, flags))
    batch = pond.sample(256)
    assert set(batch.draw.row.tolist()) == set(range(2 * length + 7, 3 * length - 2))
    wanted = 500 * batch.draw.stream[:, None] + batch.draw.row[:, None] + np.arange(10)
    np.testing.assert_array_equal(batch.obs.reshape(256, 10, -1)[..., 0], wanted)
    np.testing.assert_array_equal(batch.obs.reshape(256, 10, -1)[..., -1], wanted)
    np.testing.assert_array_equal(batch.action, wanted[:, :-1])
    np.testing.assert_array_equal(batch.reward, wanted[:, :-1])


BAD = {
    "length 0": ({"length": 0}, "length must be a whole number"),
    "length 2.0": ({"length": 2.0}, "length must be a whole number"),
    "stack 0": ({"stack": 0}, "stack must be a whole number"),
    "burn-in -1": ({"burn_in": -1}, "burn_in must be a whole number"),
    "every 0": ({"every": 0}, "every must be a whole number"),
    "every 65536": ({"every": 65536}, r"\[1, 65535\], got 65536"),
    "end": ({"end": "wrap"}, "'cross' or 'stop', got 'wrap'"),
    "gamma": ({"gamma": 1.5}, "gamma must lie in"),
    "pad": ({"pad": "last"}, "pad must be"),
    "clip": ({"reward_clip": float("nan")}, "reward_clip must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_sequence_is_refused(case):
    changes, said = BAD[case]
    with pytest.raises(BadConfig, match=said):
        Sequence(**{"length": 4, **changes})


@pytest.mark.parametrize("kind", [Pond, HostPond])
def test_what_a_ring_cannot_hold_is_refused(kind):
    with pytest.raises(BadConfig, match="span 101 rows, a stream keeps 100; raise capacity"):
        kind(PLAIN, 200, 2, window=Sequence(100))
    kind(PLAIN, 200, 2, window=Sequence(99))
    with pytest.raises(BadConfig, match="'shared' holds single transitions in no order"):
        kind(PLAIN, 200, 2, window=Sequence(4), layout="shared")
    with pytest.raises(BadConfig, match="declare"):
        kind(PLAIN, 200, 2, window=Sequence(4, life_loss_ends=True))


def test_a_lake_refuses_what_it_cannot_hold(tmp_path):
    lake = Lake.create(tmp_path / "lake", PLAIN, 10_000, segment_rows=4096)
    rng = np.random.default_rng(0)
    with pytest.raises(BadConfig, match="Sequence: stack 1 and length 9000 span"):
        lake.sample(rng, 4, Sequence(9000))
    with pytest.raises(NotEnoughData, match="4 sequences asked for"):
        lake.sample(rng, 4, Sequence(8, every=3))


def test_without_a_sequence_the_host_says_what_is_missing():
    pond = HostPond(PLAIN, 40, window=Sequence(6))
    pond.add(episode(3))
    assert not pond.can_sample()
    with pytest.raises(NotEnoughData, match=r"sequences asked for.*needs 7 rows of one env"):
        pond.sample(4)
    pond.add(episode(3))
    assert pond.can_sample()


OTHERS = {
    "window": Window(stack=2, n_step=3),
    "longer": Sequence(7, stack=2),
    "stops": Sequence(3, stack=2, end="stop"),
    "every": Sequence(4, stack=2, every=4),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_snapshot_of_another_window_gives_masses_to_valid_starts_only(other, turned):
    """Restored as they were, samples would join rows that do not follow each other."""
    windows = [OTHERS[other], Sequence(4, stack=2)]
    rings = []
    for window in reversed(windows) if turned else windows:
        ring = HostSubject(window, 16, 3, sampler=prioritized())
        model = model_of(window, 16, 3)
        if isinstance(model, SequenceModel):
            model.aged = True
        streams = [Stream(env, PATTERNS["everything"], random.Random(env)) for env in range(3)]
        steps = [[stream.next() for stream in streams] for _ in range(40)]
        for env, row in ((env, row) for step in steps for env, row in enumerate(step)):
            model.add(env, row)
        ring.add(to_rows(steps))
        rings.append((ring, model))
    (one, _), (ring, model) = rings
    ring.restore(one.export())
    mass = ring.export()["priorities/mass"].reshape(16, 3)
    valid = {(env, row % 16) for env, row in model.transitions()}
    assert {(env, at) for at, env in np.argwhere(mass > 0).tolist()} == valid


@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_contract_of_sequences_without_refused_rows(layout):
    window = SEQUENCES["stop-stack2-burn2-first"]
    kind = type("Subject", (DeviceSubject,), {"layout": layout})
    for seed in range(3):
        subject = kind(window, 16, 3, seed, SAMPLERS["uniform"])
        played = play_refused(subject, Window(), seed, 16, 3)
        model = SequenceModel(3, 16, window)
        model.streams = played.streams
        with pytest.raises(FaultsFound, match="outside its bounds"):
            subject.size()
        expected = model.transitions()
        check_sequences(subject.sample(2048), window, expected, every_valid=True)


@pytest.mark.parametrize("name", ["cross-burn3-clip", "stop-stack2-burn2-first"])
def test_filled_ponds_give_the_lakes_sequences(tmp_path, name):
    window, envs, core = SEQUENCES[name], 4, 16
    lake = Lake.create(tmp_path / "lake", SPEC, 10_000)
    model = SequenceModel(3, 10**9, window)
    streams = [Stream(env, PATTERNS["everything"], random.Random(env)) for env in range(3)]
    steps = [[stream.next() for stream in streams] for _ in range(200)]
    for env, row in ((env, row) for step in steps for env, row in enumerate(step)):
        model.add(env, row)
    with lake.writer("a", 3) as writer:
        writer.append(to_rows(steps))
    lake.refresh()
    run = window.before + core + window.n_step
    pond = HostPond(SPEC, run * 10 * envs, envs, window=window)
    with Fill(lake, pond, core=core, seed=3) as filling:
        filling.whole()
    at = np.repeat(np.arange(envs), run * 10), np.tile(np.arange(run * 10), envs)
    batch = pond.take(*at)
    keep = started(batch, window)
    expected = model.transitions()
    batch = jax.tree.map(lambda leaf: leaf[keep], batch)
    frames = decode(batch.obs)[:, window.burn_in, -1]
    by_frame = {frame_of(env, i): (env, i) for env, i in expected}
    where = np.array([by_frame[frame] for frame in frames.tolist()])
    draw = batch.draw._replace(stream=where[:, 0], row=where[:, 1])
    check_sequences(batch._replace(draw=draw), window, expected, every_valid=False)
    assert len(set(map(tuple, where.tolist()))) > 0.9 * len(expected)


def test_sequences_inside_scan_and_vmap_equal_those_outside():
    window = Sequence(3, burn_in=2, end="stop")
    pond = Pond(PLAIN, 32, window=window)
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(episode(5) for _ in range(4)))
    state = jax.jit(pond.add)(pond.init(), rows)
    keys = jax.random.split(jax.random.key(1), 3)

    @jax.jit
    def scanned(state, keys):
        return jax.lax.scan(lambda s, key: pond.sample(s, key, 8), state, keys)[1]

    inside, alone = scanned(state, keys), jax.jit(pond.sample, static_argnums=2)
    several = pond.init_many(2)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), rows)
    add = jax.vmap(pond.add, in_axes=(pond.axes, 0), out_axes=pond.axes)
    several = jax.jit(add)(several, both)
    sample = jax.jit(jax.vmap(lambda s, k: pond.sample(s, k, 8)[1], in_axes=(pond.axes, None)))
    for turn, key in enumerate(keys):
        _, outside = alone(state, key, 8)
        agents = sample(several, key)
        for one, other, agent in zip(
            *(jax.tree.leaves(tree) for tree in (inside, outside, agents)), strict=True
        ):
            np.testing.assert_array_equal(one[turn], other)
            np.testing.assert_array_equal(agent[1], other)


@pytest.mark.parametrize("every", [1, 3, 7, 4096, 65535])
def test_multiples_of_ids_beyond_32_bits(every):
    ids = [0, 5, every, 2**32 - 1, 2**32, 2**32 * every, 7 * 2**40 + 11, 2**63 - 1]
    found = remainder(jnp.asarray(np.stack([words(one) for one in ids])), every)
    assert np.asarray(found).tolist() == [one % every for one in ids]


@pytest.mark.parametrize("subject", ["host-stream", "host-per_env", "device-stream"])
def test_starts_are_multiples_after_many_rows(subject):
    """A ring that has received more rows than 32 bits count still starts at multiples of ids."""
    window = Sequence(3, every=5)
    ring = SUBJECTS[subject](window, 32, 1)
    stream = Stream(0, PATTERNS["long"], random.Random(1))
    ring.add(to_rows([[stream.next()] for _ in range(32)]))
    arrays = ring.export()
    ring.restore({**arrays, "added": arrays["added"] + 32 * (2**28 + 1)})
    ids = ring.sample(512).draw.ids()
    assert (ids > 2**32).all()
    assert (ids % 5 == 0).all()
    assert len(set(ids.tolist())) >= 4


def test_priorities_of_sequences_mix_the_largest_and_the_mean():
    errors = np.array([[1, -4, 3], [2, np.nan, 7], [5, 5, 5]], np.float32)
    mask = np.array([[True, True, True], [True, False, False], [False, False, False]])
    for xp in (np, jnp):
        got = sequence_priority(xp.asarray(errors), xp.asarray(mask))
        np.testing.assert_allclose(np.asarray(got), [0.9 * 4 + 0.1 * 8 / 3, 2, 0], rtol=1e-6)
    half = sequence_priority(errors, mask, mix=0.5)
    np.testing.assert_allclose(half, [2 + 4 / 3, 2, 0], rtol=1e-6)
    with pytest.raises(SpecMismatch, match=r"'errors'.*\(3, 2\).*\(3, 3\)"):
        sequence_priority(errors, mask[:, 1:])
    with pytest.raises(BadConfig, match="mix must lie in"):
        sequence_priority(errors, mask, mix=1.1)


@pytest.mark.parametrize("subject", ["host-stream", "device-stream"])
def test_sequences_are_drawn_by_the_priority_of_their_start(subject):
    ring = SUBJECTS[subject](Sequence(4), 32, 1, sampler=prioritized(alpha=1.0))
    stream = Stream(0, PATTERNS["long"], random.Random(1))
    ring.add(to_rows([[stream.next()] for _ in range(20)]))
    batch = ring.sample(64)
    chosen = int(batch.draw.ids()[0])
    ring.update(batch.draw, np.where(batch.draw.ids() == chosen, 1e6, 1e-6).astype(np.float32))
    drawn = ring.sample(64)
    assert (drawn.draw.ids() == chosen).mean() > 0.9
    assert np.asarray(drawn.weight).shape == (64,)
