"""`Weights`: parameters from one process to many, each version whole or not at all.

A few slots in shared memory are written in turn. The number of the newest is published last, so a
writer that dies while writing leaves the version before in place. A reader copies a slot and checks
the copy by its hash; if the writer overwrote the slot meanwhile, it takes the newer version.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from ..errors import BadConfig, ChannelClosed, SpecMismatch, WeightsBroken
from .memory import PAGE, PLACES, Canary, Memory, Shared, fence
from .tree_layout import Tree, TreeLayout, aligned

_HEAD = struct.Struct("=3Q")  # sequence, version, bytes; the hash follows
_HEAD_BYTES = 64
_BASE = PAGE // 8
_FINGERPRINT, _NEWEST, _TORN = _BASE, _BASE + 16, _BASE + 32
_WRITER = 1  # the word of its canary; those of readers are in PLACES
_SLOTS_AT = 2 * PAGE
_SAME = 3  # readings of the same wrong bytes after which they count as damaged


class Weights(Shared):
    """One tree of arrays, published again and again; pass it to a Process.

        weights = Weights.create(params)
        weights.writer(params).publish(params, version=1)
        tree, version = weights.reader(params).pull_if_newer(-1)

    `template` gives names, shapes and dtypes. A few numbers (a schedule's restart point, the global
    steps) are a tree too: give them their own Weights.
    """

    def __init__(self, leaves: list[str], slots: int, stride: int, memory: Memory) -> None:
        self._leaves, self._slots, self._stride, self._memory = leaves, slots, stride, memory

    @staticmethod
    def create(template: Tree, slots: int = 3) -> Weights:
        """Memory for `slots` versions, with nothing published yet."""
        if slots < 3:
            raise BadConfig(f"Weights: slots must be at least 3, got {slots}")
        layout = TreeLayout(template)
        stride = _HEAD_BYTES + layout.nbytes
        memory = Memory.create(PAGE + slots * stride)
        memory.words()[_FINGERPRINT] = layout.fingerprint()
        return Weights(layout.describe(), slots, stride, memory)

    def writer(self, template: Tree) -> WeightsWriter:
        """The end that publishes; only one process may have it."""
        return WeightsWriter(*self._attach(template, _WRITER))

    def reader(self, template: Tree, place: int | None = None) -> WeightsReader:
        """An end that pulls; any number of processes may have one.

        Where canaries are confirmed, each process must have its own `place`: 0, 1, 2, ...
        """
        word = None if place is None else PLACES[place % len(PLACES)]
        return WeightsReader(*self._attach(template, word))

    def _attach(self, template: Tree, side: int | None) -> tuple[TreeLayout, WeightSlots, Canary]:
        layout = TreeLayout(template)
        layout.compare(self._leaves)
        slots = WeightSlots(self._memory, self._slots, self._stride)
        canary = self._memory.prove(side, slots.words)
        if slots.words[_FINGERPRINT] != layout.fingerprint():
            raise SpecMismatch(
                f"weights: expected the tree {slots.words[_FINGERPRINT]:016x}, got "
                f"{layout.fingerprint():016x}; build every process's network from one config"
            )
        return layout, slots, canary

    @property
    def torn(self) -> int:
        """How many damaged versions readers found; none was delivered."""
        return self._memory.words()[_TORN]

    def confirm(self, canary: Canary) -> None:
        """Raise ChannelBroken unless the canary that an end in another process wrote is seen."""
        self._memory.confirm(canary)

    def share(self) -> tuple[dict[str, Any], list[int]]:
        plain, fds = self._memory.share()
        layout = [self._leaves, self._slots, self._stride]
        return {"layout": layout, "memory": plain}, fds

    @classmethod
    def attach(cls, plain: Mapping[str, Any], fds: Sequence[int]) -> Weights:
        leaves, slots, stride = plain["layout"]
        return Weights(leaves, slots, stride, Memory.attach(plain["memory"], fds))

    def close(self) -> None:
        """Release the memory in this process; ends that were made keep theirs."""
        self._memory.close()


class WeightSlots:
    """The slots in shared memory: the number of the newest one, heads and payloads."""

    def __init__(self, memory: Memory, count: int, stride: int) -> None:
        self.words, self.count, self._stride = memory.words(), count, stride
        self._raw = memory.raw()
        self._payload = memory.array(
            np.uint8, (count, stride - _HEAD_BYTES), _SLOTS_AT + _HEAD_BYTES, (stride, 1)
        )

    def payload(self, number: int) -> np.ndarray:
        """The bytes of publication `number`: uint8[nbytes]."""
        return self._payload[number % self.count]

    def head(self, number: int) -> bytes:
        """Sequence, version, size and hash as they stand: 32 bytes."""
        at = _SLOTS_AT + number % self.count * self._stride
        return bytes(self._raw[at : at + 32])

    def put_head(self, number: int, head: bytes) -> None:
        """Write a head of 32 bytes."""
        at = _SLOTS_AT + number % self.count * self._stride
        self._raw[at : at + 32] = head


class WeightsWriter:
    """Publishes whole trees in rising versions: `writer.publish(params, version=7)`."""

    def __init__(self, layout: TreeLayout, slots: WeightSlots, canary: Canary) -> None:
        self.canary = canary
        self._layout, self._slots = layout, slots
        # After a writer that died, continue where it stopped.
        self._number = slots.words[_NEWEST]
        found = _HEAD.unpack(slots.head(self._number)[:24])
        self._version = found[1] if self._number else -1

    def publish(self, tree: Tree, version: int) -> None:
        """Make `tree` the newest version; `version` must be above the last one."""
        if not self._version < version < 2**64:
            raise BadConfig(
                f"publish: version must be above {self._version}, got {version}; count upwards"
            )
        slots, number = self._slots, self._number + 1
        if slots.words[self.canary.word] != self.canary.value:
            raise ChannelClosed(
                "publish: a newer writer has taken these weights over; nothing was published"
            )
        payload = slots.payload(number)
        slots.put_head(number, bytes(32))  # whoever still reads this slot sees that it is gone
        fence()
        self._layout.write(tree, payload)
        head = _HEAD.pack(number, version, payload.size)
        slots.put_head(number, head + _digest(head, payload))
        fence()
        slots.words[_NEWEST] = number
        self._number, self._version = number, version


class WeightsReader:
    """Pulls the newest whole tree: `found = reader.pull_if_newer(have_version)`."""

    def __init__(self, layout: TreeLayout, slots: WeightSlots, canary: Canary) -> None:
        self.canary = canary
        self._layout, self._slots = layout, slots
        self._last = (0, -1)  # publication and version pulled last

    def pull_if_newer(
        self, have_version: int = -1, timeout: float = 5.0
    ) -> tuple[Tree, int] | None:
        """The newest tree and its version, or None if that is not above `have_version`.

        The arrays are the caller's own. Raises WeightsBroken if the bytes are not what was
        published, or if the writer was always faster than this copy for `timeout` seconds.
        """
        slots = self._slots
        deadline, wrong = time.monotonic() + timeout, 0
        before = b""
        while number := slots.words[_NEWEST]:
            if number == self._last[0] and self._last[1] <= have_version:
                return None
            fence()  # read no slot before its number
            head = slots.head(number)
            sequence, version, size = _HEAD.unpack(head[:24])
            whole = sequence == number and size == self._layout.nbytes
            if whole:
                copy = aligned(size)
                copy[:] = slots.payload(number)
                if _digest(head[:24], copy) == head[24:]:
                    self._last = (number, version)
                    return (self._layout.read(copy), version) if version > have_version else None
            # Wrong although the writer is idle: damaged. Otherwise it was overwritten meanwhile.
            fence()
            still = slots.words[_NEWEST] == number and head == before
            wrong, before = wrong + 1 if still else 0, head
            if wrong >= _SAME:
                slots.words[_TORN] += 1
                raise WeightsBroken(
                    f"weights: publication {number} (version {version}) does not have the hash it "
                    "was published with (weights-hash); publish again, and restart if it recurs"
                )
            if time.monotonic() > deadline:
                raise WeightsBroken(
                    f"weights: for {timeout:g} s every version was overwritten while it was read "
                    "(weights-hash); publish less often or create the Weights with more slots"
                )
        return None


def _digest(head: bytes, payload: np.ndarray) -> bytes:
    state = xxhash.xxh3_64(head)
    state.update(payload.data)
    return state.digest()
