"""Bugs found in other replay libraries that a ring in memory can have; each one is a test here.

Named after what went wrong there. Numbers are those of the list in docs/replay.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond import (
    BadConfig,
    Field,
    Flag,
    HostPond,
    NotEnoughData,
    Pond,
    Rows,
    Spec,
    SpecMismatch,
    Window,
    next_flags,
    prioritized,
)

SPEC = Spec(obs=Field("float32", (2,)), action=Field("int32", (), 0, 9))


def steps(time: int, envs: int, start: int = 0, first: bool = True) -> Rows:
    """[time, env] rows whose observation names (env, row): no episode ends."""
    row = np.arange(start, start + time)[:, None] + np.zeros((1, envs), int)
    env = np.zeros((time, 1), int) + np.arange(envs)
    flags = np.zeros((time, envs), np.uint8)
    flags[0] = Flag.FIRST if first else 0
    return Rows(
        np.stack([env, row], -1).astype(np.float32),
        (row % 10).astype(np.int32),
        row.astype(np.float32),
        np.zeros((time, envs), bool),
        np.zeros((time, envs), bool),
        flags,
    )


@pytest.mark.parametrize(
    "head", [0, 1, 4, 7, *(pytest.param(head, marks=pytest.mark.full) for head in (2, 3, 5, 6))]
)
def test_1_rows_across_the_write_head_are_never_joined(head):
    """A sequence sampled across the head mixed the newest row with the oldest."""
    pond = Pond(SPEC, 8, 1, Window(stack=2, n_step=2))
    state = pond.add(pond.init(), steps(16 + head, 1))
    state, batch = pond.sample(state, jax.random.key(0), 256)
    rows = np.asarray(batch.obs)[..., 1]
    assert np.asarray(batch.mask).all()
    assert (np.diff(rows, axis=1) == 1).all()
    np.testing.assert_array_equal(np.asarray(batch.next_obs)[..., 1], rows + 2)


def test_1_an_underfilled_ring_never_answers_with_zeros():
    """Sampling too early returned rows of zeros as if they were data."""
    with pytest.raises(NotEnoughData):
        HostPond(SPEC, 100).sample(4)
    pond = Pond(SPEC, 100)
    state = pond.add(pond.init(), steps(1, 1))
    assert not np.asarray(pond.sample(state, jax.random.key(0), 64)[1].mask).any()


@pytest.mark.parametrize("laps", [0, 2**27, 2**28])
def test_3_counters_do_not_wrap_at_32_bits(laps):
    """A 32-bit counter wrapped after an hour of training."""
    host = HostPond(SPEC, 16, 1)
    host.add(steps(16, 1))
    arrays = host.export()
    arrays["added"] = arrays["added"] + laps * 16
    pond = Pond(SPEC, 16, 1)
    state = pond.restore(arrays)
    for start in range(0, 40, 5):
        state = pond.add(state, steps(5, 1, start, first=False))
    ids = pond.sample(state, jax.random.key(0), 512)[1].draw.ids()
    assert ids.min() >= laps * 16 + 40
    assert ids.max() == laps * 16 + 54  # 56 rows were added; the last start has one row after it


@pytest.mark.parametrize("ring", [Pond, HostPond])
def test_6_next_observations_with_several_envs_are_the_envs_own(ring):
    """next = the following slot, which with several envs belongs to another env: 94% wrong."""
    pond = ring(SPEC, 70, 7)
    if ring is Pond:
        state = pond.add(pond.init(), steps(25, 7))
        batch = pond.sample(state, jax.random.key(0), 512)[1]
    else:
        pond.add(steps(25, 7))
        batch = pond.sample(512)
    obs, after = np.asarray(batch.obs)[:, 0], np.asarray(batch.next_obs)[:, 0]
    np.testing.assert_array_equal(after[:, 0], obs[:, 0])
    np.testing.assert_array_equal(after[:, 1], obs[:, 1] + 1)


def ending(truncate: bool) -> HostPond:
    """One episode of five steps, its border row, and a new episode."""
    pond = HostPond(SPEC, 40, 1, Window(n_step=3, gamma=0.5))
    flags, no = np.array([Flag.FIRST], np.uint8), np.zeros(1, bool)
    for row in range(14):
        ends = np.array([row == 4])
        step = steps(1, 1, row)
        pond.add(
            Rows(
                step.obs[0],
                step.action[0],
                step.reward[0] * (row != 5),
                no if truncate else ends,
                ends if truncate else no,
                flags,
            )
        )
        flags = next_flags(flags, no if truncate else ends, ends if truncate else no)
    return pond


def test_6_a_truncated_row_has_its_final_observation_not_itself():
    """Truncated and newest rows got next = self."""
    batch = ending(truncate=True).take(np.zeros(5, int), np.arange(5))
    assert batch.mask.all()
    np.testing.assert_array_equal(batch.next_obs[:, 0, 1], [3, 4, 5, 5, 5])
    np.testing.assert_allclose(batch.discount, [0.125, 0.125, 0.125, 0.25, 0.5])


def test_6_truncation_keeps_the_n_step_tail_and_every_item_comes_once():
    """The last n-1 starts of a truncated episode were dropped; terminal ones came four times."""
    pond = ending(truncate=False)
    batch = pond.take(np.zeros(14, int), np.arange(14))
    assert np.flatnonzero(batch.mask).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    np.testing.assert_array_equal(batch.steps[:5], [3, 3, 3, 2, 1])
    np.testing.assert_allclose(batch.reward[2:5], [2 + 1.5 + 1, 3 + 2, 4])
    drawn = np.bincount(pond.sample(20_000).draw.row, minlength=14)[batch.mask]
    assert drawn.max() < 1.2 * drawn.min()


def test_7_a_saved_ring_keeps_head_ids_and_priorities():
    """Save order was physical; the head and the priorities were lost."""
    one = HostPond(SPEC, 16, 1, sampler=prioritized(alpha=1.0), seed=3)
    one.add(steps(21, 1))
    batch = one.sample(64)
    one.update_priorities(batch.draw, 1.0 + batch.draw.row % 3)
    two = HostPond(SPEC, 16, 1, sampler=prioritized(alpha=1.0), seed=4)
    two.restore(one.export())
    one.add(steps(3, 1, 21, first=False))
    two.add(steps(3, 1, 21, first=False))
    a, b = one.sample(128), two.sample(128)
    np.testing.assert_array_equal(a.draw.row, b.draw.row)
    np.testing.assert_array_equal(a.weight, b.weight)
    np.testing.assert_array_equal(a.obs, b.obs)


@pytest.mark.parametrize("capacity", [2, 16, 64, 255, 256, 257, 4096])
def test_8_capacities_at_powers_of_the_fan_do_not_overflow_the_tree(capacity):
    """A power-of-two capacity wrote past the end of the sum tree."""
    pond = Pond(SPEC, capacity, 1, sampler=prioritized())
    state = pond.add(pond.init(), steps(capacity + 1, 1))
    state, batch = pond.sample(state, jax.random.key(0), 512)
    ids = batch.draw.ids()
    assert np.asarray(batch.mask).all()
    assert ids.min() >= 1
    assert ids.max() < capacity


def test_8_one_nan_priority_poisons_nothing():
    """One NaN priority made every later sample NaN."""
    pond = Pond(SPEC, 64, 1, sampler=prioritized())
    state = pond.add(pond.init(), steps(64, 1))
    state, batch = pond.sample(state, jax.random.key(0), 32)
    state = pond.update_priorities(state, batch.draw, jnp.full(32, jnp.nan))
    state, batch = pond.sample(state, jax.random.key(1), 32)
    assert np.asarray(batch.mask).all()
    assert np.isfinite(np.asarray(batch.weight)).all()


def test_8_a_priority_for_a_row_that_was_never_there_is_ignored():
    """An index out of range crashed the process."""
    pond = HostPond(SPEC, 64, 1, sampler=prioritized())
    pond.add(steps(64, 1))
    draw = pond.sample(4).draw
    for rows in ([10**9, -5, 64, 63], [2**62, -(2**62), 0, 0]):
        pond.update_priorities(draw._replace(row=np.array(rows)), np.full(4, 1e9))
    assert pond.sample(256).draw.row.max() < 63
    with pytest.raises(SpecMismatch, match=r"draw\.stream"):
        pond.update_priorities(draw._replace(stream=np.array([0, 1, 0, 0])), np.ones(4))
    device = Pond(SPEC, 64, 1, sampler=prioritized())
    state = device.add(device.init(), steps(64, 1))
    row = jnp.array([[0, 10**9], [2**31, 5], [0, 64], [0, 63]], np.uint32)
    state = device.update_priorities(
        state, device.sample(state, jax.random.key(0), 4)[1].draw._replace(row=row), jnp.ones(4)
    )
    assert device.sample(state, jax.random.key(0), 256)[1].draw.ids().max() < 63


def test_9_the_users_seed_decides():
    """Every sub-buffer was seeded with 42 and the user's seed dropped."""
    draws = []
    for seed in (1, 1, 2):
        pond = HostPond(SPEC, 70, 7, seed=seed)
        pond.add(steps(10, 7))
        draws.append(pond.sample(64).draw.row.tolist())
    assert draws[0] == draws[1] != draws[2]
    streams = HostPond(SPEC, 70, 7, seed=5)
    streams.add(steps(10, 7))
    drawn = streams.sample(700).draw
    own = [drawn.row[drawn.stream == env].tolist()[:20] for env in range(7)]
    assert len({tuple(rows) for rows in own}) == 7  # no two envs draw in step


@pytest.mark.parametrize("shape", [(1, 2), (3, 1), (3, 1, 2), (2,), (2, 3)])
def test_10_nothing_is_broadcast(shape):
    """(1, F) and (N, 1) were silently broadcast into (N, F)."""
    good = jax.tree.map(lambda leaf: leaf[0], steps(1, 3))
    for ring in (HostPond(SPEC, 30, 3), Pond(SPEC, 30, 3)):
        bad = good._replace(obs=np.zeros(shape, np.float32))
        with pytest.raises(SpecMismatch, match="field 'obs'"):
            ring.add(bad) if isinstance(ring, HostPond) else ring.add(ring.init(), bad)


@pytest.mark.parametrize("ring", [Pond, HostPond])
def test_11_capacity_is_exact_or_refused(ring):
    """A capacity of 10 became 8 or 12."""
    with pytest.raises(BadConfig, match="use 8 or 12"):
        ring(SPEC, 10, 4)
    pond = ring(SPEC, 12, 4)
    if ring is Pond:
        assert int(pond.size(pond.add(pond.init(), steps(9, 4)))) == 12
    else:
        pond.add(steps(9, 4))
        assert pond.size == 12
