"""Rows of envs that reset in the same step, with border rows, split so a writer can append them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..borders import close_episodes
from ..intake import Intake, broken_episode, pack_values
from ..rows import breaks


class ReadyRows(NamedTuple):
    """One checked row per stream, [1, stream], of neighbouring streams: ready to be appended."""

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
    """Insert border rows after ended episodes into rows [time, stream]; return them in write order.

    `last` are the flags of each stream's newest row. Raises SpecMismatch for bad values and
    BrokenEpisode for a row that cannot follow the one before it.
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
        # All streams at once, or each ended one by itself.
        some = [slice(0, len(kept))] if kept.all() else [slice(s, s + 1) for s in _true(kept)]
        for part in some:
            rows = {path: value[time : time + 1, part] for path, value in closed.items()}
            begin = which.start + part.start
            streams = slice(begin, begin + part.stop - part.start)
            pieces.append(ReadyRows(rows, now[None, part], streams))
    return pieces


def _true(kept: np.ndarray) -> list[int]:
    return np.flatnonzero(kept).tolist()
