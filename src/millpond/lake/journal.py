"""The journal of an open segment: one record per block of rows, appended when it is committed.

A record says how many rows each stream has with its block included, and holds a checksum of the
block's bytes. The journal is valid up to the last commit in its longest prefix of intact records;
rows after it were never committed.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import xxhash

MAGIC = b"MPJOURNL"
_HEAD = struct.Struct("<8sQQQII")  # magic, sequence, segment, sum of rows, kind, count or 0
_TAIL = struct.Struct("<Q")
COMMIT, RAGGED = 1, 2


class Block(NamedTuple):
    """The rows of every stream from the previous block's end up to `end`, and their checksum."""

    end: np.ndarray  # int64[streams]
    digest: int
    commit: bool  # whether a commit ends here
    bytes_to_here: int  # length of the journal including this record


def digest(data: Any) -> int:
    """The 64-bit checksum used throughout a Lake: XXH3."""
    return xxhash.xxh3_64_intdigest(data)


def pack(
    sequence: int, segment: int, end: np.ndarray, rows_digest: int, commit: bool, seed: int
) -> bytes:
    """The bytes of one record."""
    even = bool((end == end[0]).all())
    kind = COMMIT * commit + RAGGED * (not even)
    head = _HEAD.pack(MAGIC, sequence, segment, rows_digest, kind, int(end[0]) if even else 0)
    body = b"" if even else end.astype("<u4").tobytes()
    body += b"\0" * (-len(body) % 8)
    return head + body + _TAIL.pack(xxhash.xxh3_64_intdigest(head + body, seed))


def unpack(
    journal: bytes, segment: int, streams: int, seed: int, start: int = 0, sequence: int = 0
) -> list[Block]:
    """The intact records from byte `start`, numbered from `sequence`, up to the first bad one."""
    blocks: list[Block] = []
    at = start
    while at + _HEAD.size + _TAIL.size <= len(journal):
        magic, which, number, rows_digest, kind, count = _HEAD.unpack_from(journal, at)
        if magic != MAGIC or which != sequence + len(blocks) or number != segment or kind > 3:
            break
        size = _HEAD.size
        if kind & RAGGED:
            size += streams * 4 + (-streams * 4 % 8)
        record = journal[at : at + size + _TAIL.size]
        if len(record) < size + _TAIL.size:
            break
        if _TAIL.unpack_from(record, size)[0] != xxhash.xxh3_64_intdigest(record[:size], seed):
            break
        if kind & RAGGED:
            end = np.frombuffer(record, "<u4", streams, _HEAD.size).astype(np.int64)
        else:
            end = np.full(streams, count, np.int64)
        at += size + _TAIL.size
        blocks.append(Block(end, rows_digest, bool(kind & COMMIT), at))
    return blocks


def records_after_damage(
    journal: bytes, segment: int, streams: int, seed: int, at: int
) -> list[tuple[int, list[Block]]]:
    """Runs of intact records after damage at byte `at`, each with the byte where it begins."""
    runs: list[tuple[int, list[Block]]] = []
    while (at := journal.find(MAGIC, at + 1)) >= 0 and at + _HEAD.size <= len(journal):
        sequence = _HEAD.unpack_from(journal, at)[1]
        if blocks := unpack(journal, segment, streams, seed, at, sequence):
            runs.append((at, blocks))
            at = blocks[-1].bytes_to_here - 1
    return runs


def is_torn(tail: bytes, streams: int) -> bool:
    """Whether the bytes after the last intact record are an incompletely written one."""
    if len(tail) < _HEAD.size + _TAIL.size:
        return True
    magic, _, _, _, kind, _ = _HEAD.unpack_from(tail)
    ragged = streams * 4 + (-streams * 4 % 8)
    return magic == MAGIC and kind in (2, 3) and len(tail) < _HEAD.size + ragged + _TAIL.size
