"""A kill, an I/O error and a full disk at every file operation of a Lake's life."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, Watched, append, check_all

from millpond import LakeFailed, LakeFull, MillpondError
from millpond.lake import Lake, Writer

STREAMS = 8  # so 512 rows of one stream fill a segment
CAPACITY = 2 * SLOTS + 600  # two segments on their way, and one such sealed one

# append (steps, env or None), commit (sync), settle (wait for the sealer), close, open
STORY: list[tuple] = [
    ("create",),
    ("open",),
    ("append", 2, None),
    ("commit", False),
    ("append", 1, 3),
    ("commit", True),
    ("append", 510, 0),  # fills segment 0
    ("commit", False),
    ("settle",),
    ("append", 700, 1),  # straight to disk: the rest of segment 1 and on into 2
    ("commit", True),
    ("settle",),
    ("append", 1, None),
    ("append", 400, 1),  # ends segment 2, which evicts 0
    ("commit", False),
    ("settle",),
    ("append", 1, None),
    ("close",),
    ("open",),
    ("append", 1, None),
    ("commit", True),
    ("append", 512, 5),  # evicts again
    ("close",),
]
NEEDS_SPACE = ("create", "pwrite", "truncate", "rename", "make_folder")


class Kill(BaseException):
    """The process is gone: nothing it would have done afterwards happens."""


class Faulty(Watched):
    """Fails at operation number `at`. Syncing is left out: nothing here loses power."""

    def __init__(self, at: int = -1, fault: str = "none") -> None:
        self.at, self.fault = at, fault
        self.count = 0
        self.names: list[str] = []
        self.hit: str | None = None
        self.gone = self.full = False
        self.fds: set[int] = set()
        self._one = threading.Lock()

    def before(self, name: str, *arguments) -> None:
        with self._one:
            if self.gone:
                raise Kill
            mine = self.count == self.at
            self.count += 1
            self.names.append(name)
            if mine:
                self.hit = name
                self.full = self.fault == "full"
            if mine and self.fault in ("kill", "torn kill"):
                self.gone = True
                if self.fault == "torn kill" and name == "pwrite":
                    fd, data, offset = arguments
                    os.pwrite(fd, data[: data.nbytes // 2], offset)
                raise Kill
            if mine and self.fault == "eio":
                raise OSError(errno.EIO, "planted")
            if self.full and (name in NEEDS_SPACE or (mine and "sync" in name)):
                if name == "pwrite":  # what a real disk does: some of it fits
                    fd, data, offset = arguments
                    os.pwrite(fd, data[: data.nbytes // 3], offset)
                raise OSError(errno.ENOSPC, "planted")

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.fds.add(fd)
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self.fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.before("close", fd)
        self.fds.discard(fd)
        os.close(fd)

    def sync(self, fd: int) -> None:
        self.before("sync", fd)

    def sync_folder(self, path: Path) -> None:
        self.before("sync_folder", path)


class Life:
    """Plays a story and knows what must be in the Lake at any moment."""

    def __init__(self, path: Path, files: Faulty) -> None:
        self.path, self.files = path, files
        self.lake: Lake | None = None
        self.writer: Writer | None = None
        self.appended = np.zeros(STREAMS, np.int64)
        self.committed = np.zeros(STREAMS, np.int64)

    def do(self, step: tuple) -> None:
        word, *arguments = step
        writer = self.writer
        if word == "create" and not (self.path / "lake.json").exists():
            Lake.create(self.path, SPEC, CAPACITY, segment_rows=SLOTS, files=self.files)
        elif word == "open":
            lake = Lake.open(self.path, "a", files=self.files)
            self.writer = lake.writer("g", STREAMS)
            found = self.writer.next_row
            assert (found >= self.committed).all(), "a committed row is lost"
            assert (found <= self.appended).all(), "a row nobody appended, or one twice"
            self.appended = self.committed = found
        elif word == "append":
            np.testing.assert_array_equal(writer.next_row, self.appended, "a part of an append")
            append(writer, *arguments)
            self.appended = writer.next_row.copy()
        elif word == "commit":
            writer.commit(*arguments)
            self.committed = self.appended
        elif word == "settle":
            writer._sealer.finish()
        elif word == "close":
            writer.close()
            self.committed, self.writer = self.appended, None

    def look(self) -> None:
        """A reader sees everything committed and nothing else, whatever the writer is doing."""
        if (self.path / "lake.json").exists():
            held = check_all(Lake.open(self.path))
            if len(held.stop):
                assert (held.stop >= self.committed).all(), "a committed row is not readable"
                assert (held.stop <= self.appended).all(), "a row is readable that is not there"
            else:
                assert not self.committed.any()

    def abandon(self) -> None:
        """What the kernel does with a killed process."""
        self.files.gone = True
        if self.writer is not None:
            with suppress(Kill):
                self.writer._sealer.stop()
            self.writer._lock.release()
            self.writer = None
        for fd in self.files.fds:
            os.close(fd)
        self.files = Faulty()

    def go_on(self, step: tuple) -> None:
        """Open again and do the step that failed, and whatever it needs."""
        if self.writer is not None:
            self.writer.close(commit=False)
            self.writer = None
        self.do(("create",))
        if step[0] != "create":
            self.do(("open",))
        if step[0] not in ("create", "open"):
            self.do(step)


def play(path: Path, at: int, fault: str, react: Callable[[Life, tuple, BaseException], None]):
    life, told = Life(path, Faulty(at, fault)), False
    for step in STORY:
        try:
            life.do(step)
        except (Kill, MillpondError) as error:
            told = True
            react(life, step, error)
    assert told or life.files.hit is None, "nobody was told"
    life.look()
    held = check_all(Lake.open(path))
    np.testing.assert_array_equal(held.stop, life.appended)
    return life


def react_to_kill(life: Life, step: tuple, error: BaseException) -> None:
    assert isinstance(error, Kill)
    life.abandon()
    life.look()
    life.go_on(step)


def react_to_error(life: Life, step: tuple, error: BaseException) -> None:
    """Typed; after a failed sync nothing is trusted; opening again recovers."""
    assert isinstance(error, LakeFailed), error
    life.look()
    if "sync" in life.files.hit and life.writer is not None and life.writer._lock.held:
        with pytest.raises(LakeFailed):
            append(life.writer, 1)
        with pytest.raises(LakeFailed):
            life.writer.commit()
    life.go_on(step)


def react_to_full(life: Life, step: tuple, error: BaseException) -> None:
    """Typed; everything committed is readable; the same call works once there is space."""
    synced = "sync" in life.files.hit  # the kernel lost track of what is on disk: as for EIO
    assert isinstance(error, (LakeFull, LakeFailed) if synced else LakeFull), error
    life.look()
    if synced:
        life.files.full = False
        life.go_on(step)
        return
    before = life.appended
    with suppress(LakeFull):  # still full; what needs no space may go on
        life.do(step)
        before = life.appended
    np.testing.assert_array_equal(before, life.appended)
    life.look()
    life.files.full = False
    if step[0] not in ("append", "close") or (life.appended == before).all():
        for _ in range(3):  # an error of the sealer may be waiting to be told
            with suppress(LakeFull):
                life.do(step)
                return
    pytest.fail("space is back, and the same call fails")


FAULTS = {
    "kill": react_to_kill,
    "torn kill": react_to_kill,
    "eio": react_to_error,
    "full": react_to_full,
}


def operations(path: Path) -> list[str]:
    life = play(path, -1, "none", react_to_error)
    return life.files.names


def different(names: list[str]) -> list[int]:
    """One operation of each kind, where kinds differ in what comes before and after."""
    first: dict[tuple[str, ...], int] = {}
    for at in range(len(names)):
        first.setdefault(tuple(names[max(0, at - 1) : at + 2]), at)
    return list(first.values())


def run_faults(folder: Path, fault: str, every: bool) -> int:
    names = operations(folder / "plain")
    ran = 0
    for at in range(len(names)) if every else different(names):
        if fault == "torn kill" and names[at] != "pwrite":
            continue
        if fault == "full" and names[at] in ("close", "unlink", "open"):
            continue
        path = folder / f"{fault}-{at}"
        try:
            play(path, at, fault, FAULTS[fault])
        except BaseException as error:
            error.add_note(f"{fault} at operation {at} of {len(names)}, {names[at]}")
            raise
        shutil.rmtree(path)
        ran += 1
    return ran


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_at_operations_of_each_kind(tmp_path, fault):
    assert run_faults(tmp_path, fault, every=False) >= 10


def test_an_append_over_segments_is_all_or_nothing(tmp_path):
    """At every operation of an append that fills a segment, makes others and fills these."""
    for at in range(1000):
        files, path = Faulty(), tmp_path / str(at)
        Lake.create(path, SPEC, CAPACITY, segment_rows=SLOTS, files=files)
        writer = Lake.open(path, "a", files=files).writer("g", STREAMS)
        append(writer, 3)
        writer.commit()
        append(writer, 1, 2)
        files.at, files.fault = files.count + at, "full"
        with suppress(LakeFull, LakeFailed):
            append(writer, 1100, 2)
        reached = files.hit is not None
        files.at, files.full = -1, False
        if reached and "sync" in files.hit:
            writer.close(commit=False)
            continue
        if reached:
            assert writer.next_row[2] == 4, "a part of an append"
            append(writer, 1100, 2)
        writer.close()
        assert check_all(Lake.open(path)).stop[2] == 1104
        if not reached:
            break
    assert at > 10


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_at_every_operation(tmp_path, fault, capsys):
    ran = run_faults(tmp_path, fault, every=True)
    with capsys.disabled():
        print(f"\n{fault} at each of {ran} operations: 0 rows lost, 0 doubled")
