"""Files that become shorter under their reader, as a program: `lake_truncated.py FOLDER`.

Silent if every call raises LakeDamaged, if the process lives, and if foreign faults still kill.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all, check_samples, copy_tree

from millpond import LakeDamaged, MillpondError, Window
from millpond.lake import Lake

STREAMS = np.arange(16)


def calls(lake: Lake):
    """Every way to read rows, once all were read and found good."""
    start = STREAMS * 0
    return (
        lambda: lake.sample(np.random.default_rng(0), 512, Window(stack=2)),
        lambda: lake.sample(np.random.default_rng(0), 512, threads=2),
        lambda: lake.read(3, 0, 258),
        lambda: lake.take(STREAMS, start + 255),
        lambda: lake.gather(STREAMS, start, 258),
        lambda: lake.gather(STREAMS, start, 258, threads=2),
        lambda: list(lake.iterate(256)),
    )


def refused(act) -> None:
    with pytest.raises(LakeDamaged, match="truncated"):
        act()


def main(folder: Path) -> None:
    original = folder / "original"
    with Lake.create(original, SPEC, 10**6, segment_rows=SLOTS).writer("g", 16) as writer:
        append(writer, SLOTS // 16)
        writer.commit()
        append(writer, 3)
    for name in (f"{0:016d}.seg", f"{1:016d}.open"):
        for number in range(7):
            path = folder / f"{name}-{number}"
            copy_tree(original, path)
            lake = Lake.open(path)
            check_all(lake)
            for call in calls(lake):
                call()
            file = path / "groups" / "g" / name
            whole = file.read_bytes()
            os.truncate(file, 4096)
            refused(calls(lake)[number])
            refused(calls(lake)[0])  # and whatever follows
            with pytest.raises(MillpondError):
                lake.refresh()
            file.write_bytes(whole)
            lake.refresh()
            check_all(lake)
            check_samples(lake, np.random.default_rng(0), 512, Window(stack=2, n_step=3))
    foreign_faults_kill()


def foreign_faults_kill() -> None:
    pid = os.fork()
    if pid == 0:
        with tempfile.TemporaryFile() as file:
            file.truncate(8192)
            mapped = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
            mapped[5000]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS


if __name__ == "__main__":
    main(Path(sys.argv[1]))
