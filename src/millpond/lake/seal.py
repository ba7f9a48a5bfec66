"""Sealing: an open segment becomes an immutable one, compressed and with a checksum per page."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import LakeFailed
from .codec import Codec, choose
from .columns import Column, Columns
from .files import PAGE, Files, as_bytes, said_plainly
from .journal import digest
from .segment import SEALED, Meta, Region, Stored, path_of, write_meta

MOST_DICTIONARIES = 8
_CHUNK = 4 << 20  # bytes read, compressed and written at a time
_SAMPLES = 1500

Rows = Callable[[str, int, int], np.ndarray]  # (column, start slot, stop slot) → uint8[n, width]


def seal(
    files: Files,
    folder: Path,
    columns: Columns,
    meta: Meta,
    rows: Rows,
    known: dict[str, list[Codec]],
    threads: int,
) -> Meta:
    """Write `NUMBER.seg` with the rows `meta.count` says; it is durable when this returns.

    `known` holds the codecs of each wide column so far, and gets the one that is chosen here.
    """
    target = path_of(folder, meta.number, ".seg")
    temporary = path_of(folder, meta.number, ".tmp")
    with said_plainly("sealing a segment", target):
        if temporary.exists():
            files.unlink(temporary)
        fd = files.create(temporary)
        try:
            sealed = _write(files, fd, columns, meta, rows, known, threads)
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(temporary, target)
        files.sync_folder(folder)
    return sealed


def _write(
    files: Files,
    fd: int,
    columns: Columns,
    meta: Meta,
    rows: Rows,
    known: dict[str, list[Codec]],
    threads: int,
) -> Meta:
    at = PAGE
    sums: list[np.ndarray] = []
    stored: dict[str, Stored] = {}
    slots = meta.columns[columns.all[0].name].data.size // columns.all[0].width

    def sums_of(region: np.ndarray) -> int:
        sums.append(region)
        return 8 * sum(len(part) for part in sums[:-1])

    for column in columns.all:
        codec = _codec_for(column, meta, rows, known) if column.wide else None
        if codec is None:
            region = Region(at, slots * column.width)
            pages = _copy(files, fd, column, meta, rows, region)
            stored[column.name] = Stored("raw", region._replace(sums=sums_of(pages)))
            at += region.size
        else:
            packed, tables = _compress(files, fd, column, meta, rows, codec, at, slots, threads)
            data, index, dictionary = packed.data, packed.offsets, packed.dictionary
            assert index is not None
            stored[column.name] = packed._replace(
                data=data._replace(sums=sums_of(tables[0])),
                offsets=index._replace(sums=sums_of(tables[1])),
            )
            end = dictionary or data
            at = _next_page(end.offset + end.size)
    table = np.concatenate(sums).astype("<u8")
    files.pwrite(fd, as_bytes(table), at)
    sealed = replace(
        meta,
        kind=SEALED,
        columns=stored,
        sums=Region(at, table.nbytes),
        sums_sum=digest(table),
    )
    end = write_meta(files, fd, sealed, _next_page(at + table.nbytes))
    files.truncate(fd, _next_page(end))
    return sealed


def extents(meta: Meta, width: int) -> Iterator[tuple[int, int]]:
    """Slots that hold rows, in stretches of at most a chunk; neighbours are one stretch."""
    most = max(1, _CHUNK // width)
    start = stop = 0
    for stream in range(meta.streams):
        begin = stream * meta.length
        if begin != stop:
            yield from _split(start, stop, most)
            start = begin
        stop = begin + int(meta.count[stream])
    yield from _split(start, stop, most)


def _split(start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, most):
        yield at, min(at + most, stop)


def _copy(
    files: Files, fd: int, column: Column, meta: Meta, rows: Rows, region: Region
) -> np.ndarray:
    """Write a raw region; return the checksums of its pages, 0 for pages that hold no row."""
    files.truncate(fd, region.offset + region.size)
    pages = PageSums(region.size)
    for start, stop in extents(meta, column.width):
        data = np.ascontiguousarray(rows(column.name, start, stop)).reshape(-1)
        files.pwrite(fd, as_bytes(data), region.offset + start * column.width)
        pages.add(start * column.width, data)
    return pages.finish()


def _codec_for(
    column: Column, meta: Meta, rows: Rows, known: dict[str, list[Codec]]
) -> Codec | None:
    """The codec for a wide column of this segment; None: it does not compress."""
    total = int(meta.count.sum())
    step = max(1, total // _SAMPLES)
    sample: list[np.ndarray] = []
    for stream in range(meta.streams):
        begin, count = stream * meta.length, int(meta.count[stream])
        # One row here and there from every stream, another phase in each.
        for t in range(stream % step, count, step):
            sample.append(rows(column.name, begin + t, begin + t + 1))
    if not sample:
        return None
    codecs = known.setdefault(column.name, [])
    codec = choose(np.concatenate(sample), codecs, MOST_DICTIONARIES, column.width)
    if codec is not None and codec not in codecs:
        codecs.append(codec)
    return codec


def _compress(
    files: Files,
    fd: int,
    column: Column,
    meta: Meta,
    rows: Rows,
    codec: Codec,
    at: int,
    slots: int,
    threads: int,
) -> tuple[Stored, tuple[np.ndarray, np.ndarray]]:
    """Write index, frames and dictionary; return where they lie and the sums of data and index."""
    index = Region(at, 8 * (slots + 1))
    begin = _next_page(index.offset + index.size)
    lengths = np.zeros(slots, np.int64)
    size = 0
    pages = PageSums(None)
    for start, stop in extents(meta, column.width):
        frames = np.ascontiguousarray(rows(column.name, start, stop))
        blob, some = codec.compress(frames, threads)
        _read_back(codec, blob, some, frames, threads)
        files.pwrite(fd, memoryview(blob), begin + size)
        pages.add(size, np.frombuffer(blob, np.uint8))
        lengths[start:stop] = some
        size += len(blob)
    table = np.concatenate([[0], np.cumsum(lengths)]).astype("<u8")
    files.pwrite(fd, as_bytes(table), index.offset)
    index_pages = PageSums(index.size)
    index_pages.add(0, table.view(np.uint8))
    data = Region(begin, size)
    dictionary = None
    if codec.dictionary:
        dictionary = Region(_next_page(begin + size), len(codec.dictionary), 0)
        files.pwrite(fd, memoryview(codec.dictionary), dictionary.offset)
    stored = Stored("zstd", data, index, dictionary, codec.identity)
    return stored, (pages.finish(), index_pages.finish())


def _read_back(
    codec: Codec, blob: bytes, lengths: np.ndarray, frames: np.ndarray, threads: int
) -> None:
    """The raw rows are about to be deleted: see that the compressed ones give them back."""
    ends = np.cumsum(lengths)
    found = np.empty_like(frames)
    codec.decode(np.frombuffer(blob, np.uint8), ends - lengths, ends, threads, found)
    if not np.array_equal(found, frames):
        raise LakeFailed(
            "Lake: a compressed frame did not decode to what it was made of; the raw rows are "
            "kept. Test this machine's memory"
        )


class PageSums:
    """Checksums of a region's pages, from its bytes in rising order. Gaps are zeros.

    A page without any byte added has the sum 0 and is never read. `size` is the region's, or None
    for one that ends with the last byte added.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._sums: dict[int, int] = {}
        self._page, self._part = -1, b""  # a page that may still grow

    def add(self, offset: int, data: np.ndarray) -> None:
        """Bytes at `offset` of the region, behind everything added before."""
        page, inside = divmod(offset, PAGE)
        if page != self._page:
            self._finish_page()
            self._page = page
        head = min(len(data), PAGE - inside)
        self._part = self._part.ljust(inside, b"\0") + data[:head].tobytes()
        view = as_bytes(np.ascontiguousarray(data[head:]))
        for start in range(0, len(view), PAGE):
            self._finish_page()
            page += 1
            if start + PAGE <= len(view):
                self._sums[page] = digest(view[start : start + PAGE])
            else:
                self._page, self._part = page, bytes(view[start:])

    def _finish_page(self) -> None:
        if self._page >= 0:
            size = PAGE if self._size is None else min(PAGE, self._size - self._page * PAGE)
            whole = self._part if self._size is None else self._part.ljust(size, b"\0")
            self._sums[self._page] = digest(whole)
        self._page, self._part = -1, b""

    def finish(self) -> np.ndarray:
        """uint64[pages]."""
        self._finish_page()
        last = 1 + max(self._sums, default=-1)
        table = np.zeros(last if self._size is None else -(-self._size // PAGE), np.uint64)
        table[list(self._sums)] = list(self._sums.values())
        return table


def _next_page(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def mapped_rows(path: Path, meta: Meta, columns: Columns) -> Rows:
    """Rows of an open segment's file, by column and slots."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        file = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)
    parts = {
        column.name: file[meta.columns[column.name].data.offset :][
            : meta.columns[column.name].data.size
        ].reshape(-1, column.width)
        for column in columns.all
    }
    return lambda name, start, stop: parts[name][start:stop]
