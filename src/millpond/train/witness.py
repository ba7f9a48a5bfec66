"""`Witness`: sees every row a learner takes and every draw it trains on, and keeps the evidence.

What it finds is judged elsewhere (`millpond doctor`); here it is only counted, in plain NumPy and
apart from the code that is watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..rows import BORDER, CUT, TERMINATED, TRUNCATED, Draw, Rows, breaks, pack_flags
from .limiter import Limiter
from .settings import Settings
from .study import Lesson

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


class Witness:
    """Evidence of one learner: `took(rows)`, `learned(lesson)`, then `report()`."""

    def __init__(self, settings: Settings, policy: int) -> None:
        self.settings, self.policy = settings, policy
        self.envs, self.actors = settings.envs, settings.actors
        self.length = settings.dqn.capacity // settings.envs
        self.limiter = Limiter.of(settings)
        self.turn = self.known = 0  # turns taken; the first whose rows are remembered
        self.steps = np.zeros(self.actors, np.int64)
        # What was stored, as it was pushed: independent of the replay.
        self._reward = np.zeros((self.length, self.envs), np.float32)
        self._byte = np.zeros((self.length, self.envs), np.uint8)
        self._drawn = np.zeros((self.length, self.envs), bool)
        self._last: Lesson | None = None
        self._clear()

    def _clear(self) -> None:
        self._lag = np.zeros(len(LAG_EDGES) + 1, np.int64)
        self._count = dict.fromkeys(_COUNTED, 0)
        self._epsilon_off = self._reward_top = self._reward_sum = self._target_top = 0.0
        self._lag_top = 0

    def took(self, rows: Rows, updates: int) -> None:
        """Rows [time, env] as they were popped, by a learner that has made so many updates."""
        byte = pack_flags(rows.flags, rows.terminated, rows.truncated, None)
        step = (byte & BORDER) == 0
        count = self._count
        count["rows"] += byte.size
        lag = np.maximum(updates - rows.extras["policy_version"].astype(np.int64), 0)
        self._lag += np.bincount(np.searchsorted(LAG_EDGES, lag.ravel(), "right"), None, 11)
        self._lag_top = max(self._lag_top, int(lag.max()))
        self._see_epsilon(rows, step)
        size = np.abs(rows.reward)
        self._reward_top = max(self._reward_top, float(size.max()))
        self._reward_sum += float(size.sum())
        count["rewards_nonzero"] += int(np.count_nonzero(size))
        for turn in range(len(byte)):
            at = self.turn % self.length
            if self.turn > self.known:
                before = self._byte[(self.turn - 1) % self.length]
                count["border_breaks"] += int(breaks(before, byte[turn]).sum())
            if self.turn - self.known >= self.length:
                real = (self._byte[at] & BORDER) == 0
                count["overwritten"] += int(real.sum())
                count["overwritten_unsampled"] += int((real & ~self._drawn[at]).sum())
            self._byte[at], self._reward[at], self._drawn[at] = byte[turn], rows.reward[turn], False
            self.turn += 1

    def _see_epsilon(self, rows: Rows, step: np.ndarray) -> None:
        """Compare what was applied with the schedule at the steps counted here, per actor."""
        settings, before = self.settings, self.steps * self.actors  # at the cycle's first turn
        wanted = settings.dqn.epsilon.at(
            before.astype(np.uint32), settings.steps, np.int64(self.policy)
        )
        self.steps += step.reshape(len(step), self.actors, -1).sum((0, 2))
        applied = rows.extras["epsilon"].reshape(len(step), self.actors, -1)
        off = float(np.abs(applied - np.asarray(wanted)[:, None]).max())
        self._epsilon_off = max(self._epsilon_off, off)

    def cut(self, envs: np.ndarray) -> None:
        """Continuity is lost after the newest rows of envs bool[env]."""
        if self.turn > self.known:
            self._byte[(self.turn - 1) % self.length] |= np.uint8(CUT) * envs

    def learned(self, lesson: Lesson) -> None:
        """The updates of one cycle."""
        mask = np.asarray(lesson.mask)
        self._count["sampled"] += int(mask.sum())
        self._count["stack_mismatches"] += int(np.sum(lesson.strange))
        reward = np.abs(np.where(mask, lesson.reward, 0)).max(initial=0)
        self._target_top = max(self._target_top, float(reward) * self.settings.dqn.reward_scale)
        if self.settings.replay == "lake":
            return  # a Lake outlives the run, so its row ids are not our turns
        ids, stream = (
            Draw(lesson.stream, lesson.row, None).ids()[mask],
            np.asarray(lesson.stream)[mask],
        )
        known = ids >= self.known
        self._drawn[ids[known] % self.length, stream[known]] = True
        self._last = lesson

    def report(self) -> dict[str, Any]:
        """The evidence since the last report, as plain values."""
        checked, wrong = self._check_returns()
        rows = max(1, self._count["rows"])
        evidence = {
            **self._count,
            "lag": self._lag.tolist(),
            "lag_max": self._lag_top,
            "epsilon_off": self._epsilon_off,
            "reward_mean": self._reward_sum / rows,
            "reward_max": self._reward_top,
            "target_reward_max": self._target_top,
            "returns_checked": checked,
            "returns_wrong": wrong,
            "stored": min(self.turn, self.length) * self.envs,
            "min_fill": self.settings.dqn.min_fill,
            "samples_per_insert": self.limiter.samples_per_insert,
        }
        self._clear()
        return evidence

    def _check_returns(self) -> tuple[int, int]:
        """Recompute some n-step returns of the newest batch from the rows as they were pushed."""
        lesson, self._last = self._last, None
        if lesson is None:
            return 0, 0
        checked = wrong = 0
        ids, stream = Draw(lesson.stream, lesson.row, None).ids()[-1], lesson.stream[-1]
        oldest = max(self.known, self.turn - self.length)
        for i in np.flatnonzero(lesson.mask[-1] & (ids >= oldest))[:_CHECKED]:
            reward, discount = self._return_from(int(ids[i]), int(stream[i]))
            checked += 1
            wrong += not (
                np.isclose(lesson.reward[-1][i], reward, rtol=1e-4, atol=1e-5)
                and np.isclose(lesson.discount[-1][i], discount, rtol=1e-5, atol=1e-6)
            )
        return checked, wrong

    def _return_from(self, row: int, stream: int) -> tuple[float, float]:
        dqn = self.settings.dqn
        total, discount = 0.0, 1.0
        for ahead in range(dqn.n_step):
            at = (row + ahead) % self.length
            reward, byte = float(self._reward[at, stream]), int(self._byte[at, stream])
            if dqn.reward_clip:
                reward = min(max(reward, -dqn.reward_clip), dqn.reward_clip)
            total += discount * reward
            discount *= dqn.gamma
            if byte & TERMINATED:
                return total, 0.0
            if byte & TRUNCATED:  # the sum stops, the bootstrap does not
                break
        return total, discount

    def export(self) -> dict[str, np.ndarray]:
        """All that must be known to go on, right after a report."""
        return {
            "turns": np.array([self.turn, self.known], np.int64),
            "steps": self.steps.copy(),
            "reward": self._reward.copy(),
            "byte": self._byte.copy(),
            "drawn": self._drawn.copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from an exported state."""
        self.turn, self.known = (int(number) for number in arrays["turns"])
        self.steps, self._reward = arrays["steps"].copy(), arrays["reward"].copy()
        self._byte, self._drawn = arrays["byte"].copy(), arrays["drawn"].copy()
