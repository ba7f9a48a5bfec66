"""Wide columns compressed frame by frame, so that any frame can be read alone.

Each frame is one zstd frame made with a dictionary trained on its Lake. Thousands are compressed
or decoded by one native call; a Python object per frame would cost more than the decoding.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import zstandard as _zstandard

from .journal import digest

zstandard: Any = _zstandard  # its stubs know no arrays

LEVEL = 3
DICTIONARY = 64 * 1024
WORTH = 1.5  # compress only what becomes at least so much smaller
_SAMPLES = 1500
_TOGETHER = 512 * 7056  # bytes decoded by one call: they stay in the cache until they are copied


class Codec:
    """Frames of `width` bytes, to and from zstd with one dictionary (empty: none)."""

    def __init__(self, dictionary: bytes, width: int) -> None:
        self.dictionary, self.width = dictionary, width
        self.identity = digest(dictionary)
        self._mine = threading.local()  # a decoder serves one thread at a time
        self._encoder: Any = None

    def _decoder(self) -> Any:
        if not hasattr(self._mine, "decoder"):
            known = zstandard.ZstdCompressionDict(self.dictionary) if self.dictionary else None
            self._mine.decoder = zstandard.ZstdDecompressor(dict_data=known)
        return self._mine.decoder

    def compress(self, frames: np.ndarray, threads: int) -> tuple[bytes, np.ndarray]:
        """uint8[n, width] → their zstd frames one after the other, and the length of each."""
        if self._encoder is None:
            known = None
            if self.dictionary:
                known = zstandard.ZstdCompressionDict(self.dictionary)
                known.precompute_compress(level=LEVEL)
            # No size, no dictionary id, no checksum per frame: the index, the segment's
            # description and the checksums of its pages hold these once.
            self._encoder = zstandard.ZstdCompressor(
                level=LEVEL,
                dict_data=known,
                write_content_size=False,
                write_checksum=False,
                write_dict_id=False,
            )
        number = len(frames)
        where = np.empty((number, 2), np.uint64)
        where[:, 0] = np.arange(number, dtype=np.uint64) * self.width
        where[:, 1] = self.width
        source = zstandard.BufferWithSegments(np.ascontiguousarray(frames), where.tobytes())
        packed = self._encoder.multi_compress_to_buffer(source, threads=threads)
        lengths = np.fromiter((len(packed[i]) for i in range(number)), np.int64, number)
        return b"".join(packed[i].tobytes() for i in range(number)), lengths

    def decode(
        self, blob: np.ndarray, start: np.ndarray, stop: np.ndarray, every: int, threads: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Frames at bytes start[i] ... stop[i] - 1 of `blob`, as (i, uint8[some, width]) in order.

        Each stretch holds a multiple of `every` frames and is valid until the next one is asked.
        """
        number, width, decoder = len(start), self.width, self._decoder()
        where = np.stack([start, stop - start], axis=1).astype(np.uint64, copy=False)
        # The decoder makes 16 buffers per thread: a multiple of 16 groups keeps groups whole.
        groups = max(1, _TOGETHER // (width * every * 16)) * 16 * threads
        together = groups * every
        for at in range(0, number, together):
            some = where[at : at + together]
            sizes = np.full(len(some), width, np.uint64).tobytes()
            source = zstandard.BufferWithSegments(blob, some.tobytes())
            frames = decoder.multi_decompress_to_buffer(
                source, decompressed_sizes=sizes, threads=threads
            )
            yield from _stretches(frames, at, len(some), width, every)


def _stretches(
    frames: Any, at: int, number: int, width: int, every: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The decoder's own buffers without a copy; where one ends within a group, copies."""
    i = 0
    while i < number:
        base = frames[i].offset
        low, high = i, number - 1  # the last frame that lies in the same buffer as frame i
        while low < high:
            middle = (low + high + 1) // 2
            if frames[middle].offset == base + (middle - i) * width:
                low = middle
            else:
                high = middle - 1
        whole = (low + 1 - i) // every * every
        if whole:
            address = np.frombuffer(frames[i], np.uint8).ctypes.data
            view = (ctypes.c_uint8 * (whole * width)).from_address(address)
            yield at + i, np.ctypeslib.as_array(view).reshape(whole, width)
        i += whole
        if whole == 0:
            parts = [np.frombuffer(frames[i + j], np.uint8) for j in range(every)]
            yield at + i, np.stack(parts)
            i += every


def train(frames: np.ndarray) -> bytes:
    """A dictionary for frames like these: uint8[n, width]; empty where none can be made."""
    step = max(1, len(frames) // _SAMPLES)
    samples = [frame.tobytes() for frame in frames[::step]]
    try:
        return zstandard.train_dictionary(DICTIONARY, samples).as_bytes()
    except zstandard.ZstdError:
        return b""  # too few or too uniform frames


def ratio(codec: Codec, frames: np.ndarray) -> float:
    """How many times smaller a sample of frames becomes."""
    step = max(1, len(frames) // 64)
    some = np.ascontiguousarray(frames[::step])
    return some.nbytes / max(1, len(codec.compress(some, 1)[0]))


def choose(frames: np.ndarray, known: list[Codec], most: int, width: int) -> Codec | None:
    """The codec for these frames: a known one, or a new one if it is a fifth better; None: raw.

    Few dictionaries: every draw is grouped by dictionary. With `most` of them known, none is made.
    """
    best = max(known, key=lambda codec: ratio(codec, frames), default=None)
    best_ratio = ratio(best, frames) if best else 0.0
    if len(known) < most:
        fresh = Codec(train(frames), width)
        if best is None or ratio(fresh, frames) * 0.8 > best_ratio:
            best, best_ratio = fresh, ratio(fresh, frames)
    return best if best_ratio >= WORTH else None
