"""The experiments of docs/seed-analysis.md: `python docs/seed_experiments.py`, some seconds.

Each prints one line with what it found. Only the last uses millpond.
"""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import jax.numpy as jnp
import numpy as np


class Ring:
    """As in the notes: the rows an array over shared memory, the count a shared Value."""

    def __init__(self, memory: SharedMemory, size: Any) -> None:
        self.rows: np.ndarray = np.ndarray(100, np.float64, buffer=memory.buf)
        self.rows[:] = 0.0
        self.size = size

    def add(self, value: float) -> None:
        self.rows[self.size.value] = value
        self.size.value += 1


def add_ones(ring: Ring) -> None:
    """The child of `by_value`."""
    for _ in range(100):
        ring.add(1.0)


def by_value() -> str:
    """A ring over shared memory, given to a spawned process as an argument."""
    memory, spawn = SharedMemory(create=True, size=8 * 100), get_context("spawn")
    try:
        ring = Ring(memory, spawn.Value("q", 0))
        child = spawn.Process(target=add_ones, args=(ring,))
        child.start()
        child.join()
        size, total = ring.size.value, ring.rows.sum()
        del ring
    finally:
        memory.close()
        memory.unlink()
    return f"a child added 100 ones; the parent sees size {size} and rows of sum {total:g}"


def wrap_around() -> str:
    """2048 rows scattered at position 499,000 of 500,000 by `at[indices].set`."""
    capacity, ptr, new = 500_000, 499_000, 2048
    values = np.arange(1, new + 1, dtype=np.float32)
    wanted = np.zeros(capacity, np.float32)
    for i, value in enumerate(values):
        wanted[(ptr + i) % capacity] = value
    got = jnp.zeros(capacity).at[(jnp.arange(new) + ptr) % capacity].set(values)
    differ = int((got != wanted).sum())
    return f"a wrap-around by scatter differs from a plain loop in {differ} rows"


def one_row_too_many_axes() -> str:
    """`states[i] = obs` with obs of shape (1, F)."""
    states, obs = np.zeros((5, 3)), np.array([[1.0, 2.0, 3.0]])
    states[2] = obs
    return f"(1, F) written into (F,) by NumPy stores {states[2].tolist()}: the right numbers"


def second_soft_update() -> str:
    """The target network moved twice per step by tau."""
    tau = 0.005
    return f"two soft updates by {tau} are one by {1 - (1 - tau) ** 2:.6f}"


def the_claim_of_2048() -> str:
    """The note's own figures, per row."""
    own, shared = 450e6 / (2048 * 500), 220e6 / 500_000
    return f"per env {own:.0f} B per row, shared {shared:.0f} B per row: {own / shared:.2f} times"


def in_millpond() -> str:
    """The same mistake with a Channel: its memory travels by descriptor, not by value."""
    from millpond.transport.memory import Memory

    memory, spawn = Memory.create(1 << 16), get_context("spawn")
    child = spawn.Process(target=fill_memory, args=(memory,))
    child.start()
    child.join()
    seen = sum(memory.words()[place] for place in PLACES)
    return f"a child wrote {len(PLACES)} ones through a Memory; the parent sees {seen}"


PLACES = range(1024, 1124)  # words behind the page of the canaries


def fill_memory(memory: Any) -> None:
    """The child of `in_millpond`."""
    words = memory.words()
    for place in PLACES:
        words[place] = 1


EXPERIMENTS = (
    by_value,
    wrap_around,
    one_row_too_many_axes,
    second_soft_update,
    the_claim_of_2048,
    in_millpond,
)

if __name__ == "__main__":
    for experiment in EXPERIMENTS:
        print(f"{experiment.__name__}: {experiment()}")
