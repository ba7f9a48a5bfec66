"""`ReadySamples`: preallocated arrays and tensors for small batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..rows import Batch, Draw, Tree
from ..sequence import blank_batch
from ..spec import Spec, walk
from ..window import Window
from .tensors import torch

_BYTES, _MOST = 1 << 20, 64  # most bytes of one allocation, and most batches in it


class ReadySample(NamedTuple):
    """A batch to be filled, and a sample whose tensors share its memory."""

    batch: Batch
    sample: Any
    dones: np.ndarray
    discounts: np.ndarray | None


class ReadySamples:
    """Preallocated samples for Stable-Baselines3; none is handed out twice.

    A batch of 32 transitions is a dozen arrays of a few hundred bytes, which take longer to
    allocate one by one than to fill. `kind` is the class of a sample, `gamma` the discount of
    n-step returns.
    `ready = ReadySamples(...).take(32)`.
    """

    def __init__(
        self, spec: Spec, window: Window, ranked: bool, gamma: float | None, kind: Any
    ) -> None:
        self._spec, self._window, self._ranked = spec, window, ranked
        self._gamma, self._kind = gamma, kind
        self._number, self._waiting = 0, list[ReadySample]()

    def take(self, number: int) -> ReadySample:
        """Memory for a batch of `number` transitions."""
        if number != self._number or not self._waiting:
            self._number, self._waiting = number, self._make(number)
        return self._waiting.pop()

    def __reduce__(self) -> Any:
        """Copies allocate their own memory."""
        how = (self._spec, self._window, self._ranked, self._gamma, self._kind)
        return ReadySamples, how

    def fill(self, ready: ReadySample) -> Any:
        """The sample of a batch that was filled."""
        batch = ready.batch
        ready.dones[:, 0] = batch.terminated
        if ready.discounts is not None:
            np.power(np.float32(self._gamma), batch.steps, out=ready.discounts[:, 0], dtype="f4")
        return ready.sample

    def _make(self, number: int) -> list[ReadySample]:
        many = max(1, min(_MOST, _BYTES // (number * (2 * self._spec.row_bytes + 64))))
        whole: Any = blank_batch(self._spec, self._window, number * many, None, self._ranked)
        cut = _Cut(number, many)
        dones = cut.arrays(np.empty((number * many, 1), np.float32))
        discounts: list[Any] = [None] * many
        if self._gamma is not None:
            discounts = cut.arrays(np.empty((number * many, 1), np.float32))
        columns = [
            cut.tensors(_unstacked(whole.obs)),
            cut.tensors(whole.action),
            cut.tensors(_unstacked(whole.next_obs)),
            [torch.from_numpy(part) for part in dones],
            cut.tensors(whole.reward[:, None]),
            [None if part is None else torch.from_numpy(part) for part in discounts],
        ]
        samples = [self._kind(*parts) for parts in zip(*columns, strict=True)]
        return [
            ReadySample(*one)
            for one in zip(cut.batches(whole), samples, dones, discounts, strict=True)
        ]


class _Cut:
    """Cuts arrays [number * many, ...] into `many` arrays [number, ...]."""

    def __init__(self, number: int, many: int) -> None:
        self._number, self._many = number, many

    def arrays(self, whole: np.ndarray) -> list[np.ndarray]:
        return list(whole.reshape(self._many, self._number, *whole.shape[1:]))

    def tensors(self, whole: Tree) -> list[Any]:
        """Separate tensors, not views of one, so that PyTorch tracks writes to each separately."""
        return self._trees(whole, lambda part: [torch.from_numpy(one) for one in self.arrays(part)])

    def batches(self, whole: Batch) -> list[Batch]:
        parts = [self._trees(value, self.arrays) for value in whole[:-2]]
        draws = [
            [None] * self._many if value is None else self.arrays(value) for value in whole.draw
        ]
        made = zip(*parts, zip(*draws, strict=True), strict=True)
        return [Batch._make((*one, Draw(*draw), {})) for *one, draw in made]

    def _trees(self, whole: Tree, parts: Any) -> list[Any]:
        if not isinstance(whole, dict):
            return parts(whole)
        found = {path: parts(part) for path, part in walk(whole, "")}
        names = [path.removeprefix("/") for path in found]
        return [dict(zip(names, one, strict=True)) for one in zip(*found.values(), strict=True)]


def _unstacked(obs: Tree) -> Tree:
    """Drop the stack axis: [batch, 1, ...] -> [batch, ...]."""
    if isinstance(obs, dict):
        return {key: value[:, 0] for key, value in obs.items()}
    return obs[:, 0]
