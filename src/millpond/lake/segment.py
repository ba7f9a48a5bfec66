"""A segment file: a header that points to a JSON description, and page-aligned regions.

`NUMBER.open` holds raw rows and is still being written; `NUMBER.seg` is sealed and immutable. The
layout decides which slot a row has. Everything is little-endian; every offset, length, id and
checksum has 64 bits. See docs/lake-format.md.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import LakeDamaged, LakeRefused
from .columns import Columns
from .files import PAGE, Files
from .journal import digest
from .layout import LOG, PACKED, SHARES, Pieces, fits, length_of, pieces_of, slots_of
from .manifest import PARSE_ERRORS, GroupInfo, LakeInfo

MAGIC = b"MILLPOND"
# Version 1 knows layout `shares` only; segments with that layout are still written as version 1.
VERSIONS = {1: {SHARES}, 2: {LOG, PACKED}}
_HEAD = struct.Struct("<8sQQQQ")  # magic, version, then where the JSON lies: offset, length, sum
_SUM = struct.Struct("<Q")
_MAX_JSON = 1 << 28
_MAX_ID = 1 << 62
OPEN, SEALED = "open", "sealed"
_KINDS = {".open": OPEN, ".seg": SEALED}


class Region(NamedTuple):
    """A page-aligned part of a file; `sums`: where its pages' checksums begin in their table."""

    offset: int
    size: int
    sums: int = -1

    @property
    def pages(self) -> int:
        """Number of pages, counting a partial last one."""
        return -(-self.size // PAGE)


class Stored(NamedTuple):
    """How a column is stored in a segment: raw, or zstd frames with an index and a dictionary."""

    codec: str  # raw or zstd
    data: Region
    offsets: Region | None = None
    dictionary: Region | None = None
    dictionary_sum: int = 0


@dataclass(frozen=True)
class Meta:
    """The description of a segment with rows `first[s] ... first[s] + count[s] - 1` of stream s."""

    kind: str
    fingerprint: str
    group: int
    number: int
    streams: int
    layout: str  # see layout.py
    length: int  # the most rows that a stream can have here
    first: np.ndarray  # int64[streams]
    count: np.ndarray  # int64[streams]; for an open segment, from its journal
    columns: Mapping[str, Stored]
    sums: Region  # of a sealed segment: the table of all page checksums
    sums_sum: int  # the checksum of that table
    owner: np.ndarray | None = None  # int32[rows]: the stream of each slot of a log

    def can_have(self, count: np.ndarray) -> bool:
        """Whether there is room for count[stream] rows."""
        return fits(self.layout, self.length, count)

    def slots(self) -> np.ndarray:
        """int64[rows]: the slot of every row, stream by stream."""
        return slots_of(self.layout, self.length, self.count, self.owner)

    def pieces(self) -> Pieces:
        """All rows as contiguous stretches."""
        return pieces_of(self.layout, self.length, self.count, self.owner)

    def to_json(self) -> dict[str, Any]:
        """The JSON values written to the file."""

        def region(part: Region | None) -> list[int] | None:
            return None if part is None else list(part)

        return {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "group": self.group,
            "number": self.number,
            "streams": self.streams,
            **({} if self.layout == SHARES else {"layout": self.layout}),
            "length": self.length,
            "first": [int(n) for n in self.first],
            "count": [int(n) for n in self.count],
            "columns": {
                name: {
                    "codec": stored.codec,
                    "data": region(stored.data),
                    "offsets": region(stored.offsets),
                    "dictionary": region(stored.dictionary),
                    "dictionary_sum": stored.dictionary_sum,
                }
                for name, stored in self.columns.items()
            },
            "sums": list(self.sums),
            "sums_sum": self.sums_sum,
        }


def path_of(folder: Path, number: int, suffix: str) -> Path:
    """A file of segment `number` of a group: `.open`, `.journal`, `.seg` or `.tmp`."""
    return folder / f"{number:016d}{suffix}"


def open_meta(
    columns: Columns,
    fingerprint: str,
    group: int,
    number: int,
    slots: int,
    first: np.ndarray,
    layout: str = SHARES,
) -> Meta:
    """The description of a new open segment."""
    streams = len(first)
    length = length_of(layout, slots, streams)
    at = PAGE + _whole_pages(64 * 1024 + 64 * streams)  # room for the JSON
    stored: dict[str, Stored] = {}
    for column in columns.all:
        stored[column.name] = Stored("raw", Region(at, slots * column.width))
        at += slots * column.width
    none = np.zeros(streams, np.int64)
    empty = Region(0, 0)
    return Meta(
        OPEN, fingerprint, group, number, streams, layout, length, first, none, stored, empty, 0
    )


def write_meta(files: Files, fd: int, meta: Meta, offset: int) -> int:
    """Write the JSON at `offset` and the header that points to it; return where they end.

    An open segment begins with its header, a sealed one ends with it: so uncompressed rows can be
    sealed in place, without overwriting anything.
    """
    text = json.dumps(meta.to_json(), separators=(",", ":")).encode()
    version = next(n for n, layouts in VERSIONS.items() if meta.layout in layouts)
    head = _HEAD.pack(MAGIC, version, offset, len(text), digest(text))
    head += _SUM.pack(digest(head))
    if meta.kind == SEALED:
        files.pwrite(fd, memoryview(text + head), offset)
        return offset + len(text) + len(head)
    files.pwrite(fd, memoryview(text), offset)
    files.pwrite(fd, memoryview(head), 0)
    return offset + len(text)


def read_meta(fd: int, path: Path, columns: Columns, info: LakeInfo, group: GroupInfo) -> Meta:
    """Read the description of a segment file and check it against its place in the Lake."""
    size, whole = os.fstat(fd).st_size, _HEAD.size + _SUM.size
    place = 0 if _KINDS[path.suffix] == OPEN else max(0, size - whole)
    head = os.pread(fd, whole, place)
    if len(head) < whole or head[:8] != MAGIC:
        raise damaged(path, place, place + whole, "this is not a segment header")
    _, version, offset, length, json_sum = _HEAD.unpack_from(head)
    if _SUM.unpack_from(head, _HEAD.size)[0] != digest(head[: _HEAD.size]):
        raise damaged(path, place, place + whole, "the header's checksum does not match")
    if version not in VERSIONS:
        raise LakeRefused(
            f"{path}: format version {version}, this millpond reads {min(VERSIONS)} to "
            f"{max(VERSIONS)}; "
            "use the millpond that wrote it"
        )
    if length > _MAX_JSON or offset + length > size:
        raise damaged(path, offset, offset + length, f"the file ends at {size}")
    text = os.pread(fd, length, offset)
    if len(text) != length or digest(text) != json_sum:
        raise damaged(path, offset, offset + length, "the description's checksum does not match")
    try:
        meta = _parse(json.loads(text))
        if meta.layout not in VERSIONS[version]:
            raise ValueError(f"layout {meta.layout!r} in a file of version {version}")
        if meta.fingerprint != info.fingerprint:
            raise LakeRefused(
                f"{path}: written with spec {meta.fingerprint}, this Lake holds "
                f"{info.fingerprint}; move the file out of the folder"
            )
        _check(meta, columns, info.slots, size)
        _check_place(meta, int(path.stem), _KINDS[path.suffix], group)
    except LakeRefused:
        raise
    except PARSE_ERRORS as error:
        raise damaged(path, offset, offset + length, f"the description is wrong: {error}") from None
    return meta


def _check_place(meta: Meta, number: int, kind: str, group: GroupInfo) -> None:
    if (meta.group, meta.number, meta.streams, meta.kind) != (
        group.index,
        number,
        group.streams,
        kind,
    ):
        raise ValueError(
            f"it is {meta.kind} segment {meta.number} of group {meta.group} with {meta.streams} "
            f"streams, expected {kind} segment {number} of group {group.index} with "
            f"{group.streams}; move it to where it belongs"
        )


def damaged(path: Path, start: int, stop: int, why: str) -> LakeDamaged:
    """The LakeDamaged error for bytes start ... stop - 1 of a file."""
    error = LakeDamaged(
        f"{path}: bytes {start}-{stop - 1} are damaged: {why}; "
        "run `millpond lake repair` to keep every row that can be verified"
    )
    error.start, error.stop, error.why = start, stop, why
    return error


def _parse(plain: Any) -> Meta:
    def region(part: Any) -> Region:
        offset, size, sums = (_uint64(n) for n in part)
        return Region(offset, size, sums)

    def maybe(part: Any) -> Region | None:
        return None if part is None else region(part)

    columns = {
        str(name): Stored(
            stored["codec"],
            region(stored["data"]),
            maybe(stored["offsets"]),
            maybe(stored["dictionary"]),
            _uint64(stored["dictionary_sum"]),
        )
        for name, stored in plain["columns"].items()
    }
    return Meta(
        kind=plain["kind"],
        fingerprint=str(plain["fingerprint"]),
        group=_uint64(plain["group"]),
        number=_uint64(plain["number"]),
        streams=_uint64(plain["streams"]),
        layout=str(plain.get("layout", SHARES)),
        length=_uint64(plain["length"]),
        first=np.array([_uint64(n) for n in plain["first"]], np.int64),
        count=np.array([_uint64(n) for n in plain["count"]], np.int64),
        columns=columns,
        sums=region(plain["sums"]),
        sums_sum=_uint64(plain["sums_sum"]),
    )


def _check(meta: Meta, columns: Columns, slots: int, size: int) -> None:
    """Raise ValueError unless the values make sense and every region fits into the file."""

    def need(true: bool, what: str) -> None:
        if not true:
            raise ValueError(what)

    need(meta.kind in (OPEN, SEALED), f"kind {meta.kind!r}")
    need(1 <= meta.streams <= slots, f"{meta.streams} streams")
    other = PACKED if meta.kind == OPEN else LOG
    need(meta.layout != other, f"{meta.kind} segment of layout {meta.layout}")
    length = length_of(meta.layout, slots, meta.streams)
    need(meta.length == length, f"length {meta.length}")
    need(len(meta.first) == len(meta.count) == meta.streams, "first or count")
    need(bool((meta.first >= 0).all() and (meta.first < _MAX_ID).all()), "ids")
    need(bool((meta.count >= 0).all() and (meta.count <= slots).all()), "number of rows")
    # The rows of an open segment are counted by its journal.
    need(meta.can_have(meta.count) if meta.kind == SEALED else not meta.count.any(), "rows")
    need(set(meta.columns) == {column.name for column in columns.all}, "columns")
    sealed = meta.kind == SEALED

    def inside(part: Region, name: str, checked: bool) -> None:
        need(part.offset % PAGE == 0 and part.offset >= PAGE, f"offset of {name}")
        need(part.size >= 0, f"size of {name}")
        need(part.offset + part.size <= size, f"{name} ends beyond the file")
        if checked:
            need(0 <= part.sums <= meta.sums.size - 8 * part.pages, f"checksums of {name}")

    if sealed:
        inside(meta.sums, "sums", checked=False)
        most = sum(slots * c.width + (8 * (slots + 1) if c.wide else 0) + PAGE for c in columns.all)
        need(meta.sums.size <= 8 * -(-most // PAGE), "size of sums")
    for column in columns.all:
        stored, most = meta.columns[column.name], slots * column.width
        inside(stored.data, column.name, sealed)
        if stored.codec == "raw":
            need(stored.data.size == most, f"size of {column.name}")
        else:
            need(stored.codec == "zstd" and sealed and column.wide, f"codec of {column.name}")
            need(stored.data.size <= most, f"size of {column.name}")
            need(stored.offsets is not None, f"index of {column.name}")
            if stored.offsets is not None:
                inside(stored.offsets, f"{column.name}'s index", True)
                need(stored.offsets.size == 8 * (slots + 1), f"index of {column.name}")
            if stored.dictionary is not None:
                inside(stored.dictionary, f"{column.name}'s dictionary", False)


def _uint64(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 2**64:
        raise ValueError(f"{value!r} is not a 64-bit number")
    return value


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
