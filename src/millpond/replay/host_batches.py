"""`HostBatches`: fills batches from a host ring, given the slots of their starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rows import LIFE_LOST, TERMINATED, TRUNCATED, Batch, leaves
from ..spec import Spec, walk
from ..window import Judgement, Window
from .host_starts import HostStarts

_BYTES = np.arange(128, dtype=np.uint8)
_TERMINATED, _TRUNCATED = (_BYTES & TERMINATED) != 0, (_BYTES & TRUNCATED) != 0


class HostBatches:
    """Copies observations, rewards and the rest from one ring into existing arrays."""

    def __init__(self, spec: Spec, window: Window, starts: HostStarts) -> None:
        self._window, self._ring, self._layout = window, starts.ring, starts.layout
        self._obs = [path for path, _ in walk(spec.obs, "obs")]
        self._ahead = starts.reach[self._window.before :, None]
        # Stack positions for every depth, so that a sample needs one lookup.
        depths = np.arange(self._window.stack)
        self._back, self._padded = self._window.lookback(depths, np)
        # Where one flags byte decides about a start, it decides about the discount too.
        self._discounts = None
        if isinstance(starts.verdicts, Judgement):
            nothing = np.zeros((1, 128), np.float32)
            self._discounts = self._window.returns(nothing, starts.verdicts, np)[1]

    def fill(self, slots: np.ndarray, verdict: Judgement, batch: Batch, after: Any = None) -> None:
        """Fill the batch, except draw, mask and weight, from judged starts at these slots.

        `after`: the slots `verdict.steps` rows later, if already known.
        """
        window, stores = self._window, self._ring.stores
        if window.stack > 1:
            self._take_stacks(slots, verdict, batch)
        else:
            if after is None:
                after = self._ring.shift(slots, verdict.steps)
            outs = leaves(batch.obs), leaves(batch.next_obs)
            for path, obs, next_obs in zip(self._obs, *outs, strict=True):
                stores[path].take_around(slots, obs)
                if self._layout.whole:
                    stores[f"next_{path}"].take_around(slots, next_obs)
                else:
                    stores[path].take_around(after, next_obs)
        if self._discounts is not None:
            stores["reward"].take_around(slots, batch.reward)
            if window.reward_clip:
                clip = window.reward_clip
                np.clip(batch.reward, -clip, clip, out=batch.reward)
            self._discounts.take(verdict.last, out=batch.discount, mode="clip")
        else:
            where = self._ring.shift(slots, self._ahead)
            rewards = stores["reward"].ring[:, 0].take(where, mode="wrap")
            batch.reward[:], batch.discount[:] = window.returns(rewards, verdict, np)
        stores["action"].take_around(slots, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                np.not_equal(verdict.first & LIFE_LOST, 0, out=extra)
            else:
                stores[f"extras/{name}"].take_around(slots, extra)
        _TERMINATED.take(verdict.last, out=batch.terminated, mode="clip")
        _TRUNCATED.take(verdict.last, out=batch.truncated, mode="clip")
        batch.steps[:] = verdict.steps

    def _take_stacks(self, slots: np.ndarray, verdict: Judgement, batch: Batch) -> None:
        """Fill the stacks at the starts and at the rows `steps` later."""
        length = self._layout.length
        stream, position = self._layout.place(slots)
        newest = np.array([position, (position + verdict.steps) % length])
        depth = np.array([verdict.depth, verdict.depth + verdict.steps])
        rows = newest[..., None] - self._back.take(depth, axis=0, mode="clip")
        rows += (rows < 0) * length
        padded = self._padded.take(depth, axis=0, mode="clip")
        pairs = zip(leaves(batch.obs), leaves(batch.next_obs), strict=True)
        for path, outs in zip(self._obs, pairs, strict=True):
            self._ring.stores[path].take_stacks(stream[:, None], rows, padded, outs)
