"""Sequences of 64 rows from a compressed Lake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from millpond import Lake, Sequence, SequenceBatch

from ..lake.ours import OurStore
from ..lake.task import arguments
from ..stopwatch import Card
from . import task
from .on_disk import measure

WINDOW = Sequence(task.LENGTH)


class Sequences(OurStore):
    """The same Lake, read in sequences."""

    def sampler(self, folder: Path) -> Callable[[], SequenceBatch]:
        lake, rng = Lake.open(folder / "lake"), np.random.default_rng(0)
        batch = None

        def sample() -> SequenceBatch:
            nonlocal batch
            batch = lake.sample(rng, task.BATCH, WINDOW, out=batch)
            return batch

        return sample


def main() -> None:
    card = Card("millpond", "zstandard", "xxhash", "numpy")
    _, recording, folder = arguments()
    measure(card, "lake", Sequences(raw=False), recording, folder, "compressed, whole batches")
    card.show()


if __name__ == "__main__":
    main()
