"""Streams of a Lake that advance episode by episode, or all together: rows per second and bytes.

    python bench/lake_uneven.py                          # 256 and 1,024 streams, and lockstep
    python bench/lake_uneven.py --streams 256 --episode 17 --rows 8000

With PYTHONPATH set to another version's `src` it measures that one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from millpond import Field, Lake, LakeFailed, Rows, Spec, Window

SLOTS = 4096
SPEC = Spec(obs=Field("float32", (4,)), action=Field("int32"))
BATCH, BATCHES = 512, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--episode", type=int, nargs="+", default=[17, 70], help="rows, on average")
    parser.add_argument("--rows", type=int, default=72_000)
    args = parser.parse_args()
    for streams, episode in zip(args.streams, args.episode, strict=True):
        measure(f"{streams} streams, episodes of {episode}", streams, episode, args.rows)
    measure("8 streams in lockstep", 8, 0, 10 * args.rows)


def measure(what: str, streams: int, episode: int, rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.create(Path(folder) / "lake", SPEC, 10**7, segment_rows=SLOTS)
        begin = time.perf_counter()
        with lake.writer("g", streams) as writer:
            parts = lockstep(streams, rows) if episode == 0 else episodes(streams, episode, rows)
            for env, part in parts:
                writer.append(part, env=env)
                writer.commit()
            written = int(writer.next_row.sum())
        seconds = time.perf_counter() - begin
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        number = sum(path.suffix in (".seg", ".open") for path in files)
        size = sum(os.stat(path).st_blocks * 512 for path in files)
        print(
            f"{what}: {written} rows, {written / seconds:,.0f} rows/s, {number} segments, "
            f"{written / number:,.0f} rows per segment, {size:,} bytes on disk for "
            f"{written * 25:,} raw; {sampled(Path(folder) / 'lake')}",
            flush=True,
        )


def sampled(path: Path) -> str:
    """How long a batch takes, once all is warm."""
    try:
        lake, rng, window = Lake.open(path), np.random.default_rng(0), Window(stack=4, n_step=3)
        out = lake.sample(rng, BATCH, window)
        times: list[float] = []
        for _ in range(BATCHES):
            begin = time.perf_counter()
            lake.sample(rng, BATCH, window, out=out)
            times.append(time.perf_counter() - begin)
        return f"{BATCH} windows in {1e3 * float(np.median(times)):.2f} ms"
    except LakeFailed as error:
        return f"not readable: {error}"


def episodes(streams: int, length: int, rows: int):
    """One stream after the other gets an episode and its border row."""
    rng = np.random.default_rng(0)
    while rows > 0:
        n = int(rng.integers(max(2, length // 2), length * 3 // 2))
        flags = np.zeros(n, np.uint8)
        flags[0], flags[-1] = 1, 2
        ended = np.arange(n) == n - 2
        yield int(rng.integers(streams)), made(rng, (n,), flags, ended)
        rows -= n


def lockstep(streams: int, rows: int):
    """Sixty-four rows of every stream at a time."""
    rng = np.random.default_rng(0)
    lead = (64, streams)
    for turn in range(rows // (64 * streams)):
        flags = np.zeros(lead, np.uint8)
        flags[0] = turn == 0
        yield None, made(rng, lead, flags, np.zeros(lead, bool))


def made(
    rng: np.random.Generator, lead: tuple[int, ...], flags: np.ndarray, ended: np.ndarray
) -> Rows:
    obs = rng.random((*lead, 4), np.float32)
    reward = np.where(flags & 2, 0, 1).astype(np.float32)
    return Rows(obs, np.zeros(lead, np.int32), reward, ended, np.zeros(lead, bool), flags, {})


if __name__ == "__main__":
    main()
