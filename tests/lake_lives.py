"""Lives of a Lake's writer, each in a process that is there to be killed.

Run as a program it is a zygote: it imports everything once, and forks a life per line it reads.
A life says "W steps env" before it appends, "C" once its commit has returned, "O crc" when it has
opened; the zygote says "P pid" and "D status". Nothing in a Lake runs JAX, so forking is safe.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from pathlib import Path

STREAMS = 512


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


def zygote() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import lake_world  # noqa: F401  everything a life needs

    say("ready")
    for line in sys.stdin:
        seed, path = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if child == 0:
            try:
                live(Path(path), int(seed))
            except BaseException as error:
                say("E", repr(error).replace("\n", " "))
            finally:
                os._exit(1)
        say("P", child)
        _, status = os.waitpid(child, 0)
        say("D", status)


if __name__ == "__main__":
    zygote()
