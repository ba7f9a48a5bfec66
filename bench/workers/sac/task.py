"""What every SAC of `bench/sac.py` does, and how it is asked; needs the standard library alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

# Units of each of two layers, and rows of a batch: what a worker is started with.
WIDTH, BATCH = (int(os.environ.get(f"BENCH_SAC_{name}", 256)) for name in ("WIDTH", "BATCH"))
CAPACITY, FILL = 50_000, 1_000
RATE, TAU, GAMMA = 3e-4, 0.005, 0.99


def serve(play: Callable[[int], None]) -> None:
    """Play that many steps per line of stdin; print the CPU seconds of the process, all threads."""
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.process_time()
        play(int(line))
        print(time.process_time() - began, flush=True)
