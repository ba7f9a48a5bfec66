"""Lives of a Lake's writers and readers, each in a process that may be killed.

Run as a program it is a zygote: it imports everything once, and forks a life per line it reads
("role number path"). A life says "W steps env" before it appends, "C" once its commit has returned,
"O crc" when it has opened, "R rows" when it has read enough, and first of all "P pid"; the zygote
says "D status". Nothing in a Lake runs JAX, so forking is safe.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
import traceback
import zlib
from contextlib import suppress
from pathlib import Path

STREAMS = 512
PATIENCE = 60.0


class Zygote:
    """A process that forks writers, and a pipe on which all of them report."""

    def __init__(self) -> None:
        program = Path(__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._rest = b""
        self._life: int | None = None
        assert self.line(PATIENCE) == ["ready"]

    def line(self, seconds: float) -> list[str] | None:
        """The next report, or None when none comes in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                return None
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the zygote is gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        if line.startswith(b"D "):
            self._life = None
        return line.decode().split(" ")

    def begin(self, role: str, number: int, path: Path) -> int:
        """Start a life; its process id."""
        self.process.stdin.write(f"{role} {number} {path}\n".encode())
        word, pid = self.line(PATIENCE)
        assert word == "P"
        self._life = int(pid)
        return self._life

    def end(self) -> None:
        """End it, and the life that may still be there after a failure."""
        if self._life is not None:
            with suppress(ProcessLookupError):
                os.kill(self._life, signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self._selector.close()


def say(*words: object) -> None:
    """One line, in one write, so that it is there whole or not at all."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def live(path: Path, seed: int) -> None:
    """Append, commit, seal and evict until killed."""
    from lake_world import append

    from millpond.lake import Lake

    chance = random.Random(seed)
    writer = Lake.open(path, "a").writer("g", STREAMS, continues=chance.random() < 0.5)
    say("O", zlib.crc32(writer.next_row.tobytes()))
    while True:
        kind = chance.random()
        if kind < 0.2:
            env, steps = chance.randrange(STREAMS), 1 + chance.randrange(3)
        else:
            env, steps = None, 17 if kind > 0.95 else 1 + chance.randrange(3)
        say("W", steps, -1 if env is None else env)
        append(writer, steps, env)
        if chance.random() < 0.8:
            writer.commit(sync=chance.random() < 0.1)
            say("C")


def pour(path: Path, seed: int) -> None:
    """Commit four rows of every stream at a time, until killed."""
    from lake_world import append

    from millpond.lake import Lake

    writer = Lake.open(path, "a").writer("g", STREAMS)
    while True:
        append(writer, 1)
        append(writer, 3)
        writer.commit()


def peruse(path: Path, rows: int) -> None:
    """Sample and refresh until so many rows were read, each checked."""
    import numpy as np
    from lake_world import check_all, check_samples

    from millpond import Window
    from millpond.lake import Lake

    lake, rng, window = Lake.open(path), np.random.default_rng(rows), Window(stack=2, n_step=2)
    seen = turns = last = 0
    while seen < rows:
        lake.refresh()
        index = lake.reader.index
        ends = np.zeros(index.streams, np.int64)
        ends[index.stream] = index.first + index.count
        assert (ends % 4 == 0).all(), "rows that are not committed"
        assert (ends == ends[:1]).all(), "a part of a commit"
        if not ends.any():
            continue
        assert ends[0] >= last, "rows that were there are not"
        last = int(ends[0])
        for _ in range(3):
            check_samples(lake, rng, 512, window)
            seen += 512 * 4
        if turns % 20 == 0:
            seen += check_all(lake).rows
        turns += 1
    say("R", seen, last)


ROLES = {"live": live, "pour": pour, "peruse": peruse}


def zygote() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import lake_world  # noqa: F401  everything a life needs

    say("ready")
    for line in sys.stdin:
        role, number, path = line.rstrip("\n").split(" ", 2)
        child = os.fork()
        if child == 0:
            say("P", os.getpid())
            try:
                ROLES[role](Path(path), int(number))
            except BaseException as error:
                say("E", f"{error!r} {traceback.format_exc()}".replace("\n", " "))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        say("D", status)


if __name__ == "__main__":
    zygote()
