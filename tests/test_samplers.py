"""Each sampler draws what it says: chi-squared over every valid start, on both placements."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from scenarios import PATTERNS, SUBJECTS, Stream, model_of, next_obs_of, to_rows
from scipy import stats

from millpond import (
    BadConfig,
    FaultsFound,
    HostPond,
    Pond,
    SpecMismatch,
    Window,
    prioritized,
    recent,
    stratified,
)

WINDOW = Window(stack=2, n_step=2)
ENVS = 3
RINGS = ["device-stream", "device-per_env", "host-stream", "host-per_env"]


def filled(subject: str, sampler, pattern: str = "long", length: int = 16, steps: int = 38):
    shared = subject.endswith("shared")
    window = Window() if shared else WINDOW
    ring = SUBJECTS[subject](window, length, ENVS, seed=8, sampler=sampler)
    model = model_of(window, length, ENVS, ring.layout)
    chance = random.Random(3)
    streams = [Stream(env, PATTERNS[pattern], chance) for env in range(ENVS)]
    for _ in range(steps // 19):
        block = [[s.next() for s in streams] for _ in range(19)]
        for step in block:
            for env, row in enumerate(step):
                model.add(env, row)
        ring.add(to_rows(block), next_obs_of(block) if shared else None)
    return ring, model


def drawn(batch) -> list[tuple[int, int]]:
    keep = np.asarray(batch.mask)
    pairs = zip(np.asarray(batch.draw.stream)[keep], batch.draw.ids()[keep], strict=True)
    return [(int(env), int(row)) for env, row in pairs]


def agree(starts, weights: dict) -> None:
    """Chi-squared of drawn starts against weights over all valid starts."""
    order = sorted(weights)
    index = {start: i for i, start in enumerate(order)}
    found = np.bincount([index[s] for s in starts], minlength=len(order))
    share = np.array([weights[s] for s in order], float)
    expected = share / share.sum() * found.sum()
    assert expected.min() > 5, "too few draws for a test"
    assert stats.chisquare(found, expected).pvalue > 1e-3


@pytest.mark.parametrize("subject", RINGS)
def test_recent_halves_with_every_half_life(subject):
    ring, model = filled(subject, recent(half_life=4.0))
    valid = model.transitions()
    agree(drawn(ring.sample(1 << 15)), {(e, i): 2.0 ** (i / 4.0) for e, i in valid})


@pytest.mark.parametrize("subject", RINGS)
def test_recent_says_how_likely_each_draw_was(subject):
    ring, _ = filled(subject, recent(half_life=4.0))
    batch = ring.sample(512)
    rows = range(38 - 16 + WINDOW.stack - 1, 38 - WINDOW.n_step)  # old enough, by the definition
    total = ENVS * sum(2.0 ** (i / 4.0) for i in rows)
    want = [2.0 ** (i / 4.0) / total for _, i in drawn(batch)]
    np.testing.assert_allclose(np.asarray(batch.draw.probability), want, rtol=1e-4)


@pytest.mark.parametrize("subject", RINGS)
def test_stratified_spreads_every_batch_over_envs_and_time(subject):
    ring, _ = filled(subject, stratified(), steps=19, length=40)
    starts, looked_at = 19 - WINDOW.n_step, 0
    for _ in range(5):
        batch = ring.sample(12)
        if not np.asarray(batch.mask).all():
            continue  # a stratum had no valid start in its tries
        looked_at += 1
        envs, rows = np.asarray(batch.draw.stream), batch.draw.ids()
        assert np.bincount(envs, minlength=ENVS).tolist() == [4, 4, 4]
        parts = np.sort(rows * 12 // starts)
        assert np.abs(parts - np.arange(12)).max() <= 1  # one row may lie across two strata
    assert looked_at


@pytest.mark.parametrize("subject", ["device-stream", "host-stream", "device-shared"])
def test_stratified_is_even_over_many_batches(subject):
    ring, model = filled(subject, stratified())
    found = [start for _ in range(200) for start in drawn(ring.sample(64))]
    valid = model.transitions()
    share = np.array([found.count(start) for start in valid])
    assert share.min() > 0
    # Within a stratum without a valid start, neighbours get a little more; none is left out.
    assert share.max() < 3 * share.mean()


@pytest.mark.parametrize("subject", [*RINGS, "device-shared", "host-shared"])
def test_prioritized_draws_in_proportion(subject):
    alpha = 0.7
    ring, model = filled(subject, prioritized(alpha=alpha))
    valid = model.transitions()
    agree(drawn(ring.sample(1 << 14)), dict.fromkeys(valid, 1.0))  # all new: all alike
    priorities = {start: 0.2 + (7 * start[0] + start[1]) % 5 for start in valid}
    batch = ring.sample(2048)
    assert set(drawn(batch)) == set(valid)
    ring.update(batch.draw, np.float32([priorities[s] for s in drawn(batch)]))
    batch = ring.sample(1 << 14)
    weights = {start: p**alpha for start, p in priorities.items()}
    agree(drawn(batch), weights)
    total = sum(weights.values())
    chance = np.array([weights[s] / total for s in drawn(batch)])
    np.testing.assert_allclose(np.asarray(batch.draw.probability), chance, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(batch.weight), (chance / chance.min()) ** -0.4, rtol=1e-4)


@pytest.mark.parametrize("subject", RINGS)
def test_of_duplicates_the_largest_counts_and_zero_never_comes_back(subject):
    ring, model = filled(subject, prioritized(alpha=1.0))
    batch = ring.sample(2048)
    starts = drawn(batch)
    special, gone = starts[0], next(s for s in starts if s != starts[0])
    priorities = np.ones(2048, np.float32)
    copies = [i for i, s in enumerate(starts) if s == special]
    priorities[copies] = np.linspace(1, 9, len(copies))[:: (-1 if len(copies) % 2 else 1)]
    priorities[[i for i, s in enumerate(starts) if s == gone]] = 0
    ring.update(batch.draw, priorities)
    found = drawn(ring.sample(1 << 14))
    assert gone not in found
    others = len(model.transitions()) - 2
    assert found.count(special) / len(found) == pytest.approx(9 / (9 + others), rel=0.1)


@pytest.mark.parametrize("subject", RINGS)
def test_stale_draws_are_ignored_by_id(subject):
    ring, _ = filled(subject, prioritized(alpha=1.0))
    old = ring.sample(256)
    streams = [Stream(env, PATTERNS["long"], random.Random(env)) for env in range(ENVS)]
    for env in range(ENVS):
        ring.cut(env)
    block = [[s.next() for s in streams] for _ in range(19)]  # more than the ring holds
    ring.add(to_rows(block))
    ring.update(old.draw, np.full(256, 1e6, np.float32))
    batch = ring.sample(2048)
    np.testing.assert_allclose(np.asarray(batch.weight), 1.0)  # nobody has a priority of 1e6


def test_beta_rises_to_its_end():
    ring, _ = filled("host-stream", prioritized(beta=0.0, beta_end=1.0, beta_samples=10))
    batch = ring.sample(2048)
    np.testing.assert_allclose(batch.weight, 1.0)
    ring.update(batch.draw, np.float32([1 + s[1] % 3 for s in drawn(batch)]))
    for _ in range(10):
        batch = ring.sample(256)
    share = batch.draw.probability
    np.testing.assert_allclose(batch.weight, (share / share.min()) ** -1.0, rtol=1e-4)
    device, _ = filled("device-stream", prioritized(beta=0.0, beta_end=1.0, beta_samples=10))
    assert np.asarray(device.sample(8).weight).tolist() == [1.0] * 8


def test_bad_priorities_are_refused_and_counted():
    host, _ = filled("host-stream", prioritized())
    before = host.export()
    batch = host.sample(8)
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(SpecMismatch, match="numbers >= 0"):
            host.update(batch.draw, np.full(8, bad))
    with pytest.raises(SpecMismatch, match="one per drawn row"):
        host.update(batch.draw, np.ones(7))
    np.testing.assert_array_equal(host.export()["priorities/mass"], before["priorities/mass"])

    device, model = filled("device-stream", prioritized(alpha=1.0))
    batch = device.sample(2048)
    bad = np.ones(2048, np.float32)
    bad[:3] = [np.nan, -1, np.inf]
    device.update(batch.draw, bad)
    with pytest.raises(FaultsFound, match="3 priorities"):
        device.size()
    agree(drawn(device.sample(1 << 14)), dict.fromkeys(model.transitions(), 1.0))


@pytest.mark.full
def test_sums_do_not_drift_in_a_million_updates():
    """After many updates every node is still exactly the sum of its children."""
    pond = Pond(
        SUBJECTS["device-stream"](WINDOW, 7, 3).pond.spec, 21 * 16, 3, sampler=prioritized(1.0)
    )
    stream = [Stream(env, PATTERNS["long"], random.Random(env)) for env in range(3)]
    state = pond.init()
    for _ in range(7):
        state = pond.add(state, to_rows([[s.next() for s in stream] for _ in range(16)]))

    def turn(state, key):
        one, two = jax.random.split(key)
        state, batch = pond.sample(state, one, 32)
        new = 10.0 ** jax.random.uniform(two, (32,), minval=-6, maxval=6)
        return pond.update_priorities(state, batch.draw, new), None

    keys = jax.random.split(jax.random.key(0), 1 << 15)  # x 32 draws: a million updates
    state, _ = jax.jit(lambda state: jax.lax.scan(turn, state, keys))(state)
    tree, shape = np.asarray(state.priorities.tree), pond._tree
    levels = [tree[a : a + n] for a, n in zip(shape.starts, shape.sizes, strict=True)]
    for below, above in zip(levels[:-1], levels[1:], strict=True):
        family = below.reshape(-1, 16)
        total = family[:, 0]
        for child in range(1, 16):
            total = total + family[:, child]
        np.testing.assert_array_equal(total, above[: len(total)])


def test_impossible_samplers_are_refused():
    for make in (
        lambda: recent(0),
        lambda: recent(float("inf")),
        lambda: stratified(tries=0),
        lambda: prioritized(alpha=2),
        lambda: prioritized(fan=1),
    ):
        with pytest.raises(BadConfig):
            make()
    pond = HostPond(SUBJECTS["host-stream"](WINDOW, 7, 1).pond.spec, 10)
    with pytest.raises(BadConfig, match="sampler=prioritized"):
        pond.update_priorities(None, np.ones(1))
