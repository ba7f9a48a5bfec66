"""Weights: every tree that a reader gets is one that was published, whole."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from channel_weights import die_inside, publish_until, tree_of
from channel_world import PATIENCE, SPAWN
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import BadConfig, ChannelClosed, SpecMismatch, WeightsBroken
from millpond.transport import Weights
from millpond.transport.weights import _SLOTS_AT

SLOT_HEAD = 64


def pair(template=None, **options):
    template = tree_of(0) if template is None else template
    weights = Weights.create(template, **options)
    return weights, weights.writer(template), weights.reader(template)


def same(a, b) -> bool:
    left, right = jax.tree.flatten(a), jax.tree.flatten(b)
    return left[1] == right[1] and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(left[0], right[0], strict=True)
    )


class Facts(NamedTuple):
    """A few numbers that travel as a tree."""

    global_steps: np.ndarray
    restart: np.ndarray


def test_every_reader_is_confirmed_however_many_there_are():
    """Drawn out of 256 words, two met now and then, and the run ended as if nothing were shared."""
    weights, template = Weights.create(tree_of(0)), tree_of(0)
    readers = [weights.reader(template, place) for place in range(300)]
    for reader in readers:
        weights.confirm(reader.canary)


dtypes = st.sampled_from(["float32", "float16", "bfloat16", "int8", "int64", "bool", "uint32"])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    leaves=st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    slots=st.integers(3, 5),
)
def test_round_trip(leaves, seed, slots):
    rng = np.random.default_rng(seed)

    def tree():
        return {
            f"leaf{i}": rng.integers(0, 2, shape).astype(jnp.dtype(dtype))
            for i, (dtype, shape) in enumerate(leaves)
        }

    weights, writer, reader = pair(tree(), slots=slots)
    assert reader.pull_if_newer() is None
    have = -1
    for version in range(0, 14, 2):
        sent = tree()
        writer.publish(sent, version)
        got, have = reader.pull_if_newer(have)
        assert have == version
        assert same(got, sent)
        assert reader.pull_if_newer(have) is None
        assert same(weights.reader(tree()).pull_if_newer()[0], sent)
    assert weights.torn == 0


def test_a_reader_gets_the_newest_and_its_own_copy():
    _, writer, reader = pair()
    for version in range(1, 8):
        writer.publish(tree_of(version), version)
    tree, version = reader.pull_if_newer(3)
    assert version == 7
    for later in range(8, 20):
        writer.publish(tree_of(later), later)
    assert same(tree, tree_of(7))
    assert reader.pull_if_newer(19) is None
    assert reader.pull_if_newer(25) is None
    assert same(reader.pull_if_newer(18)[0], tree_of(19))
    assert same(reader.pull_if_newer(18)[0], tree_of(19))  # asked again, given again
    kernel = reader.pull_if_newer()[0]["params"]["dense"]["kernel"]
    assert kernel.ctypes.data % 64 == 0


def test_device_arrays_and_facts():
    facts = Facts(np.int64(2**40), np.float32(0.5))
    _, writer, reader = pair(facts)
    writer.publish(facts, 2**64 - 1)
    got, version = reader.pull_if_newer()
    assert (type(got), int(got.global_steps), float(got.restart)) == (Facts, 2**40, 0.5)
    assert version == 2**64 - 1
    params = {"w": jnp.arange(6.0).reshape(2, 3)}
    _, writer, reader = pair(params)
    writer.publish(params, 1)
    np.testing.assert_array_equal(reader.pull_if_newer()[0]["w"], params["w"])


@pytest.mark.parametrize("version", [4, 5, -1, 2**64])
def test_versions_only_rise(version):
    weights, writer, reader = pair()
    writer.publish(tree_of(5), 5)
    with pytest.raises(BadConfig, match="above 5"):
        writer.publish(tree_of(9), version)
    later = weights.writer(tree_of(0))  # a writer that comes later knows it too
    with pytest.raises(BadConfig, match="above 5"):
        later.publish(tree_of(9), version)
    with pytest.raises(ChannelClosed, match="newer writer"):  # and replaces the one before it
        writer.publish(tree_of(6), 6)
    assert same(reader.pull_if_newer()[0], tree_of(5))
    later.publish(tree_of(6), 6)
    assert same(reader.pull_if_newer(5)[0], tree_of(6))


def test_another_tree_is_refused_by_name():
    weights, writer, reader = pair()
    wider, narrower, renamed, fewer = (tree_of(0) for _ in range(4))
    wider["params"]["dense"]["bias"] = np.zeros(65, "f4")
    narrower["params"]["dense"]["bias"] = np.zeros(64, "f2")
    renamed["params"]["dense"] = {"bies": np.zeros(64, "f4"), "kernel": np.zeros((64, 128), "f4")}
    fewer["more"] = fewer["more"][:1]
    writer.publish(tree_of(3), 3)
    for other, words in ((wider, "(65,)"), (narrower, "float16"), (renamed, "bies"), (fewer, "")):
        for attach in (weights.writer, weights.reader):
            with pytest.raises(SpecMismatch) as error:
                attach(other)
            assert words in str(error.value)
        with pytest.raises(SpecMismatch):
            writer.publish(other, 4)
    assert same(reader.pull_if_newer()[0], tree_of(3))  # nothing of them was written
    with pytest.raises(BadConfig, match="at least 3"):
        Weights.create(tree_of(0), slots=2)
    with pytest.raises(BadConfig, match="no array"):
        Weights.create({})


def test_every_flipped_bit_is_found():
    template = {"w": np.arange(16, dtype="f4"), "b": np.ones(16, "f4")}
    weights, writer, _ = pair(template)
    writer.publish(template, 7)
    raw = weights._memory.raw()
    at = _SLOTS_AT + 1 % 3 * (SLOT_HEAD + 128)  # where the first publication lies
    found = 0
    for offset in (*range(32), *range(SLOT_HEAD, SLOT_HEAD + 128)):
        for bit in range(8):
            raw[at + offset] ^= 1 << bit
            with pytest.raises(WeightsBroken, match="weights-hash"):
                weights.reader(template).pull_if_newer()
            raw[at + offset] ^= 1 << bit
            found += 1
            assert weights.torn == found
    assert same(weights.reader(template).pull_if_newer()[0], template)


def test_a_half_written_slot_is_found_and_the_next_version_heals_it():
    weights, writer, reader = pair()
    for version in range(1, 4):
        writer.publish(tree_of(version), version)
    raw = weights._memory.raw()
    stride = weights._stride
    begin = _SLOTS_AT + 4 % 3 * stride
    before = bytes(raw[begin : begin + stride])
    writer.publish(tree_of(4), 4)
    after = bytes(raw[begin : begin + stride])
    for cut in range(64, stride - 64, 4096):
        for mixed in (after[:cut] + before[cut:], before[:cut] + after[cut:]):
            raw[begin : begin + stride] = mixed
            if mixed == after:
                continue
            with pytest.raises(WeightsBroken, match="publication 4"):
                reader.pull_if_newer(3)
    writer.publish(tree_of(5), 5)
    assert same(reader.pull_if_newer(3)[0], tree_of(5))


def test_a_slot_that_is_always_overwritten_ends_in_an_error(monkeypatch):
    """A writer that comes around during each copy; the wait for a quiet moment is bounded."""
    _, writer, reader = pair()
    writer.publish(tree_of(1), 1)
    versions = iter(range(2, 10**9))
    whole = reader._slots.payload

    def overtaken(number):
        for _ in range(3):
            version = next(versions)
            writer.publish(tree_of(version), version)
        return whole(number)

    monkeypatch.setattr(reader._slots, "payload", overtaken)
    with pytest.raises(WeightsBroken, match="overwritten while it was read"):
        reader.pull_if_newer(timeout=0.05)
    monkeypatch.undo()
    tree, version = reader.pull_if_newer()
    assert same(tree, tree_of(version))


def hammer(pulls: int, versions: int) -> tuple[int, int]:
    """A writer that never pauses, and a reader that checks each tree it gets, so many of each."""
    weights = Weights.create(tree_of(0))
    reader = weights.reader(tree_of(0))
    child = SPAWN.Process(target=publish_until, args=(weights, 10**12), daemon=True)
    child.start()
    have, pulled, deadline = -1, 0, time.monotonic() + 20 * PATIENCE
    try:
        while have < versions or pulled < pulls:
            found = reader.pull_if_newer(have)
            if found is None:
                assert child.is_alive()
                assert time.monotonic() < deadline
                continue
            tree, version = found
            assert have < version
            assert same(tree, tree_of(version)), version
            have, pulled = version, pulled + 1
    finally:
        child.kill()
        child.join(PATIENCE)
    assert weights.torn == 0
    return pulled, have


def test_no_mixed_tree_under_a_writer_that_never_pauses(capsys):
    pulled, have = hammer(500, 5000)
    with capsys.disabled():
        print(f"\n{have} versions published, {pulled} pulled, 0 mixed")


@pytest.mark.full
def test_no_mixed_tree_in_a_million_versions():
    hammer(100_000, 1_000_000)


def test_a_writer_killed_inside_a_publication_leaves_the_one_before_it():
    weights = Weights.create(tree_of(0))
    child = SPAWN.Process(target=die_inside, args=(weights, 11))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -9
    tree, version = weights.reader(tree_of(0)).pull_if_newer()
    assert (version, same(tree, tree_of(11))) == (11, True)
    weights.writer(tree_of(0)).publish(tree_of(12), 12)
    assert same(weights.reader(tree_of(0)).pull_if_newer()[0], tree_of(12))


def test_descriptors_go_with_it():
    before = None
    for _ in range(10):
        weights, writer, reader = pair()
        writer.publish(tree_of(1), 1)
        weights.close()
        assert reader.pull_if_newer() is not None
        del weights, writer, reader
        now = len(os.listdir("/proc/self/fd"))
        assert before in (None, now)
        before = now
