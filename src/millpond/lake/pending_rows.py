"""`PendingRows`: rows that a writer has taken and not written yet, as shares lie on disk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .columns import Columns
from .layout import length_of

_BYTES = 32 << 20  # of rows gathered in memory before they are written


class PendingRows:
    """Memory for rows of every stream; `count` of them wait there."""

    def __init__(self, columns: Columns, streams: int, slots: int) -> None:
        self.streams, self.slots = streams, slots
        self.most = max(1, min(slots, _BYTES // (streams * columns.row_bytes)))  # per stream
        self.count = np.zeros(streams, np.int64)
        self._widths = {column.name: column.width for column in columns.all}
        self._memory = {
            name: np.empty(streams * self.most * width, np.uint8)
            for name, width in self._widths.items()
        }
        self._views: dict[int, dict[str, np.ndarray]] = {}

    def steps(self, layout: str) -> int:
        """Rows per stream that may wait for a segment of a layout."""
        return min(self.most, length_of(layout, self.slots, self.streams))

    def rows(self, layout: str) -> dict[str, np.ndarray]:
        """uint8[stream, step, width] per column. As long as rows wait, the layout is the same."""
        steps = self.steps(layout)
        if steps not in self._views:
            self._views[steps] = {
                name: self._memory[name][: self.streams * steps * width].reshape(
                    self.streams, steps, width
                )
                for name, width in self._widths.items()
            }
        return self._views[steps]

    def put(self, rows: Mapping[str, np.ndarray], which: slice, number: int, layout: str) -> None:
        """Take rows[column][stream, time, width] of some streams, for which there is room."""
        views, at = self.rows(layout), int(self.count[which.start])
        if (self.count[which] == at).all():
            for name, block in rows.items():
                views[name][which, at : at + number] = block
        else:
            for stream in range(which.start, which.stop):
                at = int(self.count[stream])
                for name, block in rows.items():
                    views[name][stream, at : at + number] = block[stream - which.start]
        self.count[which] += number
