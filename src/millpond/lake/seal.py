"""Sealing: makes an open segment immutable, compressed and with a checksum per page."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import LakeFailed
from .codec import Codec, Codecs
from .columns import Columns, LakeColumn
from .files import PAGE, Files, as_bytes, opened, translated_errors
from .journal import digest
from .layout import LOG, PACKED, SHARES, Rows, index_ranges, select_rows
from .page_sums import PageSums, Tables, digests
from .segment import SEALED, Meta, Region, Stored, path_of, write_meta

_CHUNK = 4 << 20  # bytes read, compressed and written at a time
_CACHED = 1 << 20  # bytes decoded at a time, so that they are compared while in the cache


def seal(
    files: Files,
    folder: Path,
    columns: Columns,
    meta: Meta,
    rows: Rows,
    known: dict[str, Codecs],
    threads: int,
    in_place: Callable[[int], None] | None = None,
) -> Meta:
    """Write the rows of `meta.count` as `NUMBER.seg`, durably; return its description.

    `known` holds the codecs of each wide column so far, and is extended by new ones. With
    `in_place`, a function that syncs a file, an open segment that does not compress is not copied:
    checksums and description are appended, and the file renamed. A log is always copied, because
    its rows are reordered stream by stream.
    """
    if meta.layout == LOG:
        meta, rows = as_packed(meta, rows, meta.count)
        in_place = None
    codecs = {
        column.name: _codec_for(column, meta, rows, known) for column in columns.all if column.wide
    }
    stays = in_place is not None and not any(codecs.values())
    target = path_of(folder, meta.number, ".seg")
    source = path_of(folder, meta.number, ".open" if stays else ".tmp")
    with translated_errors("sealing a segment", target):
        if not stays and source.exists():
            files.unlink(source)
        fd = files.open(source) if stays else files.create(source)
        try:
            if stays:
                sealed = _seal_in_place(files, fd, columns, meta, rows)
            else:
                sealed = _write(files, fd, columns, meta, rows, codecs, threads)
            with translated_errors("syncing a segment", target, again=False):
                if stays and in_place is not None:
                    in_place(fd)
                else:
                    files.sync(fd)
        finally:
            files.close(fd)
        files.rename(source, target)
        with translated_errors("syncing the folder", folder, again=False):
            files.sync_folder(folder)
    return sealed


def as_packed(meta: Meta, rows: Rows, keep: np.ndarray) -> tuple[Meta, Rows]:
    """A log or packed segment, cut to the first keep[stream] rows, as layout `packed`."""
    stream = np.repeat(np.arange(meta.streams), meta.count)
    time = index_ranges(meta.count)
    chosen = meta.slots()[time < keep[stream]]
    return replace(meta, layout=PACKED, count=keep, owner=None), select_rows(rows, chosen)


def _seal_in_place(files: Files, fd: int, columns: Columns, meta: Meta, rows: Rows) -> Meta:
    """Leave the rows where they are; write their checksums and the description after them."""
    tables, stored = Tables(), dict[str, Stored]()
    slots = meta.columns[columns.all[0].name].data.size // columns.all[0].width
    end = PAGE
    for column in columns.all:
        region = meta.columns[column.name].data
        touched = np.zeros(region.pages, bool)
        for start, stop in extents(meta, column.width):
            touched[start * column.width // PAGE : -(-stop * column.width // PAGE)] = True
        # A page may also hold bytes that were never committed; the checksum covers them as well.
        data = rows(column.name, 0, slots).reshape(-1, PAGE)
        pages = np.zeros(region.pages, np.uint64)
        pages[touched] = digests(data[page] for page in np.flatnonzero(touched).tolist())
        stored[column.name] = Stored("raw", region._replace(sums=tables.add(pages)))
        end = max(end, region.offset + region.size)
    return _describe(files, fd, meta, stored, tables, end)


def _write(
    files: Files,
    fd: int,
    columns: Columns,
    meta: Meta,
    rows: Rows,
    codecs: Mapping[str, Codec | None],
    threads: int,
) -> Meta:
    """Write every column to the new file, compressed or raw, then checksums and description."""
    at = PAGE
    tables, stored = Tables(), dict[str, Stored]()
    slots = meta.columns[columns.all[0].name].data.size // columns.all[0].width
    for column in columns.all:
        codec = codecs.get(column.name)
        if codec is None:
            region = Region(at, slots * column.width)
            pages = _copy(files, fd, column, meta, rows, region)
            stored[column.name] = Stored("raw", region._replace(sums=tables.add(pages)))
            at += region.size
        else:
            packed, sums = _compress(files, fd, column, meta, rows, codec, at, slots, threads)
            data, index, dictionary = packed.data, packed.offsets, packed.dictionary
            assert index is not None
            stored[column.name] = packed._replace(
                data=data._replace(sums=tables.add(sums[0])),
                offsets=index._replace(sums=tables.add(sums[1])),
            )
            end = dictionary or data
            at = _next_page(end.offset + end.size)
    return _describe(files, fd, meta, stored, tables, at)


def _describe(
    files: Files, fd: int, meta: Meta, stored: Mapping[str, Stored], tables: Tables, at: int
) -> Meta:
    table = tables.whole()
    files.pwrite(fd, as_bytes(table), at)
    sums = Region(at, table.nbytes)
    sealed = replace(meta, kind=SEALED, columns=stored, sums=sums, sums_sum=digest(table))
    end = write_meta(files, fd, sealed, at + table.nbytes)
    files.truncate(fd, end)
    return sealed


def extents(meta: Meta, width: int) -> Iterator[tuple[int, int]]:
    """Yield the slots that hold rows as stretches, merging neighbours, of at most one chunk."""
    most = max(1, _CHUNK // width)
    start = stop = 0
    if meta.layout != SHARES:
        yield from _split(0, int(meta.count.sum()), most)
        return
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
    files: Files, fd: int, column: LakeColumn, meta: Meta, rows: Rows, region: Region
) -> np.ndarray:
    """Copy a raw column; return the checksums of its pages, 0 for pages without rows."""
    files.truncate(fd, region.offset + region.size)
    pages = PageSums(region.size)
    for start, stop in extents(meta, column.width):
        data = np.ascontiguousarray(rows(column.name, start, stop)).reshape(-1)
        files.pwrite(fd, as_bytes(data), region.offset + start * column.width)
        pages.add(start * column.width, data)
    return pages.finish()


def _codec_for(
    column: LakeColumn, meta: Meta, rows: Rows, known: dict[str, Codecs]
) -> Codec | None:
    """The codec for a wide column of this segment; None to leave it raw."""
    total = int(meta.count.sum())
    if not total:
        return None

    def sample(number: int) -> np.ndarray:
        """About `number` rows, evenly spaced over all streams and times."""
        slots = meta.slots()[np.linspace(0, total - 1, min(number, total)).astype(np.int64)]
        return np.concatenate([rows(column.name, slot, slot + 1) for slot in slots.tolist()])

    return known.setdefault(column.name, Codecs(column.width)).choose(sample)


def _compress(
    files: Files,
    fd: int,
    column: LakeColumn,
    meta: Meta,
    rows: Rows,
    codec: Codec,
    at: int,
    slots: int,
    threads: int,
) -> tuple[Stored, tuple[np.ndarray, np.ndarray]]:
    """Write index, frames and dictionary; return their regions, and data and index checksums."""
    index = Region(at, 8 * (slots + 1))
    begin = _next_page(index.offset + index.size)
    lengths = np.zeros(slots, np.int64)
    size = 0
    pages = PageSums(None)
    for start, stop in extents(meta, column.width):
        frames = np.ascontiguousarray(rows(column.name, start, stop))
        blob, some = codec.compress(frames, threads)
        _check_decodes(codec, blob, some, frames, threads)
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


def _check_decodes(
    codec: Codec, blob: bytes, lengths: np.ndarray, frames: np.ndarray, threads: int
) -> None:
    """Raise LakeFailed unless frames decode to their rows: the raw rows are about to be deleted."""
    number, width = frames.shape
    together = min(number, max(1, _CACHED // width) * threads)
    ends = np.cumsum(lengths)
    packed = np.frombuffer(blob, np.uint8)
    found = np.empty((together, width), np.uint8)
    for at in range(0, number, together):
        some = slice(at, min(at + together, number))
        out = found[: some.stop - at]
        codec.decode(packed, (ends - lengths)[some], ends[some], threads, out)
        if not np.array_equal(out, frames[some]):
            raise LakeFailed(
                "Lake: a compressed frame did not decode to the row it was made from; the raw rows "
                "are kept. Test this machine's memory"
            )


def _next_page(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def mapped_rows(path: Path, meta: Meta, columns: Columns) -> Rows:
    """A `Rows` function over an open segment's file, which is mapped into memory."""
    with opened(path) as fd:
        file = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)
    parts = {
        column.name: file[meta.columns[column.name].data.offset :][
            : meta.columns[column.name].data.size
        ].reshape(-1, column.width)
        for column in columns.all
    }
    return lambda name, start, stop: parts[name][start:stop]
