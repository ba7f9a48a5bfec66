"""`SealedFile`: a sealed segment read without memory maps, so that a failing disk cannot crash it.

Verify and repair read through it; sampling reads through memory maps (`Reader`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from .codec import Codec, zstandard
from .columns import Columns
from .files import PAGE, as_bytes
from .journal import digest
from .segment import Meta, Region, Stored

_CHUNK = 8 << 20  # bytes read at a time
_FRAMES = 4096  # frames read at a time
_DECODED = 256  # frames decoded at a time by each thread

Frames = tuple[np.ndarray, np.ndarray, np.ndarray]  # bytes, and where each frame starts and ends


class SealedFile:
    """One sealed file; the caller owns `fd`. `codecs` are those of columns that can be decoded."""

    def __init__(self, fd: int, path: Path, meta: Meta, columns: Columns) -> None:
        self.fd, self.path, self.meta = fd, path, meta
        self.widths = {column.name: column.width for column in columns.all}
        self.codecs: Mapping[str, Codec] = {}
        self._offsets: dict[str, np.ndarray] = {}

    def read(self, offset: int, size: int) -> np.ndarray:
        """uint8[size] of the file; unreadable pages come back as zeros."""
        found = np.zeros(size, np.uint8)
        at = 0
        while at < size:
            try:
                some = os.pread(self.fd, min(size - at, _CHUNK), offset + at)
            except OSError:
                some = b""
            if not some:
                some = self._page(offset + at, min(size - at, PAGE - (offset + at) % PAGE))
            found[at : at + len(some)] = np.frombuffer(some, np.uint8)
            at += len(some)
        return found

    def _page(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self.fd, size, offset).ljust(size, b"\0")
        except OSError:
            return bytes(size)

    def sums(self) -> np.ndarray | None:
        """The table of all page checksums; None if it fails its own checksum."""
        table = self.read(self.meta.sums.offset, self.meta.sums.size)
        return table.view("<u8") if digest(table) == self.meta.sums_sum else None

    def dictionary(self, stored: Stored) -> bytes | None:
        """A compressed column's dictionary, empty if it has none; None if it is damaged."""
        region = stored.dictionary
        found = self.read(region.offset, region.size).tobytes() if region is not None else b""
        return found if digest(found) == stored.dictionary_sum else None

    def bad_pages(
        self,
        region: Region,
        sums: np.ndarray,
        wanted: np.ndarray,
        take: Callable[[int, np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """bool[pages]: wanted pages that fail their checksum; all data read is passed to `take`."""
        bad = np.zeros(region.pages, bool)
        mine = sums[region.sums // 8 : region.sums // 8 + region.pages].tolist()
        for first, last in runs(wanted):
            for start in range(first * PAGE, last * PAGE, _CHUNK):
                stop = min(start + _CHUNK, last * PAGE, region.size)
                data = self.read(region.offset + start, stop - start)
                view = as_bytes(data)
                for at in range(0, len(view), PAGE):
                    page = (start + at) // PAGE
                    bad[page] = digest(view[at : at + PAGE]) != mine[page]
                if take is not None:
                    take(start, data)
        return bad

    def offsets(self, name: str) -> np.ndarray:
        """int64[slots + 1]: where the frames of a compressed column begin, and where the last ends.

        Not checked here: a damaged table may hold anything.
        """
        if name not in self._offsets:
            region = self.meta.columns[name].offsets
            assert region is not None
            table = self.read(region.offset, region.size).view("<u8")
            # Clipped, so that what is out of range stays so as a signed number.
            self._offsets[name] = np.minimum(table, np.uint64(2**62)).astype(np.int64)
        return self._offsets[name]

    def frames(self, name: str, slots: np.ndarray) -> Iterator[tuple[slice, Frames]]:
        """Yield compressed frames at ascending slots, whose offsets must be valid, in parts."""
        table, data = self.offsets(name), self.meta.columns[name].data
        for at in range(0, len(slots), _FRAMES):
            some = slots[at : at + _FRAMES]
            start, stop = table[some], table[some + 1]
            base = int(start[0])
            blob = self.read(data.offset + base, int(stop[-1]) - base)
            yield slice(at, at + len(some)), (blob, start - base, stop - base)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """A `Rows` function, for sealing: undamaged rows start ... stop - 1 of a column."""
        stored, width = self.meta.columns[name], self.widths[name]
        if stored.codec == "raw":
            size = (stop - start) * width
            return self.read(stored.data.offset + start * width, size).reshape(-1, width)
        out = np.empty((stop - start, width), np.uint8)
        for part, frames in self.frames(name, np.arange(start, stop)):
            self.codecs[name].decode(*frames, 1, out[part])
        return out


def undecodable(codec: Codec, frames: Frames, threads: int) -> np.ndarray:
    """bool[n]: which frames do not decode to the size of a row."""
    blob, start, stop = frames
    bad = np.zeros(len(start), bool)
    room = np.empty((_DECODED * threads, codec.width), np.uint8)
    for at in range(0, len(start), len(room)):
        some = slice(at, at + len(room))
        try:
            codec.decode(blob, start[some], stop[some], threads, room[: len(start[some])])
        except (zstandard.ZstdError, ValueError):
            for i in range(at, at + len(start[some])):
                bad[i] = not _decodes(codec, blob, start[i : i + 1], stop[i : i + 1], room[:1])
    return bad


def _decodes(
    codec: Codec, blob: np.ndarray, start: np.ndarray, stop: np.ndarray, room: np.ndarray
) -> bool:
    try:
        codec.decode(blob, start, stop, 1, room)
    except (zstandard.ZstdError, ValueError):
        return False
    return True


def runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Runs of true entries, as (first, last + 1)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
