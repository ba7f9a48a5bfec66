"""`RowAudit`: sees every row that a learner takes and every draw it trains on, and keeps evidence.

It only counts, in plain NumPy, and shares no code with what it checks. `millpond doctor` judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..agents import Replayed
from ..return_check import places_of, return_of, same_return
from ..rows import BORDER, CUT, Array, Rows, breaks, pack_flags
from ..schedule import Schedule
from ..window import Window
from .checkpoint import Arrays
from .limiter import Limiter
from .settings import Settings
from .updates import Lesson

LAG_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # lag 0, 1, 2-3, 4-7, ... updates
_COUNTED = (
    "rows",
    "border_breaks",
    "overwritten",
    "overwritten_unsampled",
    "sampled",
    "stack_mismatches",
    "rewards_nonzero",
)
_CHECKED = 16  # returns recomputed per report


class RowAudit:
    """Evidence of one learner: `took(rows, updates)`, `learned(lesson)`, then `report()`."""

    def __init__(self, settings: Settings, policies: Sequence[int]) -> None:
        self.settings, self.policies = settings, np.asarray(policies, np.int64)
        self.envs, self.actors = settings.envs, settings.actors
        learns = settings.learns
        self.replayed = isinstance(learns, Replayed) and not settings.from_lake
        rows = settings.replayed.capacity if self.replayed else learns.turns * settings.envs
        self.length = rows // settings.envs
        # Rows that a return sums; a sequence has the reward of every row.
        self._window, self._scale = learns.window, np.float32(learns.reward_scale)
        self._steps = self._window.n_step if isinstance(self._window, Window) else 1
        self._epsilon: Schedule | None = settings.learning.schedules.get("epsilon")
        self.limiter = Limiter.of(settings)
        self.turn = self.known = 0  # turns taken; the first of which rows are remembered
        self.steps = np.zeros((len(policies), self.actors), np.int64)
        # The rows as they were pushed, independent of the replay.
        shape = (self.length, len(policies), self.envs)
        self._reward = np.zeros(shape, np.float32)
        self._byte = np.zeros(shape, np.uint8)
        self._drawn = np.zeros(shape, bool)
        self._last: Lesson | None = None
        self._clear()

    def _clear(self) -> None:
        policies = len(self.policies)
        self._lag = np.zeros((policies, len(LAG_EDGES) + 1), np.int64)
        self._lag_top = np.zeros(policies, np.int64)
        self._count = {name: np.zeros(policies, np.int64) for name in _COUNTED}
        self._epsilon_off, self._reward_top, self._target_top = np.zeros((3, policies), np.float32)
        self._reward_sum = np.zeros(policies)

    def took(self, rows: Rows, updates: np.ndarray) -> None:
        """Take rows [time, policies, env], which were acted before updates[policies]."""
        byte = pack_flags(rows.flags, rows.terminated, rows.truncated, None)
        step = (byte & BORDER) == 0
        count = self._count
        count["rows"] += byte[:, 0].size
        self._see_lag(rows.extras["policy_version"], updates)
        self._see_epsilon(rows, step)
        size = np.abs(rows.reward)
        self._reward_top = np.maximum(self._reward_top, size.max((0, 2)))
        self._reward_sum += size.sum((0, 2))
        count["rewards_nonzero"] += np.count_nonzero(size, (0, 2))
        for first in range(0, len(byte), self.length):
            some = slice(first, first + self.length)
            self._remember(byte[some], rows.reward[some])

    def _remember(self, byte: np.ndarray, reward: np.ndarray) -> None:
        """Keep at most `length` turns, and count those that they replace."""
        number, count = len(byte), self._count
        before = byte[:-1]
        if self.turn > self.known:
            before = np.concatenate([self._byte[None, (self.turn - 1) % self.length], before])
        count["border_breaks"] += breaks(before, byte[number - len(before) :]).sum((0, 2))
        at = (self.turn + np.arange(number)) % self.length
        replaced = at[max(0, self.known + self.length - self.turn) :]
        if replaced.size:
            real = (self._byte[replaced] & BORDER) == 0
            count["overwritten"] += real.sum((0, 2))
            count["overwritten_unsampled"] += (real & ~self._drawn[replaced]).sum((0, 2))
        self._byte[at], self._reward[at] = byte, reward
        self._drawn[at] = not self.replayed  # without replay all rows are learned from at once
        self.turn += number

    def _see_lag(self, versions: np.ndarray, updates: np.ndarray) -> None:
        lag = np.maximum(updates[:, None] - versions.astype(np.int64), 0)
        bins = self._lag.shape[1]
        # Each policy has its own bins; all are counted in one pass.
        places = np.searchsorted(LAG_EDGES, lag, "right") + bins * np.arange(len(updates))[:, None]
        self._lag += np.bincount(places.ravel(), None, self._lag.size).reshape(-1, bins)
        self._lag_top = np.maximum(self._lag_top, lag.max((0, 2)))

    def _see_epsilon(self, rows: Rows, step: np.ndarray) -> None:
        """Compare the rows' epsilon with the schedule at the steps counted here, for each actor."""
        before = (self.steps * self.actors).astype(np.uint32)  # at the cycle's first turn
        wanted: Array = np.zeros(before.shape)
        if self._epsilon is not None:
            wanted = self._epsilon.at(before, self.settings.steps, self.policies[:, None], xp=np)
        lead = (*step.shape[:2], self.actors, -1)
        self.steps += step.reshape(lead).sum((0, 3))
        applied = rows.extras["epsilon"].reshape(lead)
        off = np.abs(applied - wanted[..., None]).max((0, 2, 3))
        self._epsilon_off = np.maximum(self._epsilon_off, off)

    def cut(self, envs: np.ndarray) -> None:
        """The next rows of envs bool[env] do not continue their newest ones."""
        if self.turn > self.known:
            self._byte[(self.turn - 1) % self.length] |= np.uint8(CUT) * envs

    def learned(self, lesson: Lesson) -> None:
        """Take the updates of one cycle."""
        mask = np.asarray(lesson.mask)
        each = tuple(range(1, mask.ndim))  # updates, batch and, of sequences, time
        self._count["sampled"] += mask.sum(each)
        self._count["stack_mismatches"] += lesson.strange.sum(1)
        reward = np.abs(np.where(mask, lesson.reward, 0)).max(each, initial=0)
        self._target_top = np.maximum(self._target_top, reward * self._scale)
        if not self.replayed or self.settings.replay == "lake":
            return  # a Lake outlives the run, so its row ids are not turns of the run
        stream, ids = places_of(self._window, lesson.stream, lesson.row, mask)
        # Rows drawn from a shard may not have been shown here yet: they are not counted.
        known = mask & (ids >= self.known) & (ids < self.turn)
        policy = np.nonzero(known)[0]
        self._drawn[ids[known] % self.length, policy, stream[known]] = True
        self._last = lesson

    def report(self) -> list[dict[str, Any]]:
        """The evidence of each policy since the last report, as plain values."""
        lesson, self._last = self._last, None
        evidence = [self._of(policy, lesson) for policy in range(len(self.policies))]
        self._clear()
        return evidence

    def _of(self, policy: int, lesson: Lesson | None) -> dict[str, Any]:
        counts = {name: int(count[policy]) for name, count in self._count.items()}
        checked, wrong = self._check_returns(policy, lesson) if lesson else (0, 0)
        return {
            **counts,
            "lag": self._lag[policy].tolist(),
            "lag_max": int(self._lag_top[policy]),
            "epsilon_off": float(self._epsilon_off[policy]),
            "reward_mean": float(self._reward_sum[policy]) / max(1, counts["rows"]),
            "reward_max": float(self._reward_top[policy]),
            "target_reward_max": float(self._target_top[policy]),
            "returns_checked": checked,
            "returns_wrong": wrong,
            "stored": min(self.turn, self.length) * self.envs,
            "min_fill": self.limiter.begins_at,
            "samples_per_insert": self.limiter.samples_per_insert,
        }

    def _check_returns(self, policy: int, lesson: Lesson) -> tuple[int, int]:
        """Recompute some n-step returns of the newest batch: how many, and how many are wrong."""
        checked = wrong = 0
        last = Lesson(*(leaf[policy, -1] for leaf in lesson))
        mask = np.asarray(last.mask)
        stream, ids = places_of(self._window, last.stream, last.row, mask)
        oldest = max(self.known, self.turn - self.length)
        seen = (ids >= oldest) & (ids < self.turn - self._steps)
        for i in zip(*(place[:_CHECKED] for place in np.nonzero(mask & seen)), strict=True):
            where = (int(ids[i]) + np.arange(self._steps)) % self.length, policy, int(stream[i])
            wanted = return_of(self._reward[where], self._byte[where], self._window)
            checked += 1
            wrong += not same_return((last.reward[i], last.discount[i]), wanted)
        return checked, wrong

    def export(self) -> list[Arrays]:
        """The state of each policy, right after a report."""
        return [
            {
                "turns": np.array([self.turn, self.known], np.int64),
                "steps": self.steps[policy].copy(),
                "reward": self._reward[:, policy].copy(),
                "byte": self._byte[:, policy].copy(),
                "drawn": self._drawn[:, policy].copy(),
            }
            for policy in range(len(self.policies))
        ]

    def restore(self, arrays: Sequence[Arrays]) -> None:
        """Continue from an exported state of each policy."""
        self.turn, self.known = (int(number) for number in arrays[0]["turns"])
        self.steps = np.stack([one["steps"] for one in arrays])
        self._reward, self._byte, self._drawn = (
            np.stack([one[name] for one in arrays], 1) for name in ("reward", "byte", "drawn")
        )
