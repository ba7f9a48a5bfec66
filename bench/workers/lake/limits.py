"""What the machine allows: gathering the same windows from memory, and reading them from disk."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..stopwatch import Card
from . import frames as work
from . import task

READ = 9 * 4096  # a window of five frames in whole pages
READS = 8192
DEPTHS = (8, 32, 64)
TOGETHER = 16  # windows


def write_rows(recording: Path, path: Path) -> None:
    """The frames as one raw array [stream, time]: every window lies in one stretch."""
    play = work.load(recording)
    with open(path, "wb") as file:
        for stream in range(work.STREAMS):
            file.write(np.ascontiguousarray(play.frames[:, stream]).tobytes())


class Writes:
    """The bytes of a segment's frames in one write and one sync: what no store can do without."""

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        blocks = [memoryview(block.frames).cast("B") for block in play.blocks(steps)]
        yield
        for number, block in enumerate(blocks):
            fd = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.pwrite(fd, block, 0)
            os.fsync(fd)
            os.close(fd)


def gather(path: Path) -> Callable[[], Any]:
    """Five frames of each window into one array that is used again; nothing else."""
    rows = np.memmap(path, np.uint8, "r").reshape(-1, work.WIDTH)
    out = np.empty((work.BATCH * work.WINDOW, work.WIDTH), np.uint8)
    rng = np.random.default_rng(0)
    reach = np.arange(work.WINDOW)

    def sample() -> None:
        stream, begin = work.draw(rng)
        first = (stream * work.TIME + begin)[:, None] + reach
        np.take(rows, first.reshape(-1), axis=0, out=out, mode="clip")

    return sample


def gather_stacks(path: Path) -> Callable[[], Any]:
    """The same windows as two stacks of four frames, a few windows at a time while they are hot."""
    rows = np.memmap(path, np.uint8, "r").reshape(-1, work.WIDTH)
    outs = [np.empty((work.BATCH, work.STACK, work.WIDTH), np.uint8) for _ in range(2)]
    rng = np.random.default_rng(0)
    reach = np.arange(work.STACK)

    def sample() -> None:
        stream, begin = work.draw(rng)
        first = (stream * work.TIME + begin)[:, None] + reach
        for at in range(0, work.BATCH, TOGETHER):
            some = slice(at, at + TOGETHER)
            for ahead, out in enumerate(outs):
                np.take(rows, first[some] + ahead, axis=0, out=out[some], mode="clip")

    return sample


def read_randomly(path: Path, depth: int) -> float:
    """Reads of a window per second at random pages, past the page cache, `depth` at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pages = os.fstat(fd).st_size // 4096
    starts = np.random.default_rng(0).integers(0, pages - READ // 4096, READS) * 4096
    buffers = [mmap.mmap(-1, READ) for _ in range(depth)]  # page-aligned, as O_DIRECT demands

    def read(which: int) -> None:
        for start in starts[which::depth].tolist():
            os.preadv(fd, [buffers[which]], start)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(depth)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return READS / (time.perf_counter() - begin)


def main() -> None:
    _, recording, folder = task.arguments()
    card = Card("numpy")
    with card.section("write_blocks"), task.empty_folder(folder):
        note = "one write and one sync per block of eight steps; frames alone"
        task.append_rows(card, "write_blocks", Writes(), recording, folder, work.BLOCK, note)
    with card.section("gather_warm", "disk_cold"), task.empty_folder(folder):
        path = folder / "rows"
        task.in_child(lambda: write_rows(recording, path))
        task.read_all(folder)
        card.put(
            "gather_warm",
            task.in_child(lambda: task.windows_per_s(gather(path), warm_s=3.0)),
            "five frames per window, no scalars, no draw of valid starts",
        )
        stacks = task.in_child(lambda: task.windows_per_s(gather_stacks(path), warm_s=3.0))
        card.put("gather_warm.as obs and next_obs, eight frames", stacks)
        reads: dict[str, float] = {}
        for depth in DEPTHS:
            task.drop_caches(folder)
            trials = [task.in_child(lambda d=depth: read_randomly(path, d)) for _ in range(3)]
            reads[f"{depth} at a time"] = sorted(trials)[1]
        name = max(reads, key=lambda way: reads[way])
        card.put("disk_cold", reads[name], f"O_DIRECT, {READ} B each, {name}")
        for way, rate in reads.items():
            card.put(f"disk_cold.{way}", rate)
    card.show()


if __name__ == "__main__":
    main()
