"""millpond's `Lake`: raw segments, and compressed ones as it makes them by itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from millpond import Batch, Field, Flag, Lake, Rows, Spec, Window
from millpond.lake import codec

from ..stopwatch import Card
from . import frames as work
from . import task

SPEC = Spec(obs=Field("uint8", work.FRAME), action=Field("int32", (), 0, 17))
WINDOW = Window(stack=work.STACK)
LONG_S = 6.0  # of sampling, during which memory must not grow


class OurStore:
    """A Lake of many small segments; with `raw` its frames are stored as they are."""

    def __init__(self, raw: bool) -> None:
        self.raw = raw

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        if self.raw:
            codec.WORTH = math.inf  # what is worth compressing: nothing
        pieces: list[Rows] = []
        for block in play.blocks(steps):
            names = ("action", "reward", "terminated", "truncated")
            small = [np.ascontiguousarray(block.small[name]) for name in names]
            flags = block.small["first"] * np.uint8(Flag.FIRST)
            flags += block.small["border"] * np.uint8(Flag.BORDER)
            rows = Rows(block.frames, *small, flags)
            pieces.append(rows if steps > 1 else Rows(*(field[0] for field in rows[:6])))
        lake = Lake.create(
            folder / "lake",
            SPEC,
            capacity=2 * work.TIME * work.STREAMS,
            segment_rows=work.SEGMENT_ROWS,
        )
        yield
        with lake.writer("bench", streams=work.STREAMS) as writer:
            for i, rows in enumerate(pieces, 1):
                writer.append(rows)
                if i * steps % work.BLOCK == 0:
                    writer.commit()

    def sampler(self, folder: Path) -> Callable[[], Batch]:
        lake = Lake.open(folder / "lake")
        stats = lake.stats()
        assert stats.sealed == stats.segments == work.TIME * work.STREAMS // work.SEGMENT_ROWS
        rng = np.random.default_rng(0)
        batch = None

        def sample() -> Batch:
            nonlocal batch
            batch = lake.sample(rng, work.BATCH, WINDOW, out=batch)
            return batch

        return sample

    def newest(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return batch.draw.stream, batch.draw.row + 1, batch.next_obs[:, -1]


def memory() -> dict[str, float]:
    """MB of this process in memory: its own (RssAnon), and with mapped files (VmRSS)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = dict(line.split(":", 1) for line in lines)
    return {key: int(table[key].split()[0]) / 1e3 for key in ("RssAnon", "VmRSS")}


def resident(store: OurStore, folder: Path) -> list[dict[str, float]]:
    """Memory before the Lake is opened, after a first batch, and twice during long sampling."""
    found = [memory()]
    sample = store.sampler(folder)
    sample()
    found.append(memory())
    for _ in range(2):
        end = time.process_time() + LONG_S / 2
        while time.process_time() < end:
            sample()
        found.append(memory())
    return found


def main() -> None:
    game, recording, folder = task.arguments()
    card = Card("millpond", "zstandard", "xxhash", "numpy")
    if game == "gravitar":
        task.measure(card, "raw", OurStore(raw=True), recording, folder, more=memory_rows)
    task.measure(card, "packed", OurStore(raw=False), recording, folder, more=memory_rows)
    card.show()


def memory_rows(card: Card, key: str, store: OurStore, folder: Path) -> None:
    """Rows about memory, in MB."""
    start, first, middle, end = task.in_child(lambda: resident(store, folder))
    card.put(f"{key}_memory", end["RssAnon"])
    card.put(f"{key}_memory_first", first["RssAnon"])
    for name, value in (
        ("at start", start),
        ("first batch", first),
        ("half", middle),
        ("end", end),
    ):
        for kind in value:
            card.put(f"{key}_memory.{kind} {name}, MB", value[kind])


if __name__ == "__main__":
    main()
