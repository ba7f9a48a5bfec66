"""The recorded play that every library stores, and the windows that are asked of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

FRAME = (84, 84)
WIDTH = FRAME[0] * FRAME[1]
ENVS, STREAMS = 128, 512
TIME = int(os.environ.get("BENCH_STEPS", "512"))  # of each stream; 512: 64 segments of 4096 rows
SEGMENT_ROWS = 4096  # the least there is: 8 rows of every stream, so half of all windows cross
BLOCK = 8  # steps of every stream that are appended or committed together
BATCH, STACK = 512, 4
WINDOW = STACK + 1  # frames i - 3 ... i + 1: the stack at i and the stack at i + 1
_KINDS = ("terminated", "truncated", "first", "border")
# What a step has besides its frame.
SMALL = np.dtype([("action", "<i4"), ("reward", "<f4"), *((kind, "?") for kind in _KINDS)])


class Play(NamedTuple):
    """A recording: frames uint8[time, stream, 84, 84], in the page cache; small [time, stream]."""

    frames: np.ndarray
    small: np.ndarray

    def blocks(self, steps: int) -> list[Play]:
        """The play in the pieces in which it is appended."""
        return [
            Play(self.frames[t : t + steps], self.small[t : t + steps])
            for t in range(0, len(self.small), steps)
        ]


def load(folder: Path) -> Play:
    """The recording in `folder`, every page of it touched once."""
    frames = np.load(folder / "frames.npy", mmap_mode="r")[:TIME]
    for block in frames:
        block.reshape(-1)[::4096].max()
    return Play(frames, np.load(folder / "small.npy")[:TIME])


def draw(rng: np.random.Generator, number: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Random windows for those who draw none: stream[number], and the time[number] they begin."""
    return rng.integers(0, STREAMS, number), rng.integers(0, TIME - WINDOW + 1, number)


def first_drawn() -> tuple[np.ndarray, np.ndarray]:
    """Stream and time of the last row of each window that seed 0 draws first."""
    stream, begin = draw(np.random.default_rng(0))
    return stream, begin + WINDOW - 1
