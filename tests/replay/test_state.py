"""Export and import of a whole ring: exact, across placements, refused when it does not belong."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from oracle import check_batch
from scenarios import PATTERNS, SPEC, SUBJECTS, Stream, model_of, pick, to_rows

from millpond import BadState, HostPond, Pond, Window, prioritized

WINDOW = Window(stack=3, n_step=2)


def filled(placement: str, rows: int = 40):
    subject = SUBJECTS[placement](WINDOW, 16, 3, seed=1)
    chance = random.Random(2)
    streams = [Stream(env, PATTERNS["everything"], chance) for env in range(3)]
    for _ in range(rows):
        subject.add(pick(to_rows([[s.next() for s in streams]]), 0))
    return subject, streams


def equal(a: dict, b: dict) -> None:
    assert set(a) - {"rng"} == set(b) - {"rng"}
    for name in set(a) - {"rng"}:
        assert a[name].dtype == b[name].dtype, name
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


STREAMS = ("device-stream", "host-stream")


@pytest.mark.parametrize("source", STREAMS)
@pytest.mark.parametrize("target", STREAMS)
def test_a_state_moves_between_placements(source, target):
    one, streams = filled(source)
    other = SUBJECTS[target](WINDOW, 16, 3)
    other.restore(one.export())
    equal(one.export(), other.export())
    for _ in range(5):  # and both go on alike
        block = to_rows([[s.next() for s in streams]])
        one.add(pick(block, 0))
        other.add(pick(block, 0))
    equal(one.export(), other.export())


def test_a_restored_host_pond_draws_the_same_numbers():
    one, _ = filled("host-stream")
    one.sample(10)
    other = SUBJECTS["host-stream"](WINDOW, 16, 3, seed=999)
    other.restore(one.export())
    for a, b in zip(
        jax.tree.leaves(one.sample(64)), jax.tree.leaves(other.sample(64)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_export_is_a_copy():
    one, streams = filled("host-stream")
    before = one.export()
    kept = {name: array.copy() for name, array in before.items()}
    one.add(pick(to_rows([[s.next() for s in streams]]), 0))
    equal(before, kept)


def test_ids_pass_32_bits_on_both_placements():
    one, streams = filled("host-stream")
    arrays = one.export()
    laps = (2**33 // 16) * 16
    arrays["added"] = arrays["added"] + laps
    for placement in STREAMS:
        subject = SUBJECTS[placement](WINDOW, 16, 3)
        subject.restore(arrays)
        subject.add(pick(to_rows([[s.next() for s in streams]]), 0))
        ids = subject.sample(256).draw.ids()
        assert ids.min() > 2**33
        assert ids.max() < laps + 41
        streams = filled("host-stream")[1]


def test_the_device_id_carries_over_into_its_high_word():
    pond = Pond(SPEC, 48, 3, WINDOW)
    arrays = filled("device-stream", 30)[0].export()
    arrays["added"] = arrays["added"] * 0 + (2**32 - 8)
    state = pond.restore(arrays)
    streams = [Stream(env, PATTERNS["long"], random.Random(env)) for env in range(3)]
    state = pond.cut(state)
    for _ in range(3):
        state = pond.add(state, to_rows([[s.next() for s in streams] for _ in range(5)]))
    exported = pond.export(state)
    assert (exported["added"] == 2**32 + 7).all()
    ids = pond.sample(state, jax.random.key(0), 512)[1].draw.ids()
    assert ids.min() >= 2**32 - 9
    assert ids.max() > 2**32


def test_states_that_do_not_belong_are_refused():
    one, _ = filled("host-stream")
    arrays = one.export()
    from millpond import Field, Spec

    other = Spec(obs=Field("float32", (2,)), action=Field("int32"))
    with pytest.raises(BadState, match="lacks"):
        one.pond.restore({})
    with pytest.raises(BadState, match=r"lacks|spec"):
        HostPond(other, 48, 3).restore(arrays)
    with pytest.raises(BadState, match="capacity and num_envs"):
        HostPond(SPEC, 96, 3).restore(arrays)
    with pytest.raises(BadState, match="damaged"):
        one.pond.restore({**arrays, "columns/action": arrays["columns/action"].astype(np.int64)})
    uneven = {**arrays, "added": arrays["added"] + np.array([0, 16, 0])}
    with pytest.raises(BadState, match="lockstep"):
        Pond(SPEC, 48, 3, WINDOW).restore(uneven)
    equal(one.export(), arrays)


def test_batches_never_share_memory_with_the_ring_and_out_is_reused():
    one, streams = filled("host-stream")
    batch = one.sample(32)
    copy = jax.tree.map(np.copy, batch)
    for _ in range(16):
        one.add(pick(to_rows([[s.next() for s in streams]]), 0))
    for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(copy), strict=True):
        np.testing.assert_array_equal(a, b)
    again = one.pond.sample(32, out=batch)
    assert again is batch
    assert not np.array_equal(again.draw.row, copy.draw.row)


def test_seeds_decide_the_draws_and_no_global_generator_does():
    draws = []
    for seed, noise in ((1, 5), (1, 6), (2, 5)):
        subject = SUBJECTS["host-stream"](WINDOW, 16, 3, seed=seed)
        streams = [Stream(e, PATTERNS["long"], random.Random(e)) for e in range(3)]
        subject.add(to_rows([[s.next() for s in streams] for _ in range(12)]))
        np.random.seed(noise)
        draws.append(subject.sample(64).draw.row.tolist())
    assert draws[0] == draws[1] != draws[2]


RANKED = ("device-stream", "device-per_env", "host-stream", "host-per_env")


def ranked(subject: str, window: Window, alpha: float = 0.6, rows: int = 40):
    ring = SUBJECTS[subject](window, 16, 3, seed=1, sampler=prioritized(alpha=alpha))
    model = model_of(window, 16, 3)
    streams = [Stream(env, PATTERNS["everything"], random.Random(env)) for env in range(3)]
    steps = [[stream.next() for stream in streams] for _ in range(rows)]
    for env, row in ((env, row) for step in steps for env, row in enumerate(step)):
        model.add(env, row)
    ring.add(to_rows(steps))
    return ring, model


@pytest.mark.parametrize("subject", RANKED)
@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 1)])
@pytest.mark.parametrize("says", [True, False])
def test_priorities_restored_under_another_window_are_those_of_valid_starts(
    subject, before, after, says
):
    """Exported with n_step 1 and restored with 5, samples joined new rows to old."""
    one, _ = ranked(subject, Window(stack=2, n_step=before))
    other, model = ranked(subject, Window(stack=2, n_step=after))
    arrays = one.export()
    if not says:
        del arrays["meaning"]  # as version 0.1 exported
    other.restore(arrays)
    valid = model.transitions()
    check_batch(other.sample(2048), valid, every_valid=True)
    mass = other.export()["priorities/mass"]
    assert (mass > 0).sum() == len(valid)


def test_a_priority_of_zero_stays_zero_and_a_new_start_gets_the_highest():
    one, _ = ranked("host-stream", Window(n_step=1), alpha=1.0)
    batch = one.sample(2048)
    starts = list(zip(batch.draw.stream.tolist(), batch.draw.row.tolist(), strict=True))
    one.update(batch.draw, np.array([0.0 if s == starts[0] else 3.0 for s in starts]))
    other, model = ranked("host-stream", Window(n_step=2), alpha=0.5)
    other.restore(one.export())
    mass = other.export()["priorities/mass"].reshape(16, 3)
    for env, row in model.transitions():
        want = 0.0 if (env, row) == starts[0] else 3.0**0.5
        assert mass[row % 16, env] == pytest.approx(want)


DAMAGE = {
    "negative count": ("added", lambda a: -a),
    "NaN mass": ("priorities/mass", lambda a: np.where(a > 0, np.nan, a)),
    "negative mass": ("priorities/mass", lambda a: a - 1),
    "no highest": ("priorities/highest", lambda a: a * np.nan),
    "short generator": ("rng", lambda a: a[:3]),
    "generator of another kind": ("rng", lambda a: a.astype(float)),
    "unknown flags": ("flags", lambda a: a | np.uint8(128)),
    "faults of another ring": ("faults", lambda a: a[:, :1]),
    "unreadable window": ("meaning", lambda a: a[:7]),
}


@pytest.mark.parametrize(
    ("subject", "damage"),
    [
        (subject, damage)
        for subject in ("device-stream", "host-stream")
        for damage, (name, _) in DAMAGE.items()
        if (subject, name) != ("device-stream", "rng")  # a device's key is the caller's
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(subject, damage):
    name, harm = DAMAGE[damage]
    ring, _ = ranked(subject, WINDOW)
    arrays = ring.export()
    with pytest.raises(BadState, match="damaged"):
        ring.pond.restore({**arrays, name: harm(arrays[name])})
    equal(ring.export(), arrays)


def test_the_rings_of_several_agents_are_exported_one_by_one():
    pond = Pond(SPEC, 48, 3, WINDOW)
    states = pond.init_many(2)
    with pytest.raises(BadState, match=r"one by one: pond.export\(pond.one\(states, 0\)\)"):
        pond.export(states)
    for layout in ("stream", "per_env"):
        pond = Pond(SPEC, 48, 3, WINDOW, layout=layout)
        one = pond.one(pond.init_many(2), 1)
        equal(pond.export(one), pond.export(pond.restore(pond.export(pond.init()))))
