"""`Mark`: how much of its journal an open segment must still have; it lies in the segment itself.

Without it, rows that were committed and have rotted look like rows that a power loss kept from
ever reaching the disk. Only a power loss, which no boot of the machine survives, may take what
was committed, and not even it what was synced.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..errors import LakeDamaged
from .files import Files
from .journal import Block, digest, records_after_damage, unpack
from .segment import Meta, damaged, path_of

MAGIC = b"MPMARKED"
MARK_OFFSET = 64  # in the first page of an open segment, behind its header; one sector: never torn
_HEAD = struct.Struct("<8sQQ16s")
_SUM = struct.Struct("<Q")
MARK_SIZE = _HEAD.size + _SUM.size


class Mark(NamedTuple):
    """Lengths of the journal in bytes, each the end of a commit."""

    committed: int  # survives as long as the machine runs
    synced: int  # survives a power loss
    boot: bytes  # in which boot of which machine it was committed

    @property
    def promised(self) -> int:
        """What must be there, by all that can be known now."""
        return self.committed if self.boot == this_boot() else self.synced


def write_mark(files: Files, fd: int, mark: Mark) -> None:
    head = _HEAD.pack(MAGIC, *mark)
    files.pwrite(fd, memoryview(head + _SUM.pack(digest(head))), MARK_OFFSET)


def read_mark(path: Path) -> Mark | None:
    """The mark of an open segment; None if it has none, as older ones, or if it is damaged."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return mark_of(fd)
    finally:
        os.close(fd)


def mark_of(fd: int) -> Mark | None:
    return _parsed(fd)[0]


def mark_is_damaged(path: Path) -> bool:
    """Whether something is where the mark belongs that is none."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mark, anything = _parsed(fd)
        return mark is None and anything
    finally:
        os.close(fd)


def _parsed(fd: int) -> tuple[Mark | None, bool]:
    """The mark, and whether there was anything in its place."""
    data = b""
    for _ in range(3):  # a living writer may be replacing it in this very moment
        data = os.pread(fd, MARK_SIZE, MARK_OFFSET)
        if len(data) < MARK_SIZE or not any(data):
            return None, False
        magic, *rest = _HEAD.unpack_from(data)
        if magic == MAGIC and _SUM.unpack_from(data, _HEAD.size)[0] == digest(data[: _HEAD.size]):
            return Mark(*rest), True
    return None, True


def promised(
    mark: Mark | None, journal: bytes, meta: Meta, seed: int, start: int = 0, sequence: int = 0
) -> int:
    """Bytes of the journal that must hold. Without a mark: up to the last whole commit in it.

    A part of a journal begins at byte `start`, with record `sequence`, and counts from there.
    """
    if mark is not None:
        return mark.promised - start
    blocks = unpack(journal, meta.number, meta.streams, seed, sequence=sequence)
    end = blocks[-1].bytes_to_here if blocks else 0
    for _, more in records_after_damage(journal, meta.number, meta.streams, seed, end):
        blocks += more
    return max((block.bytes_to_here for block in blocks if block.commit), default=0)


def lost_rows_error(path: Path, kept: int, promise: int, whole: int) -> LakeDamaged:
    """The error for committed rows that do not hold: `kept` bytes of the journal do, `whole` of it
    could be parsed."""
    journal = path.with_suffix(".journal")
    if whole < promise:
        why = f"{promise} bytes of committed records were written, {whole} hold"
        return damaged(journal, whole, promise, why)
    why = (
        f"rows that records {kept}-{promise - 1} of the journal committed are not what was written"
    )
    return damaged(path, 0, os.stat(path).st_size, why)


def check_all_committed(
    path: Path,
    mark: Mark | None,
    journal: bytes,
    meta: Meta,
    seed: int,
    kept: list[Block],
    start: int = 0,
    sequence: int = 0,
) -> None:
    """Raise LakeDamaged unless the verified blocks are all that was committed.

    A part of a journal begins at byte `start`, with record `sequence`.
    """
    end = kept[-1].bytes_to_here if kept else 0
    promise = promised(mark, journal, meta, seed, start, sequence)
    if end < promise:
        blocks = unpack(journal, meta.number, meta.streams, seed, sequence=sequence)
        whole = blocks[-1].bytes_to_here if blocks else 0
        raise lost_rows_error(path, start + end, start + promise, start + whole)


def check_no_journal(folder: Path, number: int) -> None:
    """Raise LakeDamaged if an open segment without a journal, or with an empty one, had commits."""
    path = path_of(folder, number, ".open")
    mark = read_mark(path)
    if mark is not None and mark.promised:
        raise lost_rows_error(path, 0, mark.promised, 0)


def check_nothing_promised(path: Path) -> None:
    """Raise LakeDamaged if an open segment was synced: then so were the rows before it."""
    mark = read_mark(path)
    if mark is not None and mark.promised:
        raise damaged(path, 0, 1, "rows before these were committed, and their file is gone")


@cache
def this_boot() -> bytes:
    """16 bytes that are others after every start of the machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return os.urandom(16)  # nothing is known: as if the power had been lost
