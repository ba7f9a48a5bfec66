"""The work: one process writes 64 transitions at a time, another samples batches of 256.

Every row describes itself: its observation, action and reward hold its number, its next observation
the number of the row that follows. A row whose fields disagree is torn; one of zeros was never
written. Each library is audited first, from empty, with every sample checked, and timed after that.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from ..stopwatch import Card

ENVS, CAPACITY, BATCH = 64, 2**18, 256
OBS, ACTION = 28, 8  # float32 values; with next_obs, reward and done a transition takes 264 B
BLOCKS = 1024  # pushes prepared beforehand and sent in turn: the writer's time is the library's
IDS = BLOCKS * ENVS
SECONDS = float(os.environ.get("BENCH_SECONDS", "6"))
AUDIT_S = float(os.environ.get("BENCH_AUDIT_S", "6"))
LIMIT_S = 120.0
SPAWN = get_context("spawn")
WINDOW_S = 0.5
FIELDS = (
    "written",
    "sampled",
    "median_written",
    "median_sampled",
    "writer_us",
    "reader_us",
    "checked",
    "torn",
    "blank",
)


def unpin() -> None:
    """Allow this process every core again: two processes must be able to run side by side."""
    cores = os.environ.get("BENCH_CORES", "")
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")} if cores else range(1024))


def ids(block: int) -> np.ndarray:
    """float32[ENVS]: the numbers of the rows of a push; none is 0."""
    return np.arange(ENVS, dtype=np.float32) + (block % BLOCKS * ENVS + 1)


def follower(key: np.ndarray) -> np.ndarray:
    """The number of the row that comes after the row `key` in the same env."""
    return (key - 1 + ENVS) % IDS + 1


def wide(key: np.ndarray, width: int) -> np.ndarray:
    """float32[n, width] filled with each row's number."""
    return np.repeat(key[:, None], width, axis=1)


class Audit:
    """Counts rows that are not whole."""

    def __init__(self) -> None:
        self.checked = self.torn = self.blank = 0

    def judge(self, reward: np.ndarray, next_obs: np.ndarray, *same: np.ndarray) -> None:
        """reward [n], next_obs [n, width]; every other array [n, width] repeats the reward."""
        key = np.asarray(reward).reshape(-1)
        good = (next_obs == follower(key)[:, None]).all(1) & (key > 0)
        blank = (key == 0) & (next_obs == 0).all(1)
        for value in same:
            good &= (value == key[:, None]).all(1)
            blank &= (value == 0).all(1)
        self.checked += len(key)
        self.blank += int(blank.sum())
        self.torn += int((~good & ~blank).sum())


def drive(pipe: Any, push: Callable[[int], None]) -> None:
    """In the writer's process: push for as long as the reader asks, and say how it went."""
    number = 0
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        begin, first, cpu = time.perf_counter(), number, time.process_time()
        while time.perf_counter() < begin + seconds:
            push(number)
            number += 1
        wall = time.perf_counter() - begin
        pipe.send((number - first, wall, time.process_time() - cpu))


class Turn(NamedTuple):
    """What the reader did in one turn; `added` is None where the writer itself stores rows."""

    sampled: int
    added: int | None = None


@contextlib.contextmanager
def writer_process(target: Callable[..., None], *shared: Any) -> Iterator[Any]:
    """The writer's end of a pipe, in a spawned process that ends with the block."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(there, *shared), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(LIMIT_S) or here.recv() != "ready":
            raise RuntimeError("the writer did not start")
        yield here
        here.send(None)
        process.join(10)
    finally:
        process.kill()
        process.join()


def measure(pipe: Any, seconds: float, turn: Callable[[], Turn]) -> dict[str, float]:
    """Rows per second of both processes side by side, and CPU µs per 64 rows of each."""
    pipe.send(seconds)
    sampled = added = 0
    counted = False
    begin, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() < begin + seconds:
        done = turn()
        sampled += done.sampled
        if done.added is not None:
            added, counted = added + done.added, True
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    while not pipe.poll():  # the writer may wait for room until it has sent its last push
        turn()
    pushes, writer_wall, writer_cpu = pipe.recv()
    return {
        "written": added / wall if counted else pushes * ENVS / writer_wall,
        "sampled": sampled / wall,
        "writer_us": writer_cpu / max(pushes, 1) * 1e6,
        "reader_us": cpu / max(sampled, 1) * ENVS * 1e6,
    }


def compare(
    card: Card,
    key: str,
    target: Callable[..., None],
    shared: tuple[Any, ...],
    turn: Callable[[Audit | None], Turn],
    note: str = "",
) -> None:
    """Audit one library, then time it: rows `key_written`, `key_sampled`, ... on the card."""
    audit = Audit()
    with card.section(*(f"{key}_{field}" for field in FIELDS)):
        with writer_process(target, *shared) as pipe:
            measure(pipe, AUDIT_S, lambda: turn(audit))
            windows = [
                measure(pipe, WINDOW_S, lambda: turn(None)) for _ in range(int(SECONDS / WINDOW_S))
            ]
        # Both processes need a core; the window in which they had one says what they can do.
        figures = max(windows, key=lambda window: window["written"] + window["sampled"])
        for rate in ("written", "sampled"):
            figures[f"median_{rate}"] = statistics.median(window[rate] for window in windows)
        figures |= {"checked": audit.checked, "torn": audit.torn, "blank": audit.blank}
        for field in FIELDS:
            card.put(f"{key}_{field}", figures[field], note)
    for field, row in card.rows.items():
        if row["value"] is None:
            print(f"{field}: {row['reason']}", file=sys.stderr)
