"""Each sampler draws what it says: chi-squared over every valid start, on both placements."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from scenarios import ENDLESS, PATTERNS, SUBJECTS, Stream, model_of, next_obs_of, to_rows
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
    uniform,
)
from millpond.replay.bits import KeyRandom
from millpond.samplers import Eligible

WINDOW = Window(stack=2, n_step=2)
ENVS = 3
WINDOW_OF = {of: Window() if of.endswith("shared") else WINDOW for of in SUBJECTS}
RINGS = ["device-stream", "device-per_env", "host-stream", "host-per_env"]


def filled(subject: str, sampler, pattern: str = "long", length: int = 16, steps: int = 38):
    shared = subject.endswith("shared")
    ring = SUBJECTS[subject](WINDOW_OF[subject], length, ENVS, seed=8, sampler=sampler)
    model = model_of(WINDOW_OF[subject], length, ENVS, ring.layout)
    chance = random.Random(3)
    kind = ENDLESS if pattern == "endless" else PATTERNS[pattern]
    streams = [Stream(env, kind, chance) for env in range(ENVS)]
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


@pytest.mark.parametrize("subject", [*RINGS, "device-shared", "host-shared"])
@pytest.mark.parametrize("sampler", [uniform(), stratified(), recent(half_life=4.0)])
def test_a_chance_that_nobody_can_know_is_not_there(subject, sampler):
    """Draws are redrawn until valid, so a draw's chance is 1 / valid starts, which nobody counts.

    `probability` used to say 1 / rows old enough.
    """
    if subject.startswith("device"):  # what is not there is not traced either: nothing to compile
        pond = SUBJECTS[subject](WINDOW_OF[subject], 16, ENVS, sampler=sampler).pond
        _, batch = jax.eval_shape(lambda *of: pond.sample(*of, 64), pond.init(), jax.random.key(0))
    else:
        batch = filled(subject, sampler)[0].sample(64)
    assert batch.draw.probability is None


def test_recent_counts_rows_of_one_env_in_every_layout():
    """In layout `shared` the rows of all envs follow each other in one stream."""
    ring, model = filled("host-shared", recent(half_life=4.0))
    valid = model.transitions()
    agree(drawn(ring.sample(1 << 15)), {(e, i): 2.0 ** (i / (4.0 * ENVS)) for e, i in valid})


@pytest.mark.parametrize("length", [2**25, 10_000_000, 2**31 - 1])
@pytest.mark.parametrize("name", ["uniform", "stratified", "recent"])
def test_a_device_draws_every_row_of_a_ring_of_any_size(name, length):
    """float32 arithmetic left out half of 2^25 rows; here the lowest bits are as even as all."""
    sampler = {
        "uniform": uniform(),
        "stratified": stratified(),
        "recent": recent(half_life=float(length)),
    }[name]

    @jax.jit
    def propose(key, count):
        return sampler.propose(KeyRandom(key, length), 4, 4096, Eligible(count, 1)).age

    ages = np.stack([propose(jax.random.key(i), np.int32(length)) for i in range(64)]).astype(int)
    assert ages.min() >= 0
    assert ages.max() < length
    for tries in (ages[:, 0].ravel(), ages[:, 1:].ravel()):
        assert stats.chisquare(np.bincount(tries % 64, minlength=64)).pvalue > 1e-4
        weight = 2.0 ** (np.arange(64) / 64 * (name == "recent"))
        want = weight / weight.sum() * len(tries)
        found = np.bincount(tries * 64 // length, minlength=64)
        # Centres of 64 spans stand for them: exact for even draws, near enough for recent ones.
        assert stats.chisquare(found, want).pvalue > 1e-4


@pytest.mark.parametrize("subject", ["device-stream", "device-per_env", "host-stream"])
def test_stratified_finds_a_valid_start_as_often_as_uniform(subject):
    """A batch larger than the ring has strata narrower than a row: those must not redraw it."""
    ring, _ = filled(subject, stratified(), pattern="short", length=40)
    mask = np.concatenate([np.asarray(ring.sample(2048).mask) for _ in range(4)])
    other, _ = filled(subject, uniform(), pattern="short", length=40)
    even = np.concatenate([np.asarray(other.sample(2048).mask) for _ in range(4)])
    assert (~mask).mean() <= (~even).mean() + 0.02


@pytest.mark.parametrize("sampler", [uniform(), stratified(), recent(half_life=9.0), prioritized()])
@pytest.mark.parametrize("subject", ["device-stream", "host-stream"])
def test_the_halves_of_a_batch_are_alike(subject, sampler):
    """A batch that is split into minibatches must not be sorted by env, time or slot."""
    ring, _ = filled(subject, sampler, steps=38, length=40)
    starts = [np.array(drawn(ring.sample(2048))) for _ in range(2)]
    for batch in starts:
        for column in batch.T:
            one, two = np.array_split(column, 2)
            assert stats.ks_2samp(one, two).pvalue > 1e-4


@pytest.mark.parametrize("subject", RINGS)
def test_stratified_spreads_every_batch_over_envs_and_time(subject):
    ring, _ = filled(subject, stratified(), "endless", steps=19, length=40)
    starts = 19 - WINDOW.n_step
    for _ in range(5):
        batch = ring.sample(12)
        assert np.asarray(batch.mask).all()
        envs, rows = np.asarray(batch.draw.stream), batch.draw.ids()
        assert np.bincount(envs, minlength=ENVS).tolist() == [4, 4, 4]
        parts = np.sort(rows * 12 // starts)
        assert np.abs(parts - np.arange(12)).max() <= 1  # one row may lie across two strata


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
    old = ring.sample(2048)
    streams = [Stream(env, PATTERNS["long"], random.Random(env)) for env in range(ENVS)]
    for env in range(ENVS):
        ring.cut(env)
    block = [[s.next() for s in streams] for _ in range(19)]  # more than the ring holds
    ring.add(to_rows(block))
    ring.update(old.draw, np.full(2048, 1e6, np.float32))
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
    for bad in (np.nan, np.inf, -1.0, 1e38):
        with pytest.raises(SpecMismatch, match="numbers >= 0"):
            host.update(batch.draw, np.full(8, bad))
    with pytest.raises(SpecMismatch, match="one per drawn row"):
        host.update(batch.draw, np.ones(7))
    np.testing.assert_array_equal(host.export()["priorities/mass"], before["priorities/mass"])

    device, model = filled("device-stream", prioritized(alpha=1.0))
    batch = device.sample(2048)
    bad = np.ones(2048, np.float32)
    bad[:4] = [np.nan, -1, np.inf, 1e38]
    device.update(batch.draw, bad)
    with pytest.raises(FaultsFound, match="4 priorities"):
        device.size()
    agree(drawn(device.sample(1 << 14)), dict.fromkeys(model.transitions(), 1.0))


@pytest.mark.parametrize("subject", RINGS)
@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (), (7,), (1,)])
def test_priorities_are_never_broadcast(subject, shape):
    """`td[:, None]` gave every row the largest of the batch, a scalar set them all."""
    ring, _ = filled(subject, prioritized())
    before = ring.export()
    batch = ring.sample(8)
    with pytest.raises(SpecMismatch, match=r"expected shape \(8,\), got .*one per drawn row"):
        ring.update(batch.draw, np.ones(shape, np.float32))
    np.testing.assert_array_equal(ring.export()["priorities/mass"], before["priorities/mass"])


@pytest.mark.parametrize("subject", RINGS)
def test_the_largest_priority_leaves_the_others_their_share(subject):
    """With 1e38 the sum became infinite and rows were drawn with probability 0."""
    ring, _ = filled(subject, prioritized(alpha=1.0))
    batch = ring.sample(2048)
    ring.update(batch.draw, np.full(2048, 1e25, np.float32))
    batch = ring.sample(2048)
    assert np.isfinite(np.asarray(batch.draw.probability)).all()
    assert (np.asarray(batch.draw.probability) > 0).all()


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
    tree, shape = np.asarray(state.priorities.tree), pond._ranks.tree
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
