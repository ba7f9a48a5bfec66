"""Compresses wide columns frame by frame, so that any frame can be read by itself.

Each is one zstd frame made with a dictionary trained on its Lake. Thousands are compressed in one
native call, and neighbours are decoded in one, straight to their destination: a Python object per
frame would cost more than the decoding.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import zstandard as _zstandard

from .files import as_bytes
from .journal import digest

zstandard: Any = _zstandard  # its type stubs do not accept arrays


def _native() -> tuple[Any, Any]:
    """(lib, ffi): zstd's C functions, which release the interpreter lock, and the FFI to call them.

    They are private to zstandard's cffi backend. Without them, (None, None): decoding then uses the
    public API, more slowly.
    """
    try:
        backend: Any = importlib.import_module("zstandard.backend_cffi")
        lib, ffi = backend.lib, backend.ffi
        for name in ("ZSTD_createDDict", "ZSTD_decompress_usingDDict", "ZSTD_createDCtx"):
            getattr(lib, name)
    except (ImportError, AttributeError):
        return None, None
    return lib, ffi


_zstd, _ffi = _native()

LEVEL = 3
DICTIONARY = 64 * 1024
WORTH = 1.5  # the lowest ratio worth compressing for
MOST = 8  # dictionaries per writer and column
_SAMPLES = 1500  # frames to train a dictionary on
_JUDGED = 64  # frames to measure a dictionary's ratio on
# Segment sizes (zstd's parameter k) to train with, in bytes. zstd's own search stops at 2000, which
# makes 84 x 84 frames a tenth larger and slower to decode than segments about as long as a frame,
# and takes twice as long as trying these two.
_PIECES = (4096, 8192)
_TRAINING = 1.4  # ratio of a trained dictionary over that of untrained neighbouring frames
_SHARED = 32  # frames per thread above which several threads pay off

Stretches = tuple[list[int], list[int]]  # the bytes at which each begins and ends


class Codec:
    """Compresses frames of `width` bytes with one zstd dictionary (empty: without one)."""

    def __init__(self, dictionary: bytes, width: int) -> None:
        self.dictionary, self.width = dictionary, width
        self.identity = digest(dictionary)
        self.usual = 0.0  # the ratio on frames like those it was trained on; 0: not known yet
        self._encoder: Any = None

    @functools.cached_property
    def _ddict(self) -> Any:
        """The dictionary prepared for decoding, shared by all threads."""
        if not self.dictionary:
            return _ffi.NULL
        made = _zstd.ZSTD_createDDict(self.dictionary, len(self.dictionary))
        if made == _ffi.NULL:
            raise zstandard.ZstdError(f"no zstd dictionary: {len(self.dictionary)} bytes")
        return _ffi.gc(made, _zstd.ZSTD_freeDDict)

    def compress(self, frames: np.ndarray, threads: int) -> tuple[bytes, np.ndarray]:
        """Compress uint8[n, width]; return the concatenated zstd frames and the length of each."""
        if self._encoder is None:
            known = None
            if self.dictionary:
                known = zstandard.ZstdCompressionDict(self.dictionary)
                known.precompute_compress(level=LEVEL)
            # No size, checksum or dictionary id per frame: the index, the page checksums and the
            # segment's description already hold them.
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
    ) -> None:
        """Decode the frames at bytes start[i] ... stop[i] - 1 of `blob` into uint8[some, width].

        They fill the first of `outs`, then the next, and so on.
        """
        shared = threads > 1 and len(start) >= _SHARED * threads
        share = -(-len(start) // threads) if shared else max(1, len(start))
        parts = [out[at : at + share] for out in outs for at in range(0, len(out), share)]
        edges = np.cumsum([0, *map(len, parts)])
        calls = list(zip(stretches(blob, start, stop, edges), parts, strict=True))
        if not shared:
            for where, part in calls:
                self.decode_some(blob, where, part)
            return
        under_way = [_pool(threads).submit(self.decode_some, blob, *call) for call in calls]
        try:
            for one in under_way:
                one.result()
        finally:
            wait(under_way)  # after an error too: the caller may unmap what they read

    def decode_some(self, blob: np.ndarray, where: Stretches, out: np.ndarray) -> None:
        """Decode the frames in stretches of `blob` into `out`, a contiguous uint8[some, width].

        In one native call, since zstd decodes consecutive frames one after another; frames in
        several stretches are first copied together, as they are small. Many threads can do this at
        once: each needs the interpreter for a few microseconds only.
        """
        begins, ends = where
        if len(begins) == 1:
            size, source = ends[0] - begins[0], blob.ctypes.data + begins[0]
        else:
            size = sum(ends) - sum(begins)
            together, source = _scratch(size)
            at, bytes_ = 0, as_bytes(blob)
            for begin, end in zip(begins, ends, strict=True):
                together[at : at + end - begin] = bytes_[begin:end]
                at += end - begin
        if _zstd is None:
            made = self._decode_slowly(source, size, out)
        else:
            nowhere = _ffi.cast("char *", 0)
            made = _zstd.ZSTD_decompress_usingDDict(
                _context(),
                nowhere + out.ctypes.data,
                out.nbytes,
                nowhere + source,
                size,
                self._ddict,
            )
        if made != out.nbytes:
            raise zstandard.ZstdError(
                f"{len(out)} frames in {size} bytes do not decode to {self.width} bytes each"
            )

    def _decode_slowly(self, source: int, size: int, out: np.ndarray) -> int:
        """The same with the public API: the bytes decoded, or -1 if they do not fit into `out`."""
        known = zstandard.ZstdCompressionDict(self.dictionary) if self.dictionary else None
        frames = bytes((ctypes.c_char * size).from_address(source))
        decoder = zstandard.ZstdDecompressor(dict_data=known)
        reader = decoder.stream_reader(frames, read_across_frames=True)
        room, made = as_bytes(out), 0
        while made < len(room) and (some := reader.readinto(room[made:])):
            made += some
        return -1 if reader.read(1) else made


def stretches(
    blob: np.ndarray, start: np.ndarray, stop: np.ndarray, edges: np.ndarray
) -> list[Stretches]:
    """Merge frames at bytes start[i] ... stop[i] - 1 of `blob` that are neighbours into stretches.

    One result for each part, frames edges[j] ... edges[j + 1] - 1.
    """
    check_within(blob, start, stop)
    new = np.ones(len(start), bool)
    np.not_equal(start[1:], stop[:-1], out=new[1:])
    new[edges[:-1]] = True
    first = np.flatnonzero(new)
    last = np.append(first, len(start))[1:] - 1
    begins, ends = start[first].tolist(), stop[last].tolist()
    bounds = itertools.pairwise(np.searchsorted(first, edges).tolist())
    return [(begins[a:b], ends[a:b]) for a, b in bounds]


def check_within(blob: np.ndarray, start: np.ndarray, stop: np.ndarray) -> None:
    """Raise ValueError unless bytes start[i] ... stop[i] - 1 are all within `blob`."""
    if start.min(initial=0) < 0 or stop.max(initial=0) > len(blob) or (stop < start).any():
        raise ValueError(f"a frame is not within the {len(blob)} bytes there are")


_mine = threading.local()


def _context() -> Any:
    """This thread's zstd decoding context."""
    if not hasattr(_mine, "context"):
        _mine.context = _ffi.gc(_zstd.ZSTD_createDCtx(), _zstd.ZSTD_freeDCtx)
    return _mine.context


