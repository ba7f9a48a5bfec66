"""Episodes from a Lake's streams and back, for formats without streams.

An episode of T steps has T + 1 observations. A last step without an observation after it, because
an actor crashed or the stream ends there, cannot be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..rows import BORDER, CONTEXT, CUT, FIRST, Rows
from ..spec import Spec
from .columns import fields_of, to_columns, to_rows
from .exporting import LakeRows


class Episode(NamedTuple):
    """An episode's columns: observations and extras are [T + 1], everything else is [T].

    If last steps without an observation after them are kept, observations may be [T].
    """

    columns: Mapping[str, np.ndarray]
    steps: int


def per_observation(path: str) -> bool:
    """Whether a column has a value per observation instead of per step."""
    return path.startswith(("obs", "extras/"))


class Episodes:
    """The episodes of a Lake, one at a time, counting what is lost.

    With `whole`, a last step without an observation after it is kept. With `one_end`, a step that
    is both terminated and truncated becomes terminated only, because the format cannot say both.
    """

    def __init__(self, rows: LakeRows, whole: bool = False, one_end: bool = False) -> None:
        self._rows, self.spec, self._whole, self._one_end = rows, rows.spec, whole, one_end
        self._forget()

    def _forget(self) -> None:
        self.dropped = self.headless = self.open = self.both = self.context = 0

    def __iter__(self) -> Iterator[Episode]:
        self._forget()
        for stream in range(len(self._rows.streams)):
            waiting: list[dict[str, np.ndarray]] = []
            for rows in self._rows.rows(stream):
                yield from self._cut_up(to_columns(self.spec, rows), waiting)
            yield from self._closed(waiting)

    def _cut_up(
        self, columns: dict[str, np.ndarray], waiting: list[dict[str, np.ndarray]]
    ) -> Iterator[Episode]:
        """The episodes that end in these rows; the remaining rows are added to `waiting`."""
        flags = columns["flags"]
        last = np.flatnonzero(flags & (BORDER | CUT))
        begin = 0
        for end in (last + 1).tolist():
            waiting.append({path: value[begin:end] for path, value in columns.items()})
            begin = end
            yield from self._closed(waiting)
        if begin < len(flags):
            waiting.append({path: value[begin:] for path, value in columns.items()})

    def _closed(self, waiting: list[dict[str, np.ndarray]]) -> Iterator[Episode]:
        """An episode from all waiting rows, unless it has no steps."""
        if not waiting:
            return
        whole = {path: np.concatenate([one[path] for one in waiting]) for path in waiting[0]}
        waiting.clear()
        flags = whole["flags"]
        # A border or context row only holds the observation after the last step.
        final = bool(flags[-1] & (BORDER | CONTEXT))
        keeps = self._whole and not final
        ended = keeps and (whole["terminated"][-1] or whole["truncated"][-1])
        self.dropped += not final and not keeps
        self.open += not flags[-1] & BORDER and not ended
        self.headless += not flags[0] & FIRST
        steps = len(flags) if keeps else len(flags) - 1
        if not steps:
            return
        self.context += np.count_nonzero(flags[:steps] & CONTEXT)
        if self._one_end:
            both = whole["terminated"] & whole["truncated"]
            self.both += np.count_nonzero(both)
            whole["truncated"] &= ~both
        cut = {p: value if per_observation(p) else value[:steps] for p, value in whole.items()}
        yield Episode(cut, steps)

    def losses(self) -> list[str]:
        """Descriptions of what cannot be kept, after one pass over all episodes."""
        for _ in self:
            pass
        found = [
            (self.dropped, "last steps without an observation after them are left out"),
            (self.open, "episodes have no end: they are cut or unfinished"),
            (self.headless, "episodes lack their beginning"),
            (self.both, "steps that are both terminated and truncated become only terminated"),
            (
                self.context,
                "rows marked CONTEXT become ordinary steps, which may start a sample",
            ),
        ]
        told = [f"{number:,} {what}" for number, what in found if number]
        if len(self._rows.streams) > 1:
            told.append("which stream each episode belongs to")
        return told


def rows_of(spec: Spec, episode: Episode) -> Rows:
    """An episode as rows [T + 1]; the last is its border row, or a context row before a cut."""
    steps, columns = episode.steps, dict(episode.columns)
    flags = np.zeros(steps + 1, np.uint8)
    flags[0] = FIRST
    ended = bool(columns["terminated"][-1] or columns["truncated"][-1])
    flags[-1] = BORDER if ended else CONTEXT | CUT
    columns["flags"] = flags
    for path, field in fields_of(spec).items():
        if path == "flags" or per_observation(path):
            continue
        none = field.lowest() if path == "action" else field.blank()
        columns[path] = np.concatenate([columns[path], none[None]])
    return to_rows(spec, columns)
