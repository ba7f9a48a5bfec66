"""TensorStore: zarr3 in shards, zstd over eight steps of an env."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ..stopwatch import Card
from . import frames as work
from . import task

CACHE = 64 << 20  # bytes that may stay decoded: the tables of the shards fit, the frames do not
SMALL = work.SMALL.itemsize


def context() -> ts.Context:
    return ts.Context(
        {
            "cache_pool": {"total_bytes_limit": CACHE},
            "data_copy_concurrency": {"limit": 1},
            "file_io_concurrency": {"limit": 32},
        }
    )


class Shards:
    """Frames [env, time] of eight steps per zstd chunk, a block of all envs per shard."""

    def open(self, folder: Path, create: bool) -> list[ts.TensorStore]:
        shared = context()
        return [
            ts.open(self.spec(folder / name, shape), context=shared, create=create).result()
            for name, shape in (("frames", work.FRAME), ("small", (SMALL,)))
        ]

    def spec(self, folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
        whole = (work.STREAMS, work.BLOCK, *shape)
        inner = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3}}]
        sharded = {
            "chunk_shape": [1, work.BLOCK, *shape],
            "codecs": inner,
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
        }
        return {
            "driver": "zarr3",
            "recheck_cached_data": False,
            "recheck_cached_metadata": False,
            "kvstore": {"driver": "file", "path": f"{folder}/"},
            "metadata": {
                "shape": [work.STREAMS, work.TIME, *shape],
                "data_type": "uint8",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": whole}},
                "codecs": [{"name": "sharding_indexed", "configuration": sharded}],
            },
        }

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        # Shards are written whole, so steps are gathered until a block is there.
        blocks = play.blocks(steps)
        yield
        frames, small = self.open(folder, create=True)
        waiting: list[work.Play] = []
        for i, block in enumerate(blocks, 1):
            waiting.append(block)
            if i * steps % work.BLOCK:
                continue
            if len(waiting) > 1:
                parts = zip(*waiting, strict=True)
                block = work.Play(*(np.concatenate(part) for part in parts))
            waiting = []
            packed = np.ascontiguousarray(block.small).view(np.uint8)
            packed = packed.reshape(*block.small.shape, SMALL)
            at = slice(i * steps - work.BLOCK, i * steps)
            writes = [
                frames[:, at].write(block.frames.swapaxes(0, 1)),
                small[:, at].write(packed.swapaxes(0, 1)),
            ]
            for write in writes:
                write.result()

    def sampler(self, folder: Path) -> Callable[[], Any]:
        """One read per window and array, asked for together: twice as fast as one index array."""
        stores = self.open(folder, create=False)
        rng = np.random.default_rng(0)
        outs = [np.empty((work.BATCH, work.WINDOW, *s.shape[2:]), np.uint8) for s in stores]

        def sample() -> list[np.ndarray]:
            stream, begin = (part.tolist() for part in work.draw(rng))
            with ts.Batch() as together:
                reads = [
                    [
                        store[s, b : b + work.WINDOW].read(batch=together)
                        for s, b in zip(stream, begin, strict=True)
                    ]
                    for store in stores
                ]
            for out, found in zip(outs, reads, strict=True):
                for i, read in enumerate(found):
                    out[i] = read.result()
            return outs

        return sample

    def newest(self, batch: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return *work.first_drawn(), batch[0][:, -1]


def main() -> None:
    _, recording, folder = task.arguments()
    card = Card("tensorstore", "numpy")
    note = "five rows with scalars; no borders, no masks; 64 MB cache"
    task.measure(card, "zarr3", Shards(), recording, folder, note)
    card.show()


if __name__ == "__main__":
    main()
