"""Planted damage: every slot that is not what was written is found, counted and not delivered."""

from __future__ import annotations

import numpy as np
import pytest
from channel_world import (
    NESTED,
    PATIENCE,
    PLAIN,
    SPAWN,
    ByValue,
    HalfByValue,
    Unproven,
    attach_all,
    random_rows,
    same,
)

from millpond import Field, Spec
from millpond.errors import BadConfig, ChannelBroken, SpecMismatch
from millpond.transport import Channel, Weights
from millpond.transport.header import HEADER_BYTES
from millpond.transport.memory import PAGE, Canary, Memory

BASE = PAGE + HEADER_BYTES
HEAD = 48  # bytes of a slot's head that mean something


def small_channel(slots: int = 2) -> tuple[Channel, memoryview, list]:
    """A channel with its raw slots and a few pushes [env] to send."""
    channel = Channel.create(NESTED, 2, 1, slots)
    rng = np.random.default_rng(0)
    return channel, channel._memory.raw()[BASE:], [random_rows(NESTED, (2,), rng) for _ in range(4)]


def used_bytes(channel: Channel) -> list[int]:
    """Offsets of the bytes of a slot that are used by one step."""
    layout = channel._layout
    used = list(range(HEAD))
    for offset, width in layout.sections.values():
        used += range(offset, offset + width)
    return used


def test_every_flipped_bit_is_found():
    channel, raw, pushes = small_channel()
    channel.writer(NESTED).push(pushes[0])
    found = 0
    for offset in used_bytes(channel):
        for bit in range(8):
            raw[offset] ^= 1 << bit
            reader = channel.reader(NESTED)
            with pytest.raises(ChannelBroken, match="push 0 is not what was written"):
                reader.pop()
            with pytest.raises(ChannelBroken):  # and it stays broken
                reader.pop_block(2)
            raw[offset] ^= 1 << bit
            found += 1
            assert channel.counters().torn == found
    assert found > 1000
    assert channel.counters().popped == 0
    assert same(channel.reader(NESTED).pop(), pushes[0])


def test_every_half_written_slot_is_found():
    """The head is published although only the first bytes of the push have arrived."""
    channel, raw, pushes = small_channel(slots=1)
    writer, reader = channel.writer(NESTED), channel.reader(NESTED)
    writer.push(pushes[0])
    assert same(reader.pop(), pushes[0])
    before = bytes(raw)
    writer.push(pushes[1])
    after = bytes(raw)
    orders = {
        "head first": lambda cut: after[:cut] + before[cut:],
        "head last": lambda cut: before[:cut] + after[cut:],
    }
    for order in orders.values():
        for cut in range(0, len(raw), 4):
            raw[:] = order(cut)
            if bytes(raw) == after:
                continue
            with pytest.raises(ChannelBroken):
                channel.reader(NESTED).pop()
    raw[:] = after
    assert same(channel.reader(NESTED).pop(), pushes[1])


def test_a_slot_of_an_earlier_lap_is_found():
    channel, _, pushes = small_channel(slots=2)
    writer, reader = channel.writer(NESTED), channel.reader(NESTED)
    writer.push(pushes[0])
    reader.pop()
    writer._header.writer[0] = 3  # two more are announced, and were never written
    with pytest.raises(ChannelBroken, match="sequence"):
        reader.pop()


def test_whole_pushes_before_a_broken_one_are_delivered():
    channel, raw, pushes = small_channel(slots=4)
    writer, reader = channel.writer(NESTED), channel.reader(NESTED)
    for push in pushes[:3]:
        writer.push(push)
    raw[2 * channel._layout.stride + channel._layout.sections["obs/image"].offset] ^= 1
    assert len(reader.pop_block(4).reward) == 2
    with pytest.raises(ChannelBroken, match="push 2"):
        reader.pop_block(4)
    counters = channel.counters()
    assert (counters.popped, counters.torn, counters.in_flight) == (2, 1, 1)


@pytest.mark.parametrize("head", [5, 2**63, 2**64 - 1])
def test_an_impossible_head_is_found(head):
    channel, _, _ = small_channel(slots=4)
    channel._memory.words()[PAGE // 8 + 32] = head
    with pytest.raises(ChannelBroken, match="header was overwritten"):
        channel.reader(NESTED).pop()


def test_a_slot_of_another_spec_is_found():
    """Two specs with rows of one size: only the fingerprint tells them apart."""
    other = Spec(Field("int32", (5,)), PLAIN.action)
    channel = Channel.create(PLAIN, 2)
    with pytest.raises(SpecMismatch):
        channel.writer(other)
    imposter = Channel((other, 2, 1, 64), channel._memory, *channel._bells)
    channel._memory.words()[PAGE // 8 + 1] = int(other.fingerprint(), 16)
    imposter.writer(other).push(random_rows(other, (2,), np.random.default_rng(0)))
    channel._memory.words()[PAGE // 8 + 1] = int(PLAIN.fingerprint(), 16)
    with pytest.raises(ChannelBroken) as error:
        channel.reader(PLAIN).pop()
    assert other.fingerprint() in str(error.value)
    assert PLAIN.fingerprint() in str(error.value)


def test_another_layout_is_refused():
    channel = Channel.create(PLAIN, 2, 1, 4)
    with pytest.raises(ChannelBroken, match="expects"):
        Channel((PLAIN, 3, 1, 4), channel._memory, *channel._bells).writer(PLAIN)


def planted(kind: type[Memory] | type[Channel]) -> Channel:
    channel = Channel.create(PLAIN, 2)
    faulty = channel if issubclass(kind, Channel) else channel._memory
    faulty.__class__ = kind
    return channel


def test_memory_by_value_is_found_in_real_processes():
    """A copy made by the transport, a copied view, a copy nobody checked, and a true one."""
    channels = [planted(kind) for kind in (ByValue, HalfByValue, Unproven, Memory)]
    template = {"w": np.zeros(4, np.float32)}
    weights = Weights.create(template)
    weights._memory.__class__ = ByValue
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=attach_all, args=(there, PLAIN, channels, weights))
    child.start()
    there.close()
    answers = [here.recv() for _ in range(5) if here.poll(PATIENCE)]
    child.join(PATIENCE)
    assert child.exitcode == 0
    for name, message in (answers[0], answers[1], answers[4]):
        assert (name, "travelled by value" in message) == ("ChannelBroken", True), message
    # The copy's own process cannot tell once its check is gone; this side can.
    assert answers[2][0] == answers[3][0] == "ok"
    with pytest.raises(ChannelBroken, match="not seen here"):
        channels[2].confirm(Canary(*answers[2][1]))
    assert channels[2].reader(PLAIN).pop() is None
    channels[3].confirm(Canary(*answers[3][1]))
    sent = random_rows(PLAIN, (2,), np.random.default_rng(0))
    assert same(channels[3].reader(PLAIN).pop(), sent)


def test_memory_travels_only_into_a_spawned_process():
    here, there = SPAWN.Pipe()
    channel = Channel.create(PLAIN, 2)
    with pytest.raises(BadConfig, match="spawned Process"):
        there.send(channel)
    here.close()
    there.close()
