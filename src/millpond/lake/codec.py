"""Wide columns compressed frame by frame, so that any frame can be read alone.

Each frame is one zstd frame made with a dictionary trained on its Lake. Thousands are compressed
or decoded by one native call; a Python object per frame would cost more than the decoding.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import zstandard as _zstandard

from .journal import digest

zstandard: Any = _zstandard  # its stubs know no arrays

LEVEL = 3
DICTIONARY = 64 * 1024
WORTH = 1.5  # compress only what becomes at least so much smaller
MOST = 8  # dictionaries of one writer
_SAMPLES = 1500  # frames a dictionary is trained on
_JUDGED = 64  # frames by which one is judged
# Bytes that one piece of a dictionary has. zstd's own search ends at 2000, with which 84 x 84
# frames become a tenth larger and decode more slowly than with pieces about as long as they are;
# and it takes twice as long as trying these two.
_PIECES = (4096, 8192)
_TRAINING = 1.4  # how many times smaller training makes what untrained neighbours do not
_SHARED = 32  # frames per thread from which sharing them pays


class Codec:
    """Frames of `width` bytes, to and from zstd with one dictionary (empty: none)."""

    def __init__(self, dictionary: bytes, width: int) -> None:
        self.dictionary, self.width = dictionary, width
        self.identity = digest(dictionary)
        self.usual = 0.0  # how many times smaller it makes what it was trained on, once known
        self._mine = threading.local()  # a decoder serves one thread at a time
        self._encoder: Any = None

    def _decoder(self) -> Any:
        if not hasattr(self._mine, "decoder"):
            _keep_freed_memory()
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
        parts = [packed[i].tobytes() for i in range(number)]
        return b"".join(parts), np.fromiter(map(len, parts), np.int64, number)

    def decode(
        self,
        blob: np.ndarray,
        start: np.ndarray,
        stop: np.ndarray,
        threads: int,
        *outs: np.ndarray,
        ballast: int | None = None,
    ) -> None:
        """Frames at bytes start[i] ... stop[i] - 1 of `blob` into uint8[some, width] arrays.

        They fill the first of `outs`, then the next; without any they are only decoded. Call with
        hundreds of frames, which stay in the cache until they are copied: each call has a price.
        `ballast` is where in `blob` there is some.
        """
        if threads > 1 and len(start) >= _SHARED * threads:
            self._decode_shared(blob, start, stop, threads, outs, ballast)
            return
        number, width = len(start), self.width
        where = np.empty((number + 1, 2), np.uint64)
        where[:-1, 0], where[:-1, 1] = start, stop - start
        sizes = np.full(number + 1, width, np.uint64)
        sizes[-1] = 1
        if ballast is not None and number * width <= BALLAST:
            where[-1] = ballast_for(ballast, number * width)
        else:
            where, sizes = where[:-1], sizes[:-1]
        frames = self._decoder().multi_decompress_to_buffer(
            zstandard.BufferWithSegments(blob, where.tobytes()),
            decompressed_sizes=sizes.tobytes(),
            threads=1,
        )
        begin, usual = 0, number
        for out in outs:
            usual = _move(frames, begin, begin + len(out), width, out.ctypes.data, usual)
            begin += len(out)

    def _decode_shared(
        self,
        blob: np.ndarray,
        start: np.ndarray,
        stop: np.ndarray,
        threads: int,
        outs: tuple[np.ndarray, ...],
        ballast: int | None,
    ) -> None:
        """As `decode`, every thread a share of every array."""
        share, begin, done = -(-len(start) // threads), 0, list[Any]()
        for out in outs:
            for at in range(0, len(out), share):
                some = slice(begin + at, begin + min(at + share, len(out)))
                part = out[at : at + share]
                done.append(
                    _pool(threads).submit(
                        self.decode, blob, start[some], stop[some], 1, part, ballast=ballast
                    )
                )
            begin += len(out)
        for one in done:
            one.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "lake-decoder")


# The decoder allocates buffers about as large as what it is given to decode. For frames that
# become 40 times larger those would be dozens of small ones, each to be found and copied. So it is
# given one frame more: of one byte, and a skippable part as large as the result, which the format
# allows and nobody reads. Then everything lies in one buffer.
BALLAST = 1 << 26
_EACH = 64  # bytes apart; ballast for all sizes lies over each other, as only its head matters


def lay_ballast(region: np.ndarray) -> None:
    """Write ballast into uint8[up to BALLAST], for results of every size there is room for."""
    heads = _ballast()
    region[: len(heads)] = heads


@functools.cache
def _ballast() -> np.ndarray:
    """The heads of ballast for every size."""
    heads = np.zeros((BALLAST.bit_length() + 1) * _EACH, np.uint8)
    frame = zstandard.ZstdCompressor().compress(b"x")
    for bits in range(BALLAST.bit_length()):
        at, size = ballast_for(0, 1 << bits)
        head = frame + struct.pack("<II", 0x184D2A50, size - len(frame) - 8)
        heads[at : at + len(head)] = np.frombuffer(head, np.uint8)
    return heads


def with_ballast(blob: bytes, size: int) -> np.ndarray:
    """Frames with ballast behind them, for results of at most `size` bytes, all told."""
    room = max(len(_ballast()), sum(ballast_for(0, size)))
    whole = np.empty(len(blob) + room, np.uint8)
    whole[: len(blob)] = np.frombuffer(blob, np.uint8)
    lay_ballast(whole[len(blob) :])
    return whole


def ballast_for(base: int, size: int) -> tuple[int, int]:
    """Where the ballast for a result of `size` bytes lies, and its length."""
    bits = max(12, (size - 1).bit_length())
    return base + bits * _EACH, (1 << (bits - 1)) + 64


@functools.cache
def _keep_freed_memory() -> None:
    """Let malloc keep up to 64 MiB it got back. Every decoding call needs the same few megabytes;
    given back to the kernel each time, their page faults would double the time it takes."""
    with suppress(AttributeError):  # a C library without mallopt
        libc: Any = ctypes.CDLL(None)
        for parameter in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, 64 << 20)


def _move(frames: Any, i: int, stop: int, width: int, to: int, usual: int) -> int:
    """Copy frames i ... stop - 1 out of the decoder's buffers, as many at once as lie together."""
    begin = i
    while i < stop:
        offset = frames[i].offset
        end = min(i + usual, stop)
        if frames[end - 1].offset != offset + (end - 1 - i) * width:
            end = i + 1
            while end < stop and frames[end].offset != 0:  # a buffer's first frame has offset 0
                end += 1
            usual = end - i
        address = np.frombuffer(frames[i], np.uint8).__array_interface__["data"][0]
        ctypes.memmove(to + (i - begin) * width, address, (end - i) * width)
        i = end
    return usual


