"""Rows of envs that reset in the same step, split into what a writer can append."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..borders import close_episodes
from ..intake import Intake, broken_episode, pack_values
from ..rows import breaks


class ReadyRows(NamedTuple):
    """Rows [1, stream] of some streams that lie side by side, checked: they can be appended."""

    values: dict[str, np.ndarray]
    flags: np.ndarray
    which: slice


def split_with_borders(
    intake: Intake,
    values: Mapping[str, np.ndarray],
    final: Mapping[str, np.ndarray],
    which: slice,
    last: np.ndarray,
) -> list[ReadyRows]:
    """Rows [time, stream] with a border row after each that ended, in the order they go in.

    `last` are the flags before the first of them. Raises for values or episodes that do not fit.
    """
    ends = {path: final[path] for path in intake.obs}
    closed, keep = close_episodes(intake.fields, values, ends, None, np)
    intake.check_values(closed, keep)
    flags = pack_values(closed)
    pieces: list[ReadyRows] = []
    for time, (now, kept) in enumerate(zip(flags, keep, strict=True)):
        broken = breaks(last, now) & kept
        if broken.any():
            stream = int(np.argmax(broken))
            where = f"append: stream {which.start + stream}, row {time // 2} of {len(flags) // 2}"
            raise broken_episode(int(last[stream]), int(now[stream]), where)
        last = np.where(kept, now, last)
        # All streams at once, or each that has ended by itself.
        some = [slice(0, len(kept))] if kept.all() else [slice(s, s + 1) for s in _true(kept)]
        for part in some:
            rows = {path: value[time : time + 1, part] for path, value in closed.items()}
            begin = which.start + part.start
            streams = slice(begin, begin + part.stop - part.start)
            pieces.append(ReadyRows(rows, now[None, part], streams))
    return pieces


def _true(kept: np.ndarray) -> list[int]:
    return np.flatnonzero(kept).tolist()
