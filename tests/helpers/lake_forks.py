"""Lakes in processes that fork, as a program: `lake_forks.py SCENE FOLDER`, silent if all is well.

Apart from the tests' own process, whose JAX must not be forked. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all, check_samples, snapshot

from millpond import LakeFailed, LakeRefused, Window
from millpond.lake import Lake, Writer, verify_lake

PATIENCE = 20.0
FORK = multiprocessing.get_context("fork")
ACTORS = 8


def made(path: Path) -> Lake:
    """A Lake of a sealed and an open segment."""
    lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", 16) as writer:
        append(writer, SLOTS // 16)
        writer.commit()
        append(writer, 3)
    return lake


def use(lake: Lake, threads: int = 2) -> None:
    """Read in every way that shares work among threads, and compare."""
    check_samples(lake, np.random.default_rng(0), 256, Window(stack=2, n_step=3))
    lake.sample(np.random.default_rng(0), 256, threads=threads)
    rows = lake.gather(np.arange(16), np.zeros(16, int), SLOTS // 16, threads=threads)
    born = np.broadcast_to(np.arange(SLOTS // 16), (16, SLOTS // 16))
    assert np.array_equal(rows.extras["born"], born)


def in_a_child(act: Callable[[], None]) -> None:
    """Do it in a forked process, which must end well and in time."""
    child = FORK.Process(target=act)
    child.start()
    child.join(PATIENCE)
    hangs = child.is_alive()
    child.kill()
    child.join(PATIENCE)
    assert not hangs, "a forked child hangs"
    assert child.exitcode == 0


@contextlib.contextmanager
def meanwhile(act: Callable[[], None]):
    """Another thread that does it over and over."""
    stop, began = threading.Event(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            act()
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(PATIENCE)
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)


def after_gather(path: Path) -> None:
    lake = made(path)
    use(lake)
    in_a_child(lambda: use(lake))
    use(lake)


def beside_threads(path: Path) -> None:
    lake = made(path)
    use(lake)
    rng = np.random.default_rng(1)
    acts = (
        lambda: lake.sample(rng, 2048, Window(stack=4)),
        lambda: lake.refresh(),
        lambda: lake.gather(np.arange(16), np.zeros(16, int), 200, threads=2),
    )
    for act in acts:
        with meanwhile(act):
            for _ in range(4):
                in_a_child(lambda: use(lake))
                in_a_child(lake.refresh)
    use(lake)


def a_call_that_does_not_end(path: Path) -> None:
    """The child opens the Lake again, whatever a thread of its parent was changing."""
    import millpond.lake.lake

    millpond.lake.lake._STILL = 0.1
    lake = made(path)
    use(lake)
    busy, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lake._using:
            busy.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert busy.wait(PATIENCE)
    in_a_child(lambda: use(lake))
    over.set()
    thread.join(PATIENCE)
    use(lake)


def a_killed_writer(path: Path) -> None:
    """Its lock is free though a process that it forked lives on."""
    made(path)
    ready, say = os.pipe()
    hold, let_go = os.pipe()

    def write() -> None:
        os.close(let_go)
        writer = Lake.open(path, "a").writer("g", 16)
        append(writer, 1)
        writer.commit()
        if os.fork() == 0:
            os.write(say, b"x")
            os.read(hold, 1)  # until the test is over
            os._exit(0)
        os.read(hold, 1)

    pid = os.fork()
    if pid == 0:
        write()
        os._exit(1)
    assert os.read(ready, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with Lake.open(path, "a").writer("g", 16) as writer:
        append(writer, 1)
    os.close(let_go)
    assert (check_all(Lake.open(path)).stop == SLOTS // 16 + 5).all()


def refused_everything(writer: Writer) -> None:
    for call in (lambda: append(writer, 1), writer.commit, writer.cut):
        with pytest.raises(LakeFailed, match="inherited"):
            call()


def a_writer_in_a_child(path: Path, full: bool = False) -> None:
    """A forked child can neither use, commit nor unlock what its parent has open."""
    folder = path / "groups" / "g"
    with Lake.create(path, SPEC, 10**6, segment_rows=SLOTS).writer("g", 16) as writer:
        append(writer, SLOTS // 16 + 3 if full else 3)
        writer.commit()
        append(writer, 1)  # not committed: the parent's, and nobody else's
        before = None if full else snapshot(folder)
        in_a_child(lambda: refused_everything(writer))
        in_a_child(writer.close)
        in_a_child(lambda: writer.__exit__(None, None, None))
        assert before is None or snapshot(folder) == before
        append(writer, 1)
        writer.commit()
        wanted = writer.next_row
    assert (check_all(Lake.open(path)).stop == wanted).all()
    assert verify_lake(path).clean


def a_writer_whose_sealer_works_in_a_child(path: Path) -> None:
    a_writer_in_a_child(path, full=True)


def actors_at_once(path: Path) -> None:
    """Each of them creates the Lake or opens it, and makes a group of its own."""
    for turn in range(3):
        folder = path / str(turn) / "deep" / "lake"
        go, start = os.pipe()
        wins, win = os.pipe()

        def act(number: int, folder: Path, ends: tuple[int, int, int]) -> None:
            go, start, win = ends
            os.close(start)
            os.read(go, 1)
            with contextlib.suppress(LakeRefused):
                Lake.create(folder, SPEC, 10**6 + number, groups=ACTORS, segment_rows=SLOTS)
                os.write(win, bytes([number]))
            with Lake.open(folder, "a").writer(f"g{number}", 2) as writer:
                base = next(s.number for s in Lake.open(folder).streams if s.group == f"g{number}")
                append(writer, 5, base=base)

        processes = [
            FORK.Process(target=act, args=(i, folder, (go, start, win))) for i in range(ACTORS)
        ]
        for process in processes:
            process.start()
        os.close(start)
        for process in processes:
            process.join(PATIENCE)
            process.kill()
        assert [process.exitcode for process in processes] == [0] * ACTORS
        os.close(win)
        winners = os.read(wins, 100)
        assert len(winners) == 1, winners
        lake = Lake.open(folder)
        assert lake.info.capacity.rows == 10**6 + winners[0]
        assert check_all(lake).rows == ACTORS * 2 * 5


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