class Codecs:
    """The codecs of one wide column so far, and which of them, if any, the next segment takes.

    Few dictionaries: every draw is grouped by dictionary.
    """

    def __init__(self, width: int) -> None:
        self.width, self.known = width, list[Codec]()
        self._pause = self._skip = 0  # segments to leave raw before trying again

    def choose(self, sample: Callable[[int], np.ndarray]) -> Codec | None:
        """The codec for a segment of which sample(n) gives about n frames; None: leave it raw.

        A known one, unless it makes frames a fifth larger than those it was made for; then a new
        one, if that is better. What did not compress is tried again ever more rarely.
        """
        if self._skip:
            self._skip -= 1
            return None
        frames = sample(_JUDGED)
        ratios = [ratio(codec, frames) for codec in self.known]
        best = self.known[int(np.argmax(ratios))] if self.known else None
        reached = max(ratios, default=0.0)
        if best is not None and not best.usual:
            best.usual = reached  # found on disk: what it does now is what it does
        if best is None or (reached < 0.8 * best.usual and len(self.known) < MOST):
            fresh = None
            if best is not None or _TRAINING * untrained(frames) >= WORTH:
                fresh = trained(sample(_SAMPLES), frames)
            if fresh is not None and fresh.usual > reached * 1.25:
                best, reached = fresh, fresh.usual
            elif best is not None:
                best.usual = reached  # the frames have become harder, not the dictionary worse
        if best is None or reached < WORTH:
            self._pause = self._skip = min(64, 2 * self._pause or 1)
            return None
        self._pause = 0
        if best not in self.known:
            self.known.append(best)
        return best


def untrained(frames: np.ndarray) -> float:
    """How many times smaller frames become beside a few others, at a hundredth of the cost."""
    others = frames[::2][: DICTIONARY // frames.shape[1]]
    # A zero in front: whatever the frames hold, it does not look like a trained dictionary.
    return ratio(Codec(b"\0" + others.tobytes(), frames.shape[1]), frames[1::2])


def trained(frames: np.ndarray, judged: np.ndarray) -> Codec:
    """The codec, of some trained on frames uint8[n, width], that makes `judged` smallest."""
    samples = [frame.tobytes() for frame in frames]
    codecs = [Codec(train(samples, piece), frames.shape[1]) for piece in _PIECES]
    for codec in codecs:
        codec.usual = ratio(codec, judged)
    return max(codecs, key=lambda codec: codec.usual)


def train(samples: list[bytes], piece: int) -> bytes:
    """A dictionary for frames like these, in pieces of so many bytes; empty where none is made."""
    try:
        return zstandard.train_dictionary(DICTIONARY, samples, k=piece, d=8).as_bytes()
    except zstandard.ZstdError:
        return b""  # too few or too uniform frames


def ratio(codec: Codec, frames: np.ndarray) -> float:
    """How many times smaller these frames become."""
    return frames.nbytes / max(1, len(codec.compress(frames, 1)[0]))
