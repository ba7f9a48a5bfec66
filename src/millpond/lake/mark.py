"""`Mark`: how much of its journal was committed, and synced, stored in the open segment itself.

Without it, damaged committed rows would look like rows that never reached the disk because of a
power loss. Only a power loss, after which the machine must have been booted again, may lose
committed rows, and it never loses synced ones.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..errors import LakeDamaged
from .files import Files, opened
from .journal import Block, digest, records_after_damage, unpack
from .segment import Meta, damaged, path_of

MAGIC = b"MPMARKED"
MARK_OFFSET = 64  # in the segment's first page, after its header; one sector: never torn
_HEAD = struct.Struct("<8sQQ16s")
_SUM = struct.Struct("<Q")
MARK_SIZE = _HEAD.size + _SUM.size


class Mark(NamedTuple):
    """Lengths of the journal in bytes, each up to the end of a commit."""

    committed: int  # survives as long as the machine runs
    synced: int  # survives a power loss
    boot: bytes  # the machine's boot id when it was committed

    @property
    def promised(self) -> int:
        """The length that must be intact now: `committed` in the same boot, else `synced`."""
        return self.committed if self.boot == this_boot() else self.synced


def write_mark(files: Files, fd: int, mark: Mark) -> None:
    head = _HEAD.pack(MAGIC, *mark)
    files.pwrite(fd, memoryview(head + _SUM.pack(digest(head))), MARK_OFFSET)


def read_mark(path: Path) -> Mark | None:
    """The mark of an open segment; None if it is damaged, or missing, as in older versions."""
    with opened(path) as fd:
        return mark_of(fd)


def mark_of(fd: int) -> Mark | None:
    return _parsed(fd)[0]


def mark_is_damaged(path: Path) -> bool:
    """Whether there are bytes in place of the mark that are not a valid one."""
    with opened(path) as fd:
        mark, anything = _parsed(fd)
        return mark is None and anything


def _parsed(fd: int) -> tuple[Mark | None, bool]:
    """The mark, and whether there was anything in its place."""
    data = b""
    for _ in range(3):  # its writer may be replacing it right now
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
    """How many bytes of the journal must be intact; without a mark, up to the last commit in it.

    `journal` may be the part from byte `start`, record `sequence`, on; bytes count from there.
    """
    if mark is not None:
        return mark.promised - start
    blocks = unpack(journal, meta.number, meta.streams, seed, sequence=sequence)
    end = blocks[-1].bytes_to_here if blocks else 0
    for _, more in records_after_damage(journal, meta.number, meta.streams, seed, end):
        blocks += more
    return max((block.bytes_to_here for block in blocks if block.commit), default=0)


def lost_rows_error(path: Path, kept: int, promise: int, whole: int) -> LakeDamaged:
    """The error for damaged committed rows: of the journal, `kept` bytes are verified with their
    rows, `whole` could be parsed, and `promise` were committed."""
    journal = path.with_suffix(".journal")
    if whole < promise:
        why = f"{promise} bytes of committed records were written, {whole} are intact"
        return damaged(journal, whole, promise, why)
    why = f"rows committed by bytes {kept}-{promise - 1} of the journal are not what was written"
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
    """Raise LakeDamaged unless the verified blocks `kept` are all that was committed.

    `journal` may be the part from byte `start`, record `sequence`, on.
    """
    end = kept[-1].bytes_to_here if kept else 0
    promise = promised(mark, journal, meta, seed, start, sequence)
    if end < promise:
        blocks = unpack(journal, meta.number, meta.streams, seed, sequence=sequence)
        whole = blocks[-1].bytes_to_here if blocks else 0
        raise lost_rows_error(path, start + end, start + promise, start + whole)


def check_no_journal(folder: Path, number: int) -> None:
    """Raise LakeDamaged if an open segment whose journal is missing or empty had commits."""
    path = path_of(folder, number, ".open")
    mark = read_mark(path)
    if mark is not None and mark.promised:
        raise lost_rows_error(path, 0, mark.promised, 0)


def check_nothing_promised(path: Path) -> None:
    """Raise LakeDamaged if an open segment after a gap must be intact: so must the rows before."""
    mark = read_mark(path)
    if mark is not None and mark.promised:
        raise damaged(path, 0, 1, "rows before these were committed, and their file is gone")


@cache
def this_boot() -> bytes:
    """16 bytes that change with every boot of the machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return os.urandom(16)  # unknown: as if the machine had been booted since
