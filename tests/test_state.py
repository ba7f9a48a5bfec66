"""Export and import of a whole ring: exact, across placements, refused when it does not belong."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from scenarios import PATTERNS, SPEC, SUBJECTS, Stream, pick, to_rows

from millpond import BadState, HostPond, Pond, Window

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
