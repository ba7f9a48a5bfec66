"""A DataLoader over a compressed Lake against one over TorchRL's memory map: CPU per window.

Both give shuffled batches of windows of five frames of recorded Gravitar (a stack of four, and the
next one), with as many workers; ours are two stacks in the memory of the same five frames. What
counts is the CPU time of the process and its workers.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

BENCH = Path(__file__).parent
STEPS, BATCH, BATCHES = 64, 256, 96
os.environ["BENCH_STEPS"] = str(STEPS)  # of 512 streams: 32,768 frames

from workers.lake import frames as work  # noqa: E402
from workers.lake import ours, torchrl  # noqa: E402

from millpond import Lake  # noqa: E402
from millpond.compat.torch import LakeBatches, LakeWindows  # noqa: E402

torch.multiprocessing.set_sharing_strategy("file_system")
warnings.filterwarnings("ignore", "This DataLoader will create")  # one core is what is measured
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


class Windows(Dataset):
    """Five consecutive rows of a TorchRL storage, a batch of numbers at a time."""

    def __init__(self, storage: Any) -> None:
        self._storage, self._reach = storage, np.arange(work.WINDOW)

    def __len__(self) -> int:
        return work.STREAMS * (work.TIME - work.WINDOW + 1)

    def __getitems__(self, numbers: list[int]) -> Any:
        begin, stream = np.divmod(np.array(numbers), work.STREAMS)
        at = torch.from_numpy(begin[:, None] + self._reach)
        return self._storage[at, torch.from_numpy(stream)[:, None].expand(at.shape)]


def over_memmap(folder: Path, workers: int) -> Iterator[Any]:
    windows = Windows(torchrl.Storage().open(folder))
    order = BatchSampler(RandomSampler(windows), BATCH, drop_last=True)
    # Each item is a list of numbers, which __getitems__ turns into one batch.
    how: dict[str, Any] = {"num_workers": workers, "collate_fn": lambda batch: batch}
    if workers:
        how["multiprocessing_context"] = "fork"
    return iter(DataLoader(windows, batch_sampler=order, **how))


def over_lake(folder: Path, workers: int) -> Iterator[Any]:
    windows = LakeWindows(Lake.open(folder / "lake"), ours.WINDOW, overlap=True)
    how: dict[str, Any] = {"num_workers": workers}
    if workers:
        how["multiprocessing_context"] = "fork"
    return iter(DataLoader(LakeBatches(windows, BATCH, seed=1), batch_size=None, **how))


def cpu_us(make: Callable[[Path, int], Iterator[Any]], folder: Path, workers: int) -> float:
    """CPU µs per window of `BATCHES` batches, in a process of its own, workers counted."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            batches = make(folder, workers)
            next(batches)
            begin = sum(os.times()[:2])
            for _ in range(BATCHES):
                next(batches)
            del batches  # which ends the workers
            mine, whole = sum(os.times()[:2]) - begin, os.times()
            # Of the workers all that they did, the first batch and their beginning among it.
            os.write(write, f"{mine + whole.children_user + whole.children_system}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return float(text) / BATCHES / BATCH * 1e6


def rows(rounds: int) -> list[dict[str, Any]]:
    """Ours and theirs in turns, with no and two workers."""
    recording, home = BENCH / "out" / "recordings-small" / "gravitar", BENCH / "out" / "loader"
    if not (recording / "frames.npy").exists():
        words = ["workers.lake.record", "gravitar", str(recording), str(STEPS)]
        subprocess.run([sys.executable, "-m", *words], cwd=BENCH, check=True, timeout=600)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    try:
        play = work.load(recording)
        for store in (ours.OurStore(raw=False), torchrl.Storage()):
            for _ in store.append(play, home, work.BLOCK):
                pass
        found: list[dict[str, Any]] = []
        for workers in (0, 2):
            pairs: list[tuple[float, float]] = []
            for turn in range(rounds):
                makes = (over_lake, over_memmap)
                order = makes if turn % 2 else makes[::-1]
                took = {make: cpu_us(make, home, workers) for make in order}
                pairs.append((took[over_lake], took[over_memmap]))
                print(f"loader, {workers} workers: {pairs[-1]}", flush=True)
            mine, theirs = (statistics.median(part) for part in zip(*pairs, strict=True))
            found.append(
                {
                    "work": f"DataLoader, {workers} workers, per window",
                    "ours": mine,
                    "theirs": theirs,
                    "ratios": [one / other for one, other in pairs],
                }
            )
        return found
    finally:
        shutil.rmtree(home, ignore_errors=True)
