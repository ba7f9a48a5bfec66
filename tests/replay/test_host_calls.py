"""HostPond's calls mean what they say: masks beside envs, can_sample, order, odd arguments."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from test_bad_input import SPEC, rows

from millpond import (
    BadConfig,
    Field,
    Flag,
    HostPond,
    NotEnoughData,
    Pond,
    Sequence,
    Spec,
    SpecMismatch,
    Window,
    prioritized,
    stratified,
)
from millpond.rows import Rows


def steps(time: int, first: bool = True) -> Rows:
    """[time] rows of one env, numbered by their reward."""
    flags = np.zeros(time, np.uint8)
    flags[0] = first
    return rows(time)._replace(flags=flags, reward=np.arange(time, dtype=np.float32))


def test_a_mask_beside_env_keeps_what_it_says():
    pond = HostPond(SPEC, 30, 3, layout="per_env")
    pond.add(steps(4), env=1, mask=np.array([True, False, True, True]))
    assert pond.added.tolist() == [0, 3, 0]
    stored = pond.read(np.full(3, 1), np.arange(3))
    np.testing.assert_array_equal(stored.reward, [0, 2, 3])
    for wrong in (np.ones(3, bool), np.ones(4), [True] * 4):
        with pytest.raises(SpecMismatch, match="mask"):
            pond.add(steps(4), env=2, mask=wrong)
    with pytest.raises(BadConfig, match="per_env"):
        HostPond(SPEC, 30, 3).add(steps(4), env=1, mask=np.ones(4, bool))
    single = HostPond(SPEC, 10)
    with pytest.raises(BadConfig, match="per_env"):
        single.add(Rows(np.ones(4, "f4"), 1, 1.0, False, False, 1), mask=np.array([False]))
    assert single.size == 0


@pytest.mark.parametrize("sampler", [None, stratified(), prioritized()], ids=str)
@pytest.mark.parametrize("layout", ["stream", "per_env", "shared"])
def test_can_sample_says_what_sample_does(layout, sampler):
    pond = HostPond(SPEC, 12, 3, Window(), sampler, layout)
    chance, shared = np.random.default_rng(0), layout == "shared"
    flags = np.full(3, Flag.FIRST, np.uint8)
    said = set()
    for time in range(60):
        context = chance.random(3) < (1 if time % 20 < 12 else 0.5)
        marks = flags | np.where(context, np.uint8(Flag.CONTEXT), np.uint8(0))
        more = {"next_obs": np.zeros((3, 4), "f4")} if shared else {}
        pond.add(rows()._replace(flags=marks), **more)
        flags = np.zeros(3, np.uint8)
        can = pond.can_sample()
        said.add((can, pond.size > 3))
        if can:
            assert pond.sample(8).mask.all()
        else:
            with pytest.raises(NotEnoughData):
                pond.sample(8)
            assert pond.mass == 0
    assert {(True, True), (False, True)} <= said, "both answers, with rows that are old enough"


def test_odd_arguments_are_named():
    pond = HostPond(SPEC, np.int64(30), np.int32(3))
    assert type(pond.capacity) is int
    for given in (None, 3, rows()._asdict()):
        with pytest.raises(SpecMismatch, match="expected Rows"):
            pond.add(given)
    pond.add(rows()), pond.add(rows(flags=np.zeros(3, np.uint8)))
    for number in (0, -1, 2.5, None):
        with pytest.raises(SpecMismatch, match="sample"):
            pond.sample(number)
    for env in (7, -1, 3, 1.0, True):
        with pytest.raises(SpecMismatch, match=r"expected .*pass an env's index"):
            pond.cut(env)
        with pytest.raises(SpecMismatch, match=r"add: env must lie in \[0, 2\]"):
            pond.add(Rows(np.ones(4, "f4"), 1, 1.0, False, False, 0), env=env)
    assert pond.size == 6
    assert pond.sample(np.int64(4)).mask.all()


@pytest.mark.parametrize("sampler", [stratified(), prioritized()], ids=str)
def test_no_part_of_a_batch_is_unlike_the_rest(sampler):
    """Halves of a batch have the same mean stream and id: drawn in order they would differ."""
    pond = HostPond(SPEC, 64 * 32, 64, sampler=sampler, seed=1)
    for time in range(32):
        pond.add(rows(64)._replace(flags=np.full(64, time == 0, np.uint8)))
    half = 2048
    stream, row = (np.asarray(part, float) for part in pond.sample(2 * half).draw[:2])
    for value, spread in ((stream, 64), (row, 31)):
        gap = abs(value[:half].mean() - value[half:].mean())
        assert gap < 6 * spread / np.sqrt(12) * np.sqrt(2 / half)


def test_bytes_include_the_tree():
    plain, ranked = (HostPond(SPEC, 30, 3, sampler=s) for s in (None, prioritized()))
    tree = ranked._ranks.tree
    assert ranked.nbytes - plain.nbytes == tree.leaves.nbytes + tree._middle.nbytes + 8


@pytest.mark.parametrize("window", [Window(), Window(stack=2), Sequence(3), Sequence(2, burn_in=1)])
def test_out_of_another_window_spec_or_kind_is_refused(window):
    """A strided array would be filled in a copy: what was in it before would be the batch."""
    pond = HostPond(SPEC, 30, 3, window=window, seed=1)
    for time in range(8):
        pond.add(rows(flags=np.full(3, time == 0, np.uint8)))
    fits, frozen = pond.sample(8), pond.sample(8)
    frozen.action.setflags(write=False)
    for other in (Window(stack=3), Sequence(3, stack=2), Sequence(4)):
        ring = HostPond(SPEC, 30, 3, window=other)
        ring.restore(pond.export())
        with pytest.raises(SpecMismatch, match="out must be a batch of"):
            pond.sample(8, out=ring.sample(8))
    strided = fits._replace(obs=np.repeat(fits.obs, 2, axis=0)[::2])
    wider = fits._replace(obs=fits.obs.astype(np.float64))
    ranked = fits._replace(draw=fits.draw._replace(probability=np.zeros(8, np.float32)))
    for other in (strided, wider, ranked, frozen, fits._replace(reward=list(fits.reward)), 7):
        with pytest.raises(SpecMismatch, match="out must be a batch of"):
            pond.sample(8, out=other)
    assert pond.sample(8, out=fits) is fits


@pytest.mark.parametrize("window", [Window(stack=2), Sequence(3, burn_in=2, end="stop")])
@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_no_rows_are_asked_for(window, layout):
    bits = Spec({"a": Field("bool", (9,)), "b": Field("uint8", (4, 4))}, Field("int32", (), 0, 1))
    none = np.zeros(0, np.int64)
    host = HostPond(bits, 30, 3, window=window, layout=layout)
    pond = Pond(bits, 30, 3, window=window, layout=layout, sampler=prioritized())
    state = pond.init()
    for found in (host.take(none, none), pond.take(state, none, none)):
        assert {len(leaf) for leaf in jax.tree.leaves(found)} == {0}
    for found in (host.read(none, none), pond.read(state, none, none)):
        assert found.obs["b"].shape == (0, 4, 4)
    with pytest.raises(SpecMismatch, match="a batch of 1 or more, got 0"):
        pond.sample(state, jax.random.key(0), 0)
