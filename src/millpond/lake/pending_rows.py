"""`PendingRows`: rows that a writer has accepted but not written yet, ordered stream by stream."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .columns import Columns
from .layout import length_of

_BYTES = 32 << 20  # of rows collected in memory before they are written


class PendingRows:
    """A buffer with room for rows of every stream, `count[stream]` of which are waiting."""

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
        """How many rows per stream may wait for a segment of this layout."""
        return min(self.most, length_of(layout, self.slots, self.streams))

    def rows(self, layout: str) -> dict[str, np.ndarray]:
        """uint8[stream, step, width] per column; the layout must not change while rows wait."""
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
        """Add rows[column][stream, time, width] of the streams `which`; they must fit."""
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
