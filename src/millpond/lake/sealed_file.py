"""`SealedFile`: a sealed segment read with plain reads, so that a failing disk is not a crash.

Verifying and repairing read through it; sampling reads through maps (`Reader`).
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

Frames = tuple[np.ndarray, np.ndarray, np.ndarray]  # bytes, and where each frame starts and stops


class SealedFile:
    """One file; the caller owns `fd`. `codecs` decode the compressed columns that can be."""

    def __init__(self, fd: int, path: Path, meta: Meta, columns: Columns) -> None:
        self.fd, self.path, self.meta = fd, path, meta
        self.widths = {column.name: column.width for column in columns.all}
        self.codecs: Mapping[str, Codec] = {}
        self._offsets: dict[str, np.ndarray] = {}

    def read(self, offset: int, size: int) -> np.ndarray:
        """uint8[size] of the file; what cannot be read comes back as zeros, page by page."""
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
        """The checksums of every page of every region; None if their own does not hold."""
        table = self.read(self.meta.sums.offset, self.meta.sums.size)
        return table.view("<u8") if digest(table) == self.meta.sums_sum else None

    def dictionary(self, stored: Stored) -> bytes | None:
        """A compressed column's dictionary (empty: it has none); None if it is damaged."""
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
        """bool[pages]: the wanted ones whose checksum differs. `take` gets all bytes read."""
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
        """int64[slots + 1]: where the frames of a compressed column begin, the last where it ends.

        Not checked here: a damaged table holds anything.
        """
        if name not in self._offsets:
            region = self.meta.columns[name].offsets
            assert region is not None
            table = self.read(region.offset, region.size).view("<u8")
            # Whatever is out of range stays out of range as a signed number.
            self._offsets[name] = np.minimum(table, np.uint64(2**62)).astype(np.int64)
        return self._offsets[name]

    def frames(self, name: str, slots: np.ndarray) -> Iterator[tuple[slice, Frames]]:
        """Compressed frames at rising slots whose offsets are good, some at a time."""
        table, data = self.offsets(name), self.meta.columns[name].data
        for at in range(0, len(slots), _FRAMES):
            some = slots[at : at + _FRAMES]
            start, stop = table[some], table[some + 1]
            base = int(start[0])
            blob = self.read(data.offset + base, int(stop[-1]) - base)
            yield slice(at, at + len(some)), (blob, start - base, stop - base)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start, width] of a column at slots that are good: what sealing asks for."""
        stored, width = self.meta.columns[name], self.widths[name]
        if stored.codec == "raw":
            size = (stop - start) * width
            return self.read(stored.data.offset + start * width, size).reshape(-1, width)
        out = np.empty((stop - start, width), np.uint8)
        for part, frames in self.frames(name, np.arange(start, stop)):
            self.codecs[name].decode(*frames, 1, out[part])
        return out


def undecodable(codec: Codec, frames: Frames, threads: int) -> np.ndarray:
    """bool[n]: the frames that do not decode to a row's size."""
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
    """Stretches of true entries: (first, one past the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
