"""Examines an open segment: every journal record, and its rows against its checksum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .columns import RECORD, Columns
from .damage import Continuity, Damage, Examined, intact_rows, report_broken
from .journal import Block, is_torn, records_after_damage, unpack
from .layout import LOG, index_ranges
from .mark import MARK_OFFSET, MARK_SIZE, Mark, mark_is_damaged, promised
from .open_segment import rows_sum, seed_of, verified
from .recovery import with_blocks
from .seal import mapped_rows
from .segment import Meta


def examine_open(
    found: Examined,
    mark: Mark | None,
    journal: bytes,
    meta: Meta,
    columns: Columns,
    continuity: Continuity,
) -> None:
    """Fill in what the journal commits, and how many of its records, from the first, are intact."""
    seed, none = seed_of(meta), np.zeros(meta.streams, np.int64)
    rows = mapped_rows(found.path, meta, columns)
    slots = meta.columns[RECORD].data.size // columns.all[0].width
    data = {column.name: rows(column.name, 0, slots) for column in columns.all}
    if mark is not None:
        # Bytes after both the promised and the verified records were never committed.
        held = verified(journal, meta, columns, data)
        promise = promised(mark, journal, meta, seed)
        journal = journal[: max(promise, held[-1].bytes_to_here if held else 0)]
        report_short_journal(found, len(journal), promise)
    elif mark_is_damaged(found.path):
        what = "the mark of how much is committed: checksum differs"
        found.damages.append(Damage(found.path, MARK_OFFSET, MARK_OFFSET + MARK_SIZE, what, 0))
    prefix = unpack(journal, meta.number, meta.streams, seed)
    end = prefix[-1].bytes_to_here if prefix else 0
    behind = records_after_damage(journal, meta.number, meta.streams, seed, end)
    claimed = [*prefix, *(block for _, blocks in behind for block in blocks)]
    commits = [block.end for block in claimed if block.commit and meta.can_have(block.end)]
    found.count = np.maximum.reduce([none, *commits])

    # All rows, stream by stream.
    stream, time = np.repeat(np.arange(meta.streams), found.count), index_ranges(found.count)
    bad = np.zeros(len(time), bool)

    def check(begin: np.ndarray, block: Block) -> bool:
        grows = bool((block.end >= begin).all()) and meta.can_have(block.end)
        if grows and rows_sum(columns, meta, data, begin, block.end) == block.digest:
            return True
        hit = (time >= begin[stream]) & (time < block.end[stream])
        if hit.any():  # none: rows of a commit that was never finished
            bad[hit] = True
            slots = stream[hit] * meta.length + time[hit]
            if meta.layout == LOG:
                slots = np.arange(begin.sum(), max(begin.sum() + 1, block.end.sum()))
            _report_rows(found, slots, int(hit.sum()), meta, columns)
        return False

    good = [check(begin, block) for begin, block in _pairs(none, prefix)]
    found.blocks = prefix[: good.index(False)] if False in good else prefix
    for _, blocks in behind:  # where the first block of a run begins is not known
        for begin, block in _pairs(blocks[0].end, blocks[1:]):
            check(begin, block)
    keep = _last_commit(found.blocks, none)
    _report_journal(found, journal, end, behind, keep)

    width, offset = columns.all[0].width, meta.columns[RECORD].data.offset
    proven = time < keep[stream]
    slot = np.zeros(len(time), np.int64)
    slot[proven] = with_blocks(meta, found.blocks).slots()
    broken = continuity.broken(meta, found.count, data[RECORD][slot, 0], bad | ~proven)
    if broken.any():
        report_broken(found, broken, meta.first, slot, offset, width)
        bad |= broken
        first = intact_rows(found.count, broken)  # of an unbroken stream: all
        while found.blocks and (found.blocks[-1].end > first).any():
            found.blocks.pop()
        keep = _last_commit(found.blocks, none)
    found.keep = keep
    found.meta = replace(with_blocks(meta, found.blocks), count=none)
    found.damaged_rows = int(bad.sum())


def report_short_journal(found: Examined, there: int, promise: int) -> None:
    """Report a journal that ends before the last commit recorded in its segment's mark."""
    if there < promise:
        path = found.path.with_suffix(".journal")
        what = "committed records: missing at the journal's end"
        found.damages.append(Damage(path, there, promise, what, None))


def _pairs(begin: np.ndarray, blocks: list[Block]) -> list[tuple[np.ndarray, Block]]:
    """Every block with the end of the block before it."""
    return list(zip([begin, *(block.end for block in blocks)], blocks, strict=False))


def _last_commit(blocks: list[Block], none: np.ndarray) -> np.ndarray:
    """Drop blocks after the last commit; return how many rows of each stream remain."""
    while blocks and not blocks[-1].commit:
        blocks.pop()
    return blocks[-1].end if blocks else none


def _report_rows(
    found: Examined, slots: np.ndarray, rows: int, meta: Meta, columns: Columns
) -> None:
    """Report rows that fail their block's checksum, which covers them in every column.

    So the range runs from their first byte to their last.
    """
    first, last = columns.all[0], columns.all[-1]
    start = meta.columns[first.name].data.offset + int(slots[0]) * first.width
    stop = meta.columns[last.name].data.offset + (int(slots[-1]) + 1) * last.width
    what = "rows in this range: differ from what their journal record committed"
    found.damages.append(Damage(found.path, start, stop, what, rows))


def _report_journal(
    found: Examined,
    journal: bytes,
    end: int,
    behind: list[tuple[int, list[Block]]],
    keep: np.ndarray,
) -> None:
    path = found.path.with_suffix(".journal")
    known = int((found.count - keep).sum()) if behind else None
    for at, blocks in behind:
        found.damages.append(Damage(path, end, at, "a journal record: checksum differs", known))
        end = blocks[-1].bytes_to_here
    if len(journal) > end and not is_torn(journal[end:], len(keep)):
        what = "a journal record: checksum differs"
        found.damages.append(Damage(path, end, len(journal), what, None))
