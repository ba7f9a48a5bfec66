"""`Slots`: how pushed rows lie in shared memory, and whether they are what was written.

A slot holds one push: a head of six words, one packed record per row (flags, reward, action and
extras), and one section per observation field. Binary fields take one bit per element. The hash in
the head covers the rest of the head and every used byte, so a slot that was half written, changed
or belongs to another lap is recognised.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..errors import BadConfig, ChannelBroken
from ..rows import Rows, unpack_rows
from ..spec import Field, Spec, walk
from .memory import Memory

_HEAD = struct.Struct("=5Q")  # sequence, fingerprint, time, rank, bytes; the hash follows
_HEAD_BYTES = 64
_RECORD = "record"
_LINE = 64


class Section(NamedTuple):
    """Where a part of every row lies in its slot: `width` bytes per step of all envs."""

    offset: int
    width: int


class Slots:
    """The layout of `count` slots of up to `time` steps of `num_envs` envs.

    `slots.attach(memory, base)` gives the slots themselves.
    """

    def __init__(self, spec: Spec, num_envs: int, time: int, count: int) -> None:
        for name, value in (("num_envs", num_envs), ("time", time), ("slots", count)):
            if value < 1:
                raise BadConfig(f"Channel: {name} must be at least 1, got {value}")
        self.spec, self.num_envs, self.time, self.count = spec, num_envs, time, count
        self.fingerprint = int(spec.fingerprint(), 16)
        self.obs = dict(walk(spec.obs, "obs"))
        self.small = {path: f for path, f in spec.columns.items() if path not in self.obs}
        # Aligned: NumPy copies unaligned fields several times slower.
        parts: list[tuple[str, Any, Any]] = [
            (path, "u1", (f.nbytes,)) if f.binary else (path, f.dtype, f.shape)
            for path, f in self.small.items()
        ]
        self.record = np.dtype([*parts, ("flags", "u1", ())], align=True)
        widths = {_RECORD: self.record.itemsize, **{p: f.nbytes for p, f in self.obs.items()}}
        self.sections: dict[str, Section] = {}
        end = _HEAD_BYTES
        for path, width in widths.items():
            self.sections[path] = Section(end, width * num_envs)
            end += -(-width * num_envs * time // _LINE) * _LINE
        self.stride = end

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.stride * self.count

    def attach(self, memory: Memory, base: int) -> SlotMemory:
        """The slots that begin at byte `base` of the memory."""
        return SlotMemory(self, memory, base)


class SlotMemory:
    """Slots in shared memory, by the number of the push: `put` and `get`."""

    def __init__(self, layout: Slots, memory: Memory, base: int) -> None:
        self.layout, self._base = layout, base
        self._raw = memory.raw()
        lead = (layout.count, layout.time, layout.num_envs)

        def view(path: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
            offset, width = layout.sections[path]
            item = np.dtype(dtype).itemsize
            inner = [item * int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
            strides = (layout.stride, width, width // layout.num_envs, *inner)
            return memory.array(dtype, (*lead, *shape), base + offset, strides)

        self._records = view(_RECORD, layout.record, ())
        self._obs = {
            path: view(path, "u1", (f.nbytes,)) if f.binary else view(path, f.dtype, f.shape)
            for path, f in layout.obs.items()
        }
        self._sections = [(base + s.offset, s.width) for s in layout.sections.values()]
        self._step = sum(s.width for s in layout.sections.values())

    def put(self, number: int, values: Mapping[str, np.ndarray], flags: np.ndarray) -> int:
        """Write push `number`, values and flags [env] or [time, env]; returns its bytes."""
        layout = self.layout
        slot, rank = number % layout.count, flags.ndim
        time = 1 if rank == 1 else len(flags)
        where = (slot, 0) if rank == 1 else (slot, slice(time))
        record = self._records[where]
        record["flags"] = flags
        for path, field in layout.small.items():
            record[path] = _stored(field, values[path], rank)
        for path, field in layout.obs.items():
            self._obs[path][where] = _stored(field, values[path], rank)
        begin = slot * layout.stride
        parts = [
            self._raw[begin + offset : begin + offset + time * width]
            for offset, width in self._sections
        ]
        used = time * self._step
        head = _HEAD.pack(number, layout.fingerprint, time, rank, used)
        at = self._base + begin
        self._raw[at : at + 48] = head + _digest(head, parts)
        return used

    def head(self, number: int) -> Head:
        """The head of push `number`, or ChannelBroken if it is not the head of that push."""
        at = self._base + number % self.layout.count * self.layout.stride
        head = bytes(self._raw[at : at + 48])
        sequence, fingerprint, time, rank, used = _HEAD.unpack(head[:40])
        layout = self.layout
        if sequence != number:
            raise broken(number, f"its sequence number is {sequence}")
        if fingerprint != layout.fingerprint:
            spec = f"{fingerprint:016x}, this channel's is {layout.fingerprint:016x}"
            raise broken(number, f"its spec's fingerprint is {spec}")
        if not (1 <= time <= layout.time and rank in (1, 2)) or (rank == 1 and time != 1):
            raise broken(number, f"it claims {time} steps of rank {rank}")
        if used != time * self._step:
            raise broken(number, f"it claims {used} bytes for {time} steps")
        return Head(number, time, rank, used, head[:40], head[40:])

    def get(self, heads: list[Head]) -> tuple[Rows, int]:
        """A copy of the rows of these pushes as [time, env], and how many pushes it holds.

        Bytes are copied first and then checked, so nothing can change in between. The copy ends
        before the first damaged push; if that is the very first, ChannelBroken is raised.
        """
        layout = self.layout
        total = sum(head.time for head in heads)
        copies = [np.empty(total * width, np.uint8) for _, width in self._sections]
        outs = [copy.data for copy in copies]
        done = good = 0
        for head in heads:
            begin = head.number % layout.count * layout.stride
            parts: list[memoryview] = []
            for out, (offset, width) in zip(outs, self._sections, strict=True):
                part = out[done * width : (done + head.time) * width]
                part[:] = self._raw[begin + offset : begin + offset + len(part)]
                parts.append(part)
            if _digest(head.words, parts) != head.hash:
                if not good:
                    raise broken(head.number, "its bytes do not have the hash they were sent with")
                break
            done += head.time
            good += 1
        return self._rows(dict(zip(layout.sections, copies, strict=True)), done), good

    def _rows(self, copies: dict[str, np.ndarray], time: int) -> Rows:
        layout = self.layout
        lead = (time, layout.num_envs)
        taken = {path: copy[: time * layout.sections[path].width] for path, copy in copies.items()}
        record = taken[_RECORD].view(layout.record).reshape(lead)

        def at(path: str) -> np.ndarray:
            field = layout.obs.get(path)
            if field is None:
                field, stored = layout.small[path], record[path]
            else:
                stored = taken[path].reshape(*lead, -1)
                if not field.binary:
                    return stored.view(field.dtype).reshape(*lead, *field.shape)
            if not field.binary:
                return stored
            bits = np.unpackbits(stored, axis=-1, count=field.size, bitorder="little")
            return bits.reshape(*lead, *field.shape).astype(field.dtype, copy=False)

        # Contiguous: several bits are read from each byte, and strided reads are slow.
        return unpack_rows(layout.spec, np.ascontiguousarray(record["flags"]), at)


class Head(NamedTuple):
    """What a slot says about itself."""

    number: int
    time: int
    rank: int
    used: int
    words: bytes
    hash: bytes


def broken(number: int, what: str) -> ChannelBroken:
    """The error for a damaged slot."""
    return ChannelBroken(
        f"channel: push {number} is not what was written: {what}; nothing of it was delivered. "
        "Restart the writer with a new channel and cut its streams"
    )


def _digest(head: bytes, parts: list[memoryview]) -> bytes:
    # xxh3: 54 GB/s where crc32 does 4, on 64 rows of 264 B.
    state = xxhash.xxh3_64(head)
    for part in parts:
        state.update(part)
    return state.digest()


def _stored(field: Field, value: np.ndarray, rank: int) -> np.ndarray:
    if not field.binary:
        return value
    flat = np.asarray(value).reshape(*value.shape[:rank], -1) != 0
    return np.packbits(flat, axis=-1, bitorder="little")
