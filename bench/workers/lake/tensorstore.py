"""TensorStore: zarr3 in shards with zstd, and zarr with gzip in the layout of flashbax's Vault."""

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
ENDLESS = 10**13  # Vault's time axis
SMALL = work.SMALL.itemsize


def context() -> ts.Context:
    return ts.Context(
        {"cache_pool": {"total_bytes_limit": CACHE}, "file_io_concurrency": {"limit": 32}}
    )


class Shards:
    """Frames [env, time] of eight steps per zstd chunk, a block of all envs per shard."""

    name = "zarr3"

    def open(self, folder: Path, create: bool) -> list[ts.TensorStore]:
        shared = context()
        return [
            ts.open(self._spec(folder / name, shape), context=shared, create=create).result()
            for name, shape in (("frames", work.FRAME), ("small", (SMALL,)))
        ]

    def _spec(self, folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
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
        stores = self.open(folder, create=False)
        rng = np.random.default_rng(0)
        reach = np.arange(work.WINDOW)

        def sample() -> list[np.ndarray]:
            stream, begin = work.draw(rng)
            time = begin[:, None] + reach
            which = np.broadcast_to(stream[:, None], time.shape)
            reads = [store.vindex[which, time].read() for store in stores]
            return [read.result() for read in reads]

        return sample


class Vault(Shards):
    """zarr over ocdbt with gzip level 5 and TensorStore's own choice of chunks, as Vault opens."""

    def _spec(self, folder: Path, shape: tuple[int, ...]) -> dict[str, Any]:
        return {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": f"file://{folder.parent}", "path": folder.name},
            "metadata": {"compressor": {"id": "gzip", "level": 5}},
            "dtype": "uint8",
            "schema": {"domain": {"shape": [work.STREAMS, ENDLESS, *shape]}},
        }


def main() -> None:
    game, recording, folder = task.arguments()
    card = Card("tensorstore", "numpy")
    note = "five rows with scalars; no borders, no masks"
    task.measure(card, "zarr3", Shards(), recording, folder, f"{note}; 64 MB cache")
    if game == "gravitar":
        task.measure(
            card, "vault", Vault(), recording, folder, f"{note}; its settings, without flashbax"
        )
    card.show()


if __name__ == "__main__":
    main()
