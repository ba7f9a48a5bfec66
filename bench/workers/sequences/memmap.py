"""Slices of 65 rows from TorchRL's memmap storage, by its sampler and by index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrl.data import ReplayBuffer, SliceSampler

from ..lake import frames
from ..lake.task import arguments
from ..lake.torchrl import Storage
from ..stopwatch import Card
from . import task
from .on_disk import measure


class ByIndex(Storage):
    """All fields of 65 consecutive rows, ends not looked at."""

    def sampler(self, folder: Path) -> Callable[[], Any]:
        storage, rng = self.open(folder), np.random.default_rng(0)
        reach = np.arange(task.ROWS)

        def sample() -> Any:
            stream = torch.from_numpy(rng.integers(0, frames.STREAMS, (task.BATCH, 1)))
            begin = rng.integers(0, frames.TIME - task.ROWS, (task.BATCH, 1))
            at = torch.from_numpy(begin + reach)
            return storage[at, stream.expand(at.shape)]

        return sample


class Slices(Storage):
    """Its own sampler of slices that cross no episode's end."""

    def sampler(self, folder: Path) -> Callable[[], Any]:
        sampler = SliceSampler(
            slice_len=task.ROWS, end_key=("next", "done"), cache_values=True, strict_length=True
        )
        size = task.BATCH * task.ROWS
        return ReplayBuffer(storage=self.open(folder), sampler=sampler, batch_size=size).sample


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    card = Card("torchrl", "tensordict", "torch", "numpy")
    _, recording, folder = arguments()
    note = "65 rows with all fields, raw frames; no masks"
    measure(card, "slices", Slices(), recording, folder, f"SliceSampler; {note}")
    measure(card, "index", ByIndex(), recording, folder, f"by index; {note}")
    card.show()


if __name__ == "__main__":
    main()
