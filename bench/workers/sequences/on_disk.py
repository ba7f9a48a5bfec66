"""Sequences from disk, warm and cold: what the workers of a Lake and of a memmap share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..lake import task as disk
from ..stopwatch import Card, cpu_us
from . import task

COLD_BATCHES = 4


def measure(card: Card, key: str, store: Any, recording: Path, folder: Path, note: str) -> None:
    """`KEY_warm` by CPU time and `KEY_cold` by wall time, in rows per second, and `KEY_bytes`."""
    names = [f"{key}_{part}" for part in ("warm", "cold", "bytes")]
    with card.section(*names), disk.empty_folder(folder):
        disk.in_child(partial(disk.timed_append, store, recording, folder, disk.work.BLOCK))
        rows = disk.work.TIME * disk.work.STREAMS
        card.put(f"{key}_bytes", disk.on_disk(folder) / rows, note)
        disk.read_all(folder)
        card.put(f"{key}_warm", disk.in_child(lambda: _warm(store.sampler(folder))), note)
        cold: list[float] = []
        for _ in range(disk.COLD_TRIALS):
            disk.drop_caches(folder)
            cold.append(disk.in_child(lambda: _cold(store.sampler(folder))))
        card.put(f"{key}_cold", statistics.median(cold), note)


def _warm(sample: Callable[[], Any]) -> float:
    """Rows per second of CPU time, after every page was touched once."""
    end = time.process_time() + 3.0
    while time.process_time() < end:
        sample()
    us = cpu_us(sample, budget_s=disk.BUDGET_S, warm=1)
    return task.BATCH * task.LENGTH / us * 1e6


def _cold(sample: Callable[[], Any]) -> float:
    """Rows per second of the first batches after opening."""
    begin = time.perf_counter()
    for _ in range(COLD_BATCHES):
        sample()
    return COLD_BATCHES * task.BATCH * task.LENGTH / (time.perf_counter() - begin)
