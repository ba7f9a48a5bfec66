"""Read and write TFRecord files: records of bytes, each with its length and checksums."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .crc32c import masked_crc32c
from .source import damaged

_HEAD, _TAIL = 12, 4  # bytes before a record (length and its checksum) and after it (checksum)


class RecordPlace(NamedTuple):
    """The position of a record's bytes in its file."""

    start: int
    length: int


class RecordFile:
    """The records of a memory-mapped file: `file.read(file.places[0])`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            empty = not file.seek(0, 2)
            self._data: bytes | mmap.mmap = (
                b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )
        self.places = self._walk()

    def _walk(self) -> list[RecordPlace]:
        found: list[RecordPlace] = []
        at, size = 0, len(self._data)
        while at < size:
            head = self._data[at : at + _HEAD]
            length = int.from_bytes(head[:8], "little")
            stop = at + _HEAD + length + _TAIL
            if len(head) < _HEAD or masked_crc32c(head[:8]) != int.from_bytes(head[8:], "little"):
                raise damaged(self._path, f"no record at byte {at}")
            if stop > size:
                raise damaged(self._path, f"the record at byte {at} ends beyond the file")
            found.append(RecordPlace(at + _HEAD, length))
            at = stop
        return found

    def peek(self, place: RecordPlace) -> memoryview:
        """A record's bytes, without checking the checksum."""
        return memoryview(self._data)[place.start : place.start + place.length]

    def read(self, place: RecordPlace) -> memoryview:
        """A record's bytes; BadState if the checksum is wrong."""
        stop = place.start + place.length
        wanted = int.from_bytes(self._data[stop : stop + _TAIL], "little")
        if masked_crc32c(found := self.peek(place)) != wanted:
            at = place.start - _HEAD
            raise damaged(self._path, f"the checksum of the record at byte {at} is wrong")
        return found


def write_record(file: BinaryIO, data: bytes) -> int:
    """Append a record; returns the bytes written."""
    length = len(data).to_bytes(8, "little")
    parts = (length, masked_crc32c(length), data, masked_crc32c(data))
    for part in parts:
        file.write(part.to_bytes(4, "little") if isinstance(part, int) else part)
    return _HEAD + len(data) + _TAIL
