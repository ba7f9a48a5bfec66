"""How a sample's time grows with the rows of a Lake: small rows, where nothing hides it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from millpond import Field, Lake, Rows, Spec, Window

from ..stopwatch import Card, cpu_us
from . import frames as work
from . import task

FEW, MANY = 2**20, int(os.environ.get("BENCH_MANY_ROWS", str(100 * 2**20)))
SPEC = Spec(obs=Field("float32", (2,)), action=Field("int32", (), 0, 17))
STEPS = 2048  # per append
EPISODE = 1000


def build(folder: Path, rows: int) -> float:
    """A Lake of `rows` rows in segments of its own choice; wall seconds."""
    lake = Lake.create(folder, SPEC, capacity=rows + rows // 2)
    shape = (STEPS, work.STREAMS)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((*shape, 2), np.float32)
    action = rng.integers(0, 18, shape, np.int32)
    reward = rng.standard_normal(shape, np.float32)
    never = np.zeros(shape, bool)
    begin = time.perf_counter()
    with lake.writer("bench", streams=work.STREAMS) as writer:
        for block in range(rows // reward.size):
            step = (np.arange(STEPS) + block * STEPS) % EPISODE
            ended = np.broadcast_to((step == EPISODE - 2)[:, None], shape)
            flags = ((step == 0) + 2 * (step == EPISODE - 1)).astype(np.uint8)
            flags = np.broadcast_to(flags[:, None], shape)
            writer.append(Rows(obs, action, reward, ended, never, flags))
            writer.commit()
    return time.perf_counter() - begin


def sample_us(folder: Path) -> float:
    """CPU µs of one warm sample."""
    lake = Lake.open(folder)
    rng = np.random.default_rng(0)
    window = Window(stack=work.STACK)
    batch = lake.sample(rng, work.BATCH, window)
    return cpu_us(
        lambda: lake.sample(rng, work.BATCH, window, out=batch), warm=2000, budget_s=task.BUDGET_S
    )


def main() -> None:
    _, _, folder = task.arguments()
    card = Card("millpond", "numpy")
    with card.section("few_sample", "many_sample"), task.empty_folder(folder):
        for key, rows in (("few", FEW), ("many", MANY)):
            home = folder / key
            seconds = task.in_child(lambda h=home, r=rows: build(h, r))
            card.put(f"{key}_build.seconds", seconds)
            task.read_all(home)
        # In turns: both on the same state of the machine.
        found = [
            [task.in_child(lambda k=key: sample_us(folder / k)) for key in ("few", "many")]
            for _ in range(3)
        ]
        few, many = (sorted(times)[1] for times in zip(*found, strict=True))
        card.put("few_sample", few, f"{FEW:,} rows of 17 B")
        card.put("many_sample", many, f"{MANY:,} rows of 17 B")
    card.show()


if __name__ == "__main__":
    main()
