"""Gaps: row ids that no segment holds, between segments that exist.

Eviction removes the oldest segments only, so a gap is damage: a file was deleted. A gap left by
repair is recorded as an empty file, `NUMBER.gap`, where NUMBER is the segment after it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .damage import Damage, Examined
from .recovery import segment_files, set_aside_files
from .segment import path_of


class Gaps:
    """Finds gaps between the segments of one group, given from the oldest on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: Examined | None = None  # the previous segment, if its rows are known
        self.end: np.ndarray | None = None  # int64[streams]: ids after all rows so far, if known

    def find(self, one: Examined) -> np.ndarray | None:
        """int64[streams]: rows missing before a segment without an explanation; None: no gap."""
        if one.meta is None:
            if one.damages:  # its own damage reports the missing rows
                self.before = self.end = None
            return None
        missing = None
        if self.end is not None and self.before is not None:
            gap = np.maximum(one.meta.first - self.end, 0)
            if gap.any() and one.promised and not self._explained(self.before.number, one):
                missing = gap
        given = one.meta.first + one.count
        self.end = given if self.end is None else np.maximum(self.end, given)
        self.before = one
        return missing

    def _explained(self, before: int, one: Examined) -> bool:
        if path_of(self.folder, one.number, ".gap").exists():
            return True
        # Repairs by older versions left only the damaged file. And if the segment before vanished
        # while this one was examined, a writer is evicting, and those between went after it.
        aside = any(before <= number < one.number for number in set_aside_files(self.folder))
        return aside or before not in segment_files(self.folder)


def gap_damage(one: Examined, missing: np.ndarray) -> Damage:
    """The damage to report for rows missing before a segment."""
    assert one.meta is not None
    stream = int(np.argmax(missing > 0))
    stop = int(one.meta.first[stream])
    what = (
        f"rows before this segment are gone, such as {stop - int(missing[stream])} to {stop - 1} "
        f"of stream {one.group.base + stream}: the file that held them is missing"
    )
    return Damage(one.path, 0, 1, what, int(missing.sum()))
