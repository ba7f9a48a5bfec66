"""Recovers a group when its writer opens it: keeps the longest verified prefix and nothing else.

Recovery is idempotent. It removes only what never counted: unfinished files, records after the
verified ones, and raw segments whose sealed copy is intact.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import LakeDamaged, LakeRefused
from ..rows import CUT
from .codec import Codec, Codecs
from .columns import Columns
from .files import Files, opened, translated_errors
from .journal import Block, digest
from .layout import LOG, SHARES, layout_after, slot_owners
from .manifest import GroupInfo, LakeInfo
from .mark import check_all_committed, check_no_journal, check_nothing_promised, read_mark
from .open_segment import OpenSegment, seed_of, verified
from .seal import mapped_rows
from .sealer import size_on_disk
from .segment import Meta, path_of, read_meta

_FILE = re.compile(r"(\d{16})\.(open|journal|seg|tmp)")
_ASIDE = re.compile(r"(\d{16})\.damaged(\.journal)?(\.\d+)?")


class Recovered(NamedTuple):
    """The state of a group: where its streams end, and which segments it has."""

    next_id: np.ndarray  # int64[streams]: the id the next row gets
    last_flags: np.ndarray  # uint8[streams]: flags byte of the newest row; meaningless if none
    unsealed: list[tuple[Meta, list[Block]]]  # open segments, oldest first
    sealed: dict[int, tuple[int, int]]  # number → rows, bytes on disk
    next_number: int
    layout: str  # of the next segment
    known: dict[str, Codecs]  # codecs of each wide column


def segment_files(folder: Path) -> dict[int, set[str]]:
    """A group's segments by number, each with the suffixes of its files; others are ignored."""
    found: dict[int, set[str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match and entry.is_symlink():
                raise LakeRefused(
                    f"{entry.path}: a link, and links are never followed; move the file here"
                )
            if match:
                found.setdefault(int(match[1]), set()).add(match[2])
    return dict(sorted(found.items()))


def set_aside_files(folder: Path) -> dict[int, list[Path]]:
    """Damaged files that repair moved aside, by segment number; readers ignore them."""
    found: dict[int, list[Path]] = {}
    for entry in os.scandir(folder):
        match = _ASIDE.fullmatch(entry.name)
        if match:
            found.setdefault(int(match[1]), []).append(Path(entry.path))
    return dict(sorted(found.items()))


def recover(files: Files, folder: Path, info: LakeInfo, group: GroupInfo) -> Recovered:
    """Clean up a group's folder after a crash, and return its state."""
    columns = Columns(info.spec)
    there = segment_files(folder)
    next_id = np.zeros(group.streams, np.int64)
    last_flags = np.zeros(group.streams, np.uint8)
    unsealed: list[tuple[Meta, list[Block]]] = []
    sealed: dict[int, tuple[int, int]] = {}
    known: dict[str, Codecs] = {}
    layout = SHARES

    def remove_raw_twin(number: int) -> None:
        if {"open", "journal"} & there[number]:
            with translated_errors("syncing the folder", folder):
                files.sync_folder(folder)  # the sealed copy may have been renamed just before
            remove(number, ".open", ".journal")

    def remove(number: int, *suffixes: str) -> None:
        for suffix in suffixes:
            path = path_of(folder, number, suffix)
            if suffix[1:] in there[number]:
                with translated_errors("removing an unfinished file", path):
                    files.unlink(path)
                there[number].discard(suffix[1:])

    for number, kinds in there.items():
        remove(number, ".tmp")
        meta = None
        if "seg" in kinds:
            try:
                meta = load_meta(path_of(folder, number, ".seg"), columns, info, group)
            except LakeDamaged:
                if "open" not in kinds:
                    raise
                remove(number, ".seg")  # its raw copy still exists, and is sealed again
        if meta is not None:
            remove_raw_twin(number)
            sealed[number] = (int(meta.count.sum()), size_on_disk(folder, number))
            _collect_codecs(known, path_of(folder, number, ".seg"), meta, columns)
            _advance(next_id, last_flags, meta.first, meta.count)
            _flags_of(last_flags, path_of(folder, number, ".seg"), meta, columns)
        elif "open" in kinds:
            meta, blocks = read_open(folder, number, columns, info, group)
            if meta is None or not blocks:  # no blocks: unsynced, and lost in a power loss
                remove(number, ".open", ".journal")
                continue
            if (sealed or unsealed) and (meta.first > next_id).any():
                # A power loss took rows before these, so none of these was ever synced.
                check_nothing_promised(path_of(folder, number, ".open"))
                remove(number, ".open", ".journal")
                continue
            unsealed.append((meta, blocks))
            meta = with_blocks(meta, blocks)
            _advance(next_id, last_flags, meta.first, meta.count)
            _flags_of(last_flags, path_of(folder, number, ".open"), meta, columns)
        else:
            remove(number, ".journal")
            continue
        if meta.count.any():
            layout = layout_after(meta.count)
    next_number = 1 + max(
        [*there, *set_aside_files(folder)], default=-1
    )  # numbers are never reused
    return Recovered(next_id, last_flags, unsealed, sealed, next_number, layout, known)


def load_meta(path: Path, columns: Columns, info: LakeInfo, group: GroupInfo) -> Meta:
    """Read the description of a segment file."""
    with opened(path) as fd:
        return read_meta(fd, path, columns, info, group)


def read_open(
    folder: Path, number: int, columns: Columns, info: LakeInfo, group: GroupInfo
) -> tuple[Meta | None, list[Block]]:
    """An open segment's description (None if it was never completed) and its verified blocks.

    LakeDamaged if these are not all that was committed (after a power loss: all that was synced).
    """
    path = path_of(folder, number, ".open")
    mark = read_mark(path)
    journal_path = path_of(folder, number, ".journal")
    journal = read_journal(journal_path) if journal_path.exists() else b""
    if not journal:
        check_no_journal(folder, number)
        return None, []
    # The description was synced before the journal was created: if it is unreadable, it is damaged.
    meta = load_meta(path, columns, info, group)
    rows = mapped_rows(path, meta, columns)
    data = {column.name: rows(column.name, 0, info.slots) for column in columns.all}
    blocks = verified(journal, meta, columns, data)
    check_all_committed(path, mark, journal, meta, seed_of(meta), blocks)
    return meta, blocks


def with_blocks(meta: Meta, blocks: list[Block]) -> Meta:
    """An open segment's description, extended by the rows of these blocks."""
    if not blocks:
        return meta
    owner = meta.owner
    if meta.layout == LOG:
        mine = slot_owners(meta.count, [block.end for block in blocks])
        owner = mine if owner is None else np.concatenate([owner, mine])
    return replace(meta, count=blocks[-1].end, owner=owner)


def read_journal(path: Path, start: int = 0) -> bytes:
    """A journal's bytes from `start` on."""
    with opened(path) as fd:
        return os.pread(fd, max(0, os.fstat(fd).st_size - start), start)


def open_segment(
    files: Files, folder: Path, columns: Columns, meta: Meta, blocks: list[Block]
) -> OpenSegment:
    """Open an existing open segment, to continue after its verified blocks."""
    segment = OpenSegment(files, folder, columns, meta)
    segment.resume(blocks)
    return segment


def read_dictionary(path: Path, meta: Meta, name: str) -> bytes | None:
    """The dictionary of a compressed column; None if its checksum does not match."""
    stored = meta.columns[name]
    if stored.dictionary is None:
        return b"" if stored.dictionary_sum == digest(b"") else None
    with opened(path) as fd:
        dictionary = os.pread(fd, stored.dictionary.size, stored.dictionary.offset)
    return dictionary if digest(dictionary) == stored.dictionary_sum else None


def _collect_codecs(known: dict[str, Codecs], path: Path, meta: Meta, columns: Columns) -> None:
    """Add a sealed segment's dictionaries to the known codecs, for use by new segments."""
    for column in columns.all:
        stored = meta.columns[column.name]
        codecs = known.setdefault(column.name, Codecs(column.width)).known
        if stored.codec == "zstd" and all(c.identity != stored.dictionary_sum for c in codecs):
            dictionary = read_dictionary(path, meta, column.name)
            if dictionary is not None:
                codecs.append(Codec(dictionary, column.width))


def _advance(
    next_id: np.ndarray, last_flags: np.ndarray, first: np.ndarray, count: np.ndarray
) -> None:
    last_flags[first > next_id] = CUT  # rows are missing in between: anything may follow
    np.maximum(next_id, first + count, out=next_id)


def _flags_of(last: np.ndarray, path: Path, meta: Meta, columns: Columns) -> None:
    """Update `last` with the flags of each stream's newest row here (records are always raw)."""
    width = columns.all[0].width
    offset = meta.columns[columns.all[0].name].data.offset
    pieces = meta.pieces()
    newest = np.zeros(meta.streams, np.int64)  # slots
    np.maximum.at(newest, pieces.stream, pieces.slot + pieces.rows - 1)
    with opened(path) as fd:
        for stream in np.flatnonzero(meta.count):
            last[stream] = os.pread(fd, 1, offset + int(newest[stream]) * width)[0]
