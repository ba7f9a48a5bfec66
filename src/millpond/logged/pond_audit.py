"""`PondAudit`: records what a loop adds to a pond and draws from it, as evidence for the doctor.

It only counts; the doctor judges. It is independent of the code that it watches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..replay import HostPond
from ..return_check import places_of, return_of, same_return
from ..rows import BORDER, ENDED, Rows, pack_flags
from ..samplers import Prioritized
from ..window import Window

_CHECKED = 16  # most returns recomputed per report
_LOOKED = 256  # most samples of a batch that are kept for that
_COUNTED = ("rows", "ended", "overwritten", "overwritten_unsampled", "sampled", "rewards_nonzero")


class _Drawn(NamedTuple):
    """The parts of the newest batch that its returns are checked with."""

    stream: np.ndarray
    row: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    mask: np.ndarray


class PondAudit:
    """Call `took(rows, ...)` after every add, `drew(batch)` after every draw, then `report()`."""

    def __init__(self, pond: HostPond[Any]) -> None:
        self.pond, self.length, self.streams = pond, pond.length, pond.streams
        self.whole = pond.layout.whole
        window: Any = pond.window
        self._steps = window.n_step if isinstance(window, Window) else 1
        # Our own copy of what is added from now on, independent of the pond.
        shape = (self.streams, self.length)
        self._reward = np.zeros(shape, np.float32)
        self._byte = np.zeros(shape, np.uint8)
        self._drawn = np.zeros(shape, bool)
        self.added = pond.added
        self.known = self.added.copy()  # the first row of every stream that we have seen
        self._last: _Drawn | None = None
        self.unseen = 0  # rows that were added to the pond without our notice
        self.news = 0
        self._clear()

    def _clear(self) -> None:
        self._count = dict.fromkeys(_COUNTED, 0)
        self._reward_top = self._target_top = self._reward_sum = 0.0
        self.news = 0

    def took(self, rows: Rows, env: int | None, mask: Any, closes: bool) -> None:
        """Record rows that were just added; `closes`: the pond made border rows at their ends."""
        reward = np.asarray(rows.reward, np.float32)
        lead = reward.shape
        flags, terminated, truncated = map(
            np.asarray, (rows.flags, rows.terminated, rows.truncated)
        )
        byte = pack_flags(flags, terminated, truncated, None)
        byte = np.broadcast_to(byte, lead)
        if self.whole or env is not None:
            which = np.array([0 if self.whole else int(env or 0)])
            table = (-1, 1)
        else:
            which = np.arange(self.streams)
            table = (-1, self.streams)
        reward, byte = reward.reshape(table), byte.reshape(table)
        keep = None if mask is None else np.broadcast_to(np.asarray(mask, bool), lead)
        keep = None if keep is None else keep.reshape(table)
        for turn in range(len(reward)):
            streams = which if keep is None else which[keep[turn]]
            here = slice(None) if keep is None else keep[turn]
            self._put(streams, reward[turn, here], byte[turn, here])
            if closes and not self.whole:
                ended = (byte[turn, here] & ENDED) != 0
                if ended.any():
                    none = np.zeros(int(ended.sum()), np.float32)
                    self._put(streams[ended], none, np.full(len(none), BORDER, np.uint8))

    def _put(self, streams: np.ndarray, reward: np.ndarray, byte: np.ndarray) -> None:
        """Record the next row of each of these streams."""
        at = streams, self.added[streams] % self.length
        full = self.added[streams] - self.known[streams] >= self.length
        real = full & ((self._byte[at] & BORDER) == 0)
        count, size = self._count, np.abs(reward)
        count["overwritten"] += int(np.count_nonzero(real))
        count["overwritten_unsampled"] += int(np.count_nonzero(real & ~self._drawn[at]))
        count["rows"] += len(streams)
        count["ended"] += int(np.count_nonzero(byte & ENDED))
        count["rewards_nonzero"] += int(np.count_nonzero(size))
        self._reward_top = max(self._reward_top, float(size.max(initial=0)))
        self._reward_sum += float(size.sum())
        self._byte[at], self._reward[at], self._drawn[at] = byte, reward, False
        self.added[streams] += 1
        self.news += len(streams)

    def drew(self, batch: Any) -> None:
        """Record a batch that the loop is about to learn from."""
        mask = np.asarray(batch.mask)
        stream, ids = places_of(self.pond.window, batch.draw.stream, batch.draw.row, mask)
        known = mask & (ids >= self.known[stream]) & (ids < self.added[stream])
        self._drawn[stream[known], ids[known] % self.length] = True
        number = int(np.count_nonzero(mask))
        self._count["sampled"] += number
        self.news += number
        self._target_top = max(
            self._target_top, float(np.abs(np.where(mask, batch.reward, 0)).max(initial=0))
        )
        drawn = stream, ids, batch.reward, batch.discount, mask
        # Copied, because a loop that passes `out` reuses the arrays.
        self._last = _Drawn(*(np.array(values[:_LOOKED]) for values in drawn))

    def report(self) -> dict[str, Any]:
        """The evidence since the last report, as plain values."""
        there = self.pond.added
        if (there != self.added).any():  # rows were added elsewhere, or the pond was restored
            self.unseen += int(np.abs(there - self.added).sum())
            self.added, self.known, self._last = there, there.copy(), None
        checked, wrong = self._check_returns()
        found = {
            **self._count,
            "reward_mean": self._reward_sum / max(1, self._count["rows"]),
            "reward_max": self._reward_top,
            "target_reward_max": self._target_top,
            "returns_checked": checked,
            "returns_wrong": wrong,
            "stored": int(np.minimum(there, self.length).sum()),
            "capacity": self.pond.capacity,
            "unseen": self.unseen,
            "border_breaks": 0,  # a HostPond refuses such rows
            "ranked": isinstance(self.pond.sampler, Prioritized),
            **reward_bound(self.pond.window),
        }
        self._last = None
        self._clear()
        return found

    def _check_returns(self) -> tuple[int, int]:
        """Recompute some returns of the newest batch from the rows as they were added."""
        last, checked, wrong = self._last, 0, 0
        if last is None or (self.whole and self._steps > 1):
            return 0, 0
        oldest = np.maximum(self.known, self.added - self.length)[last.stream]
        newest = self.added[last.stream] - (0 if self.whole else self._steps)
        seen = last.mask & (last.row >= oldest) & (last.row < newest)
        for i in zip(*(place[:_CHECKED] for place in np.nonzero(seen)), strict=True):
            ids = (int(last.row[i]) + np.arange(self._steps)) % self.length
            where = int(last.stream[i]), ids
            wanted = return_of(self._reward[where], self._byte[where], self.pond.window)
            checked += 1
            wrong += not same_return((last.reward[i], last.discount[i]), wanted)
        return checked, wrong


def reward_bound(window: Any) -> dict[str, float]:
    """The largest possible sampled reward, as a multiple of the largest row's, and the clip."""
    steps = window.n_step if isinstance(window, Window) else 1
    clip = float(window.reward_clip or 0.0)
    return {"reward_times": float(sum(window.gamma**k for k in range(steps))), "reward_clip": clip}