def _scratch(size: int) -> tuple[memoryview, int]:
    """A scratch buffer of at least `size` bytes, reused per thread, and its address."""
    if not hasattr(_mine, "scratch") or len(_mine.scratch[0]) < size:
        room = np.empty(size + size // 4, np.uint8)
        _mine.scratch = as_bytes(room), room.ctypes.data
    return _mine.scratch


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "lake-decoder")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not exist in the child


class Codecs:
    """The codecs of one wide column so far; chooses which of them the next segment uses.

    There are few, because every batch is decoded dictionary by dictionary.
    """

    def __init__(self, width: int) -> None:
        self.width, self.known = width, list[Codec]()
        self._pause = self._skip = 0  # segments to leave raw before trying again

    def choose(self, sample: Callable[[int], np.ndarray]) -> Codec | None:
        """The codec for a segment, of which sample(n) gives about n frames; None: leave it raw.

        It is a known one, unless that reaches less than 0.8 of its usual ratio; then a newly
        trained one, if that is better. Columns that do not compress are retried ever more rarely.
        """
        if self._skip:
            self._skip -= 1
            return None
        frames = sample(_JUDGED)
        ratios = [ratio(codec, frames) for codec in self.known]
        best = self.known[int(np.argmax(ratios))] if self.known else None
        reached = max(ratios, default=0.0)
        if best is not None and not best.usual:
            best.usual = reached  # it was read from disk, so its ratio was not known
        if best is None or (reached < 0.8 * best.usual and len(self.known) < MOST):
            fresh = None
            if best is not None or _TRAINING * untrained_ratio(frames) >= WORTH:
                fresh = trained(sample(_SAMPLES), frames)
            if fresh is not None and fresh.usual > reached * 1.25:
                best, reached = fresh, fresh.usual
            elif best is not None:
                best.usual = reached  # training does not help: these frames are harder to compress
        if best is None or reached < WORTH:
            self._pause = self._skip = min(64, 2 * self._pause or 1)
            return None
        self._pause = 0
        if best not in self.known:
            self.known.append(best)
        return best


def untrained_ratio(frames: np.ndarray) -> float:
    """The ratio with a few raw frames as the dictionary: a cheap estimate before training one."""
    others = frames[::2][: DICTIONARY // frames.shape[1]]
    # The leading zero keeps zstd from taking the frames for a trained dictionary.
    return ratio(Codec(b"\0" + others.tobytes(), frames.shape[1]), frames[1::2])


def trained(frames: np.ndarray, judged: np.ndarray) -> Codec:
    """Train several dictionaries on frames uint8[n, width]; return the best codec for `judged`."""
    samples = [frame.tobytes() for frame in frames]
    codecs = [Codec(train(samples, piece), frames.shape[1]) for piece in _PIECES]
    for codec in codecs:
        codec.usual = ratio(codec, judged)
    return max(codecs, key=lambda codec: codec.usual)


def train(samples: list[bytes], piece: int) -> bytes:
    """A dictionary trained on `samples`, with segments of `piece` bytes; empty if that fails."""
    try:
        return zstandard.train_dictionary(DICTIONARY, samples, k=piece, d=8).as_bytes()
    except zstandard.ZstdError:
        return b""  # too few frames, or too uniform ones


def ratio(codec: Codec, frames: np.ndarray) -> float:
    """The compression ratio of these frames."""
    return frames.nbytes / max(1, len(codec.compress(frames, 1)[0]))
