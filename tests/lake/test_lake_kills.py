"""SIGKILL at random moments: what was acknowledged is there, and nothing is invented."""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from lake_lives import PATIENCE, STREAMS, Zygote
from lake_world import SLOTS, SPEC, Held, check_all

from millpond.lake import Lake

CAPACITY = 6 * SLOTS


class Promised:
    """What the writers acknowledged, and what may therefore be in the Lake."""

    def __init__(self) -> None:
        self.committed = np.zeros(STREAMS, np.int64)
        self.appended = np.zeros(STREAMS, np.int64)
        self.first = np.zeros(STREAMS, np.int64)
        self.lives = self.opened = self.commits = self.lines = 0

    def note(self, line: list[str]) -> None:
        self.lines += 1
        if line[0] == "O":
            self.opened += 1
            # Rows that an earlier life left uncommitted have been thrown away, no other row.
            assert int(line[1]) == zlib.crc32(self.committed.tobytes()), "recovery moved an end"
        elif line[0] == "W":
            which = slice(None) if line[2] == "-1" else int(line[2])
            self.appended[which] += int(line[1])
        elif line[0] == "C":
            self.commits += 1
            self.committed = self.appended.copy()
        else:
            pytest.fail(" ".join(line))

    def check(self, held: Held) -> None:
        """Everything acknowledged is there, and nothing that was never appended."""
        assert (held.stop >= self.committed).all(), "an acknowledged row is lost"
        assert (held.stop <= self.appended).all(), "a row is there that nobody appended"
        assert (held.first >= self.first).all(), "an evicted row is back"
        assert held.rows >= min(self.committed.sum(), CAPACITY - 5 * SLOTS), "evicted too much"
        self.first = held.first
        # What was found counts from now on: it must never go again.
        self.committed, self.appended = held.stop, held.stop.copy()


def kill_often(folder: Path, kills: int, seed: int) -> Promised:
    """Writers of one Lake, each killed at a random moment.

    On a busy machine they write less before they are killed: more follow until rows were evicted.
    """
    path = folder / "lake"
    Lake.create(path, SPEC, CAPACITY, segment_rows=SLOTS).writer("g", STREAMS).close()
    chance, promised, zygote = random.Random(seed), Promised(), Zygote()
    try:
        for life in range(10 * kills):
            if life >= kills and promised.first.all():
                break
            promised.lives += 1
            pid = zygote.begin("live", chance.randrange(2**32), path)
            # Every third is killed while it recovers, if recovery takes that long.
            while life % 3 and (line := zygote.line(PATIENCE)):
                promised.note(line)
                if line[0] == "O":
                    break
            moment = time.monotonic() + chance.choice([0.01, 0.05, 0.2]) * chance.random()
            while (left := moment - time.monotonic()) > 0:
                if (line := zygote.line(left)) is not None:
                    promised.note(line)
            os.kill(pid, signal.SIGKILL)
            while (line := zygote.line(PATIENCE))[0] != "D":
                promised.note(line)
            assert os.waitstatus_to_exitcode(int(line[1])) == -signal.SIGKILL
            # Rows that were found before are read again every fifth time: they may be sealed now.
            promised.check(check_all(Lake.open(path), promised.committed - 4 if life % 5 else None))
    finally:
        zygote.end()
    return promised


def report(promised: Promised) -> str:
    recovering, rows = promised.lives - promised.opened, int(promised.committed.sum())
    return (
        f"{promised.lives} kills: {recovering} during recovery, {promised.commits} commits "
        f"acknowledged, {rows} rows, {int(promised.first.sum())} evicted, 0 lost, 0 invented"
    )


def test_kills(tmp_path, capsys):
    promised = kill_often(tmp_path, 80, seed=1)
    assert 10 < promised.opened < promised.lives
    assert promised.first.all(), "nothing was evicted"
    with capsys.disabled():
        print("\n" + report(promised))


@pytest.mark.full
def test_ten_thousand_kills(tmp_path, capsys):
    promised = kill_often(tmp_path, 10_000, seed=2)
    with capsys.disabled():
        print("\n" + report(promised))
