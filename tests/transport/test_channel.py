"""A channel in one process: what is pushed comes out, exactly, in order, once."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque

import numpy as np
import pytest
from channel_world import NESTED, PLAIN, SPECS, random_rows, same
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import Field, HostPond, Rows, Spec
from millpond.errors import BadConfig, ChannelBroken, ChannelClosed, ChannelFull, SpecMismatch
from millpond.transport import Channel, eventfd


def ends(spec=PLAIN, envs=2, time=3, slots=4, **alive):
    channel = Channel.create(spec, envs, time, slots)
    return channel, channel.writer(spec, **alive), channel.reader(spec, **alive)


def joined(pushes: list[Rows]) -> Rows:
    """Pushes [env] and [time, env] as one block [time, env]."""

    def join(*parts):
        if isinstance(parts[0], dict):
            return {key: join(*(part[key] for part in parts)) for key in parts[0]}
        return np.concatenate(parts)

    long = [p if p.reward.ndim == 2 else Rows(*(lifted(value) for value in p)) for p in pushes]
    return Rows(*(join(*fields) for fields in zip(*long, strict=True)))


def lifted(tree):
    return {k: lifted(v) for k, v in tree.items()} if isinstance(tree, dict) else tree[None]


@settings(max_examples=150)
@given(
    spec=st.sampled_from(SPECS),
    envs=st.integers(1, 5),
    most=st.integers(1, 4),
    slots=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    moves=st.lists(st.integers(-3, 4), min_size=1, max_size=60),
)
def test_round_trip_over_many_laps(spec, envs, most, slots, seed, moves):
    channel, writer, reader = ends(spec, envs, most, slots)
    rng, model, rows = np.random.default_rng(seed), deque(), [0, 0]
    for move in moves:
        if move >= 0:  # a push of so many steps; 0: rows [env]
            lead = (min(move, most), envs) if move else (envs,)
            push = random_rows(spec, lead, rng)
            if len(model) == slots:
                with pytest.raises(ChannelFull):
                    writer.push(push, timeout=0)
            else:
                writer.push(push, timeout=0)
                model.append(push)
                rows[0] += push.reward.size
        elif not model:
            assert reader.pop() is None
        elif move == -1:
            taken = model.popleft()
            assert same(reader.pop(), taken)
            rows[1] += taken.reward.size
        else:
            taken = [model.popleft() for _ in range(min(-move, len(model)))]
            assert same(reader.pop_block(-move), joined(taken))
            rows[1] += sum(p.reward.size for p in taken)
        assert reader.ready == channel.counters().in_flight == len(model)
        assert [channel.counters().rows_pushed, channel.counters().rows_popped] == rows
    assert channel.counters().torn == 0


def test_popped_rows_are_copies():
    _, writer, reader = ends(slots=1)
    rng = np.random.default_rng(0)
    first, second = (random_rows(PLAIN, (2,), rng) for _ in range(2))
    writer.push(first)
    got = reader.pop()
    writer.push(second)
    assert same(got, first)
    got.obs[:], got.reward[:] = 7, 7  # writable, and nobody else's
    assert same(reader.pop(), second)


def test_values_are_converted_as_every_ring_does():
    _, writer, reader = ends()
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    rows = rows._replace(obs=np.zeros((2, 5)), action=rows.action.astype(np.int64))
    writer.push(rows)
    got = reader.pop()
    assert (got.obs.dtype, got.action.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(obs=np.zeros((1, 2, 5), np.float32)), "obs"),
        (dict(obs=np.zeros((2, 1), np.float32)), "obs"),
        (dict(action=np.array([0, 10], np.int32)), "action"),
        (dict(action=np.array([0.0, 1.0])), "action"),
        (dict(reward=np.array([0, np.nan], np.float32)), "reward"),
        (dict(flags=np.array([0, 16], np.uint8)), "flags"),
        (dict(extras={"more": np.zeros(2)}), "more"),
        (dict(reward=np.zeros(3, np.float32)), "reward"),
        (dict(reward=np.zeros((4, 2), np.float32)), "1 to 3 steps"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_sent(change, message):
    channel, writer, reader = ends()
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    with pytest.raises(SpecMismatch, match=message):
        writer.push(rows._replace(**change))
    assert reader.pop() is None
    assert channel.counters().pushed == 0
    writer.push(rows)
    assert same(reader.pop(), rows)


def test_full_channel_times_out_and_loses_nothing():
    channel, writer, reader = ends(slots=2)
    rng = np.random.default_rng(0)
    pushes = [random_rows(PLAIN, (2,), rng) for _ in range(3)]
    writer.push(pushes[0])
    writer.push(pushes[1])
    start, cpu = time.monotonic(), time.process_time()
    with pytest.raises(ChannelFull, match=r"2 slots stayed full for 0\.3 s"):
        writer.push(pushes[2], timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 5
    assert time.process_time() - cpu < 0.1, "the wait burned the core"
    assert channel.counters().writer_waits == 1
    assert [same(reader.pop(), push) for push in pushes[:2]] == [True, True]
    assert reader.pop() is None


def test_empty_channel_times_out_without_burning_the_core():
    _, _, reader = ends()
    start, cpu = time.monotonic(), time.process_time()
    assert reader.pop(timeout=0.3) is None
    assert 0.3 <= time.monotonic() - start < 5
    assert time.process_time() - cpu < 0.1


def test_the_dead_are_noticed_and_what_they_sent_is_not_lost():
    living = [True]
    channel, writer, reader = ends(slots=1, alive=lambda: living[0])
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    writer.push(rows)
    living[0] = False
    start = time.monotonic()
    with pytest.raises(ChannelClosed):
        writer.push(rows, timeout=60)
    assert same(reader.pop(timeout=60), rows)
    with pytest.raises(ChannelClosed):
        reader.pop(timeout=60)
    with pytest.raises(ChannelClosed):
        reader.pop()
    assert time.monotonic() - start < 10
    assert channel.counters().pushed == 1


def test_the_last_push_of_a_dying_writer_is_popped():
    """It comes after the last look at the ring and before the look at the writer."""
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    channel = Channel.create(PLAIN, 2)
    writer = channel.writer(PLAIN)

    def alive():
        if not channel.counters().pushed:
            writer.push(rows)
        return False

    reader = channel.reader(PLAIN, alive)
    assert same(reader.pop(timeout=60), rows)
    with pytest.raises(ChannelClosed):
        reader.pop(timeout=60)


def test_an_end_that_was_replaced_does_nothing_more():
    """A hung process that wakes up again must not disturb the one that took its place."""
    channel, old_writer, old_reader = ends()
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    old_writer.push(rows)
    writer, reader = channel.writer(PLAIN), channel.reader(PLAIN)
    with pytest.raises(ChannelClosed, match="newer writer"):
        old_writer.push(rows)
    with pytest.raises(ChannelClosed, match="newer reader"):
        old_reader.pop()
    writer.push(rows)
    assert same(reader.pop(), rows)
    assert same(reader.pop(), rows)
    assert reader.pop() is None


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_waiting_end_is_woken_at_once(who, monkeypatch):
    """With looks of their own that come a minute apart, only the bell can wake them."""
    monkeypatch.setattr(eventfd, "SLICE_S", 60.0)
    channel, writer, reader = ends(slots=1)
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    header = writer._header
    for _ in range(5):
        if who == "writer":
            writer.push(rows)
        waiting = header.writer_waiting if who == "writer" else header.reader_waiting
        wait, wake = (
            (lambda: reader.pop(timeout=60), lambda: writer.push(rows))
            if who == "reader"
            else (lambda: writer.push(rows, timeout=60), reader.pop)
        )
        thread = threading.Thread(target=wait)
        thread.start()
        while not waiting[0]:
            time.sleep(0.001)
        wake()
        thread.join(20)
        assert not thread.is_alive()
        reader.pop()
    assert channel.counters().torn == 0


def test_what_a_writer_left_behind_is_counted_up_to_the_first_damage():
    channel, writer, reader = ends(slots=4)
    rng = np.random.default_rng(0)
    for _ in range(4):
        writer.push(random_rows(PLAIN, (3, 2), rng))
    assert reader.pop() is not None
    assert channel.whole() == 4
    slots, layout = writer._slots, writer._slots.layout
    slots._raw[slots._base + 2 * layout.stride + layout.sections["record"].offset] ^= 1  # of push 2
    assert channel.whole() == 2
    assert reader.pop() is not None
    with pytest.raises(ChannelBroken):
        reader.pop()
    assert channel.whole() == channel.counters().popped == 2


def test_closing_either_end():
    _, writer, reader = ends()
    rows = random_rows(PLAIN, (2,), np.random.default_rng(0))
    writer.push(rows)
    writer.close()
    assert same(reader.pop(timeout=60), rows)
    with pytest.raises(ChannelClosed):
        reader.pop(timeout=60)
    reader.close()
    with pytest.raises(ChannelClosed):
        writer.push(rows, timeout=60)


def test_another_spec_is_refused_by_name():
    channel = Channel.create(PLAIN, 2)
    other = Spec(Field("float32", (6,)), PLAIN.action)
    for attach in (channel.writer, channel.reader):
        with pytest.raises(SpecMismatch) as error:
            attach(other)
        for part in (other.fingerprint(), PLAIN.fingerprint(), "'obs'", "(6,)", "(5,)"):
            assert part in str(error.value)


def test_bad_sizes_are_refused():
    for sizes in (dict(num_envs=0), dict(time=0), dict(slots=0)):
        with pytest.raises(BadConfig, match=next(iter(sizes))):
            Channel.create(PLAIN, **{"num_envs": 1, **sizes})
    with pytest.raises(BadConfig, match="fewer slots"):
        Channel.create(PLAIN, 1, 1, 2**55)


def test_descriptors_and_mappings_go_with_it():
    def held():
        gc.collect()  # what earlier tests left in tracebacks
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:millpond")

    before = held()
    for _ in range(20):
        channel, writer, reader = ends(NESTED)
        writer.push(random_rows(NESTED, (2,), np.random.default_rng(0)))
        channel.close()
        assert reader.pop() is not None  # an end goes on when the channel is let go
        with pytest.raises(BadConfig, match="closed"):
            channel.counters()
        del channel, writer, reader
    assert held() == before


def test_a_block_goes_into_a_pond():
    spec = Spec(Field("float32", (5,)), Field("int32"))
    channel = Channel.create(spec, 2, slots=8)
    writer, reader = channel.writer(spec), channel.reader(spec)
    pond = HostPond(spec, 100, 2)
    zero = np.zeros(2, bool)
    for step in range(6):
        obs, number = np.full((2, 5), step, np.float32), np.full(2, step, np.int32)
        flags = np.full(2, step == 0, np.uint8)
        writer.push(Rows(obs, number, number.astype(np.float32), zero, zero, flags))
    pond.add(reader.pop_block(8))
    batch = pond.sample(64)
    assert (batch.obs[:, 0, 0] == batch.action).all()
    assert (batch.next_obs[:, 0, 0] == batch.action + 1).all()
