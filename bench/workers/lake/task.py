"""What every worker on disk measures, and how: append, size, warm and cold windows.

Each part runs in a forked child of a process that has only imported the library: mapped files and
warm caches of one part must not help the next. Append and warm reads count CPU time on the one
core, cold reads wall time: there the disk is what is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..stopwatch import Card, cpu_us
from . import frames as work

COLD_BATCHES, COLD_TRIALS = 8, 5
APPEND_PART, APPEND_TRIALS = 4, 5  # a quarter of the recording, five times
BUDGET_S = 1.5


class Store(Protocol):
    """A library under test. `append` and `sampler` run in different processes."""

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        """Store the play, `steps` of every stream at a time; yields when the clock may start."""
        ...

    def sampler(self, folder: Path) -> Callable[[], Any]:
        """Opens the store; each call returns one batch of windows."""
        ...

    def newest(self, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Stream[n], time[n] and frame[n, 84, 84] of each window's last row, in a first batch."""
        ...


def in_child(call: Callable[[], Any]) -> Any:
    """What `call` returns in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                try:
                    answer = {"value": call()}
                except Exception as error:
                    traceback.print_exc()
                    answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
                pipe.write(json.dumps(answer))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"the process ended with status {status}")
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["value"]


def drop_caches(folder: Path) -> None:
    """Write everything under `folder` to disk and take it out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def read_all(folder: Path) -> None:
    """Bring everything under `folder` into the page cache."""
    buffer = bytearray(1 << 22)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def on_disk(folder: Path) -> int:
    """Bytes that everything under `folder` takes, all in."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@contextmanager
def empty_folder(folder: Path) -> Iterator[Path]:
    """A new folder that is gone afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def arguments() -> tuple[str, Path, Path]:
    """Game, the folder of its recording, and the folder to store it in."""
    game, recording, folder = sys.argv[1:4]
    return game, Path(recording), Path(folder)


def use_memory(path: Path, size: int) -> None:
    """Write a file of `size` bytes and delete it, so that as much memory is at hand at once.

    A virtual machine gives memory that is free for seconds back to its host, and the next use of
    such a page takes ten times as long as any other: without this, that is what append measures.
    """
    some = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(some)
    path.unlink()


def timed_append(
    store: Store, recording: Path, folder: Path, steps: int, part: int = 1
) -> tuple[float, float]:
    """Thousands of frames stored per second of CPU and of wall time; 1/part of the recording."""
    play = work.load(recording)
    play = work.Play(*(field[: work.TIME // part] for field in play))
    stages = store.append(play, folder, steps)
    next(stages)
    use_memory(folder / "unused", play.frames.nbytes)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in stages:
        pass
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return play.small.size / cpu / 1e3, play.small.size / wall / 1e3


def measure(
    card: Card,
    key: str,
    store: Any,
    recording: Path,
    folder: Path,
    note: str = "",
    more: Callable[[Card, str, Any, Path], None] | None = None,
) -> None:
    """Every row of one `Store`: `KEY_append`, `_blocks`, `_bytes`, `_warm`, `_cold`, and `more`."""
    rows = [f"{key}_{part}" for part in ("append", "blocks", "bytes", "warm", "cold")]
    number = work.TIME * work.STREAMS
    with card.section(*rows), empty_folder(folder):
        for steps, part in ((1, "append"), (work.BLOCK, "blocks")):
            append_rows(card, f"{key}_{part}", store, recording, folder, steps, note)
        # What is read was appended in blocks, all of it: several rows of a stream side by side.
        home = folder / "whole"
        home.mkdir()
        in_child(partial(timed_append, store, recording, home, work.BLOCK))
        in_child(lambda: check(store, recording, home))
        card.put(f"{key}_bytes", on_disk(home) / number, note)
        reads(card, key, store, home, note)
        if more is not None:
            more(card, key, store, home)


def append_rows(
    card: Card, row: str, store: Any, recording: Path, folder: Path, steps: int, note: str
) -> None:
    """One row of appending `steps` of every stream at a time, and its wall time.

    The fastest trial counts, for every library: `use_memory` does not always help, and then a
    trial takes up to five times as long, whoever appends. Nothing makes one faster than it is.
    """
    rates: list[list[float]] = []
    for _ in range(APPEND_TRIALS):
        with empty_folder(folder / "append") as home:
            os.sync()  # what was written before must not be paid for here
            rates.append(
                in_child(partial(timed_append, store, recording, home, steps, APPEND_PART))
            )
    cpu, wall = (max(rate) for rate in zip(*rates, strict=True))
    card.put(row, cpu, note)
    card.put(f"{row}.wall time", wall)


def check(store: Store, recording: Path, folder: Path) -> None:
    """Raise unless a first batch holds the frames that were recorded there."""
    stream, when, found = store.newest(store.sampler(folder)())
    if not np.array_equal(found, np.load(recording / "frames.npy", mmap_mode="r")[when, stream]):
        raise RuntimeError("what is read is not what was stored")


def reads(card: Card, key: str, store: Any, home: Path, note: str) -> None:
    """`KEY_warm` and `KEY_cold` of a store that lies in `home`."""
    read_all(home)
    rate = in_child(lambda: windows_per_s(store.sampler(home), warm_s=3.0))
    card.put(f"{key}_warm", rate, note)
    trials: list[dict[str, float]] = []
    for _ in range(COLD_TRIALS):
        drop_caches(home)
        trials.append(in_child(lambda: cold(store.sampler(home))))

    def median(name: str) -> float:
        return statistics.median(trial[name] for trial in trials)

    windows = work.BATCH * COLD_BATCHES
    card.put(f"{key}_cold", windows / median("wall"), note)
    later = (windows - work.BATCH) / (median("wall") - median("first"))
    card.put(f"{key}_cold.after the first batch", later)
    card.put(f"{key}_cold.per second of CPU", windows / median("cpu"))


def windows_per_s(sample: Callable[[], Any], warm_s: float) -> float:
    """Warm windows per second of CPU time; first every page is to be touched once."""
    end = time.process_time() + warm_s
    for _ in range(300):
        sample()
        if time.process_time() > end:
            break
    return work.BATCH / cpu_us(sample, budget_s=BUDGET_S, warm=1) * 1e6


def cold(sample: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the first batches after opening, and of the first of them alone."""
    begin, cpu = time.perf_counter(), time.process_time()
    sample()
    first = time.perf_counter() - begin
    for _ in range(COLD_BATCHES - 1):
        sample()
    return {
        "wall": time.perf_counter() - begin,
        "first": first,
        "cpu": time.process_time() - cpu,
    }
