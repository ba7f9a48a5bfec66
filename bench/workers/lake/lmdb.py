"""LMDB: one value per row, its frame and scalars; windows by five look-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from ..stopwatch import Card
from . import frames as work
from . import task

ROW = work.WIDTH + work.SMALL.itemsize


def keys(stream: np.ndarray, time: np.ndarray) -> list[bytes]:
    """Keys whose order is by stream, then by time."""
    whole = (stream.astype(">u8") << 32) + time.astype(">u8")
    raw = whole.astype(">u8").tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


class Database:
    """One table; written without waiting for the disk until the end."""

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        size = 2 * work.TIME * work.STREAMS * (ROW + 4096)
        env = lmdb.open(
            str(folder), map_size=size, sync=False, writemap=True, map_async=True, lock=False
        )
        # Rows of a stream side by side, as far as a block goes.
        streams, times = np.meshgrid(np.arange(work.STREAMS), np.arange(steps), indexing="ij")
        blocks = play.blocks(steps)
        yield
        row = np.empty((steps * work.STREAMS, ROW), np.uint8)
        for i, block in enumerate(blocks):
            for stream in range(work.STREAMS):
                mine = row[stream * steps : (stream + 1) * steps, : work.WIDTH]
                mine[:] = block.frames[:, stream].reshape(steps, -1)
            small = np.ascontiguousarray(block.small.swapaxes(0, 1))
            row[:, work.WIDTH :] = small.reshape(-1).view(np.uint8).reshape(len(row), -1)
            names = keys(streams.reshape(-1), (times + i * steps).reshape(-1))
            with env.begin(write=True) as transaction:
                transaction.cursor().putmulti(
                    [(name, memoryview(value)) for name, value in zip(names, row, strict=True)]
                )
        env.sync(True)
        env.close()

    def sampler(self, folder: Path) -> Callable[[], Any]:
        size = 2 * work.TIME * work.STREAMS * (ROW + 4096)
        env = lmdb.open(str(folder), map_size=size, readonly=True, lock=False, readahead=False)
        rng = np.random.default_rng(0)
        reach = np.arange(work.WINDOW)
        out = np.empty((work.BATCH * work.WINDOW, ROW), np.uint8)

        def sample() -> np.ndarray:
            stream, begin = work.draw(rng)
            time = begin[:, None] + reach
            names = keys(np.broadcast_to(stream[:, None], time.shape).reshape(-1), time.reshape(-1))
            with env.begin(buffers=True) as transaction:
                for row, name in zip(out, names, strict=True):
                    row[:] = transaction.get(name)
            return out

        return sample

    def newest(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        last = batch.reshape(work.BATCH, work.WINDOW, ROW)[:, -1, : work.WIDTH]
        return *work.first_drawn(), last.reshape(-1, *work.FRAME)


def main() -> None:
    _, recording, folder = task.arguments()
    card = Card("lmdb", "numpy")
    note = "five rows with scalars into one reused array; no borders, no masks"
    task.measure(card, "lmdb", Database(), recording, folder, note)
    card.show()


if __name__ == "__main__":
    main()
