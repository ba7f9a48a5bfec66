"""A world in which every row says which row it must be, for the fault tests of the Lake.

The content of a row is a function of its stream and id, so whatever is read can be checked without
a copy of what was written.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from millpond import Field, Rows, Spec, Window
from millpond.lake import Lake, Writer, codec, recovery
from millpond.lake import writer as writing
from millpond.lake.files import Files

WIDTH = 1024
SLOTS = 4096
SPEC = Spec(
    {"wide": Field("uint8", (WIDTH,)), "tiny": Field("bool", (11,))},
    Field("int32"),
    {"born": Field("int64")},
)

# Training a dictionary is most of the time that sealing a small segment takes.
codec.DICTIONARY, codec._SAMPLES = 4096, 100

_PATTERN = (np.arange(WIDTH) * 7 % 251).astype(np.uint8)
_ODD = np.random.default_rng(5).integers(0, 2**63, WIDTH // 8, np.uint64) * 2 + 1


def keys(stream: np.ndarray, row: np.ndarray) -> np.ndarray:
    """uint64[n] that name rows: splitmix64 of stream and id."""
    key = (stream.astype(np.uint64) << np.uint64(40)) ^ row.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        key = (key + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(factor)
        key ^= key >> np.uint64(shift)
    return key


class Content(NamedTuple):
    """What the rows (stream[n], id[n]) hold."""

    wide: np.ndarray
    tiny: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    born: np.ndarray


def content(stream: np.ndarray, row: np.ndarray) -> Content:
    """Frames of which most compress well; some rows, streams and stretches of rows do not."""
    key = keys(stream, row)
    wide = np.tile(_PATTERN, (len(key), 1))
    noisy = np.flatnonzero((row // 8 % 3 == 2) | (row // 64 % 4 == 3) | (stream % 8 == 5))
    wide[noisy] = (key[noisy, None] * _ODD).view(np.uint8)
    wide[:, 8:16] = key[:, None].view(np.uint8)
    return Content(
        wide=wide,
        tiny=(key[:, None] >> np.arange(11, dtype=np.uint64) & np.uint64(1)).astype(bool),
        action=(key >> np.uint64(33)).astype(np.int32),
        reward=(key >> np.uint64(44)).astype(np.float32),
        born=row.astype(np.int64),
    )


def rows_of(first: np.ndarray, steps: int, streams: np.ndarray) -> Rows:
    """Rows [steps, streams] that follow ids `first` of these streams."""
    row = first + np.arange(steps)[:, None]
    stream = np.broadcast_to(streams, row.shape)
    made = content(stream.reshape(-1), row.reshape(-1))
    wide, tiny, action, reward, born = (part.reshape(*row.shape, *part.shape[1:]) for part in made)
    no = np.zeros(row.shape, bool)
    flags = np.zeros(row.shape, np.uint8)
    return Rows({"wide": wide, "tiny": tiny}, action, reward, no, no, flags, {"born": born})


def append(writer: Writer, steps: int, env: int | None = None, base: int = 0) -> None:
    """The next rows of every stream of a group whose first stream is `base`, or of one."""
    if env is None:
        streams = np.arange(base, base + writer.streams)
        writer.append(rows_of(writer.next_row, steps, streams))
    else:
        rows = rows_of(writer.next_row[env : env + 1], steps, np.array([base + env]))
        one = [part[:, 0] for part in (rows.action, rows.reward, rows.terminated, rows.flags)]
        obs = {name: value[:, 0] for name, value in rows.obs.items()}
        born = {"born": rows.extras["born"][:, 0]}
        writer.append(Rows(obs, one[0], one[1], one[2], one[2], one[3], born), env=env)


@contextmanager
def made_of(layout: str) -> Iterator[None]:
    """Writers make every segment in this layout, whatever is appended."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(writing, "layout_after", lambda count: layout))
        patches.enter_context(patch.object(recovery, "layout_after", lambda count: layout))
        patches.enter_context(patch.object(recovery, "SHARES", layout))
        yield


class Held(NamedTuple):
    """Rows first[s] ... stop[s] - 1 of each stream are stored."""

    first: np.ndarray
    stop: np.ndarray
    rows: int


def check_all(lake: Lake, since: np.ndarray | None = None) -> Held:
    """Read every row of a Lake, or those since these ids; each must be itself, ids without gaps."""
    index = lake.reader.index
    first = np.zeros(index.streams, np.int64)
    stop = np.zeros(index.streams, np.int64)
    first[index.stream[::-1]] = index.first[::-1]
    stop[index.stream] = index.first + index.count
    np.testing.assert_array_equal(stop - first, index.rows, "ids with gaps")
    slots = np.repeat(index.slot - index.begin, index.count) + np.arange(index.total)
    row = np.repeat(index.first - index.begin, index.count) + np.arange(index.total)
    stream = np.repeat(index.stream, index.count)
    if since is not None:
        new = row >= since[stream]
        slots, row, stream = slots[new], row[new], stream[new]
    batches = lake._batches_for(Window(), 1)
    columns = lake.reader.columns
    for at in range(0, len(row), 1 << 14):
        some = slice(at, at + (1 << 14))
        wanted = content(stream[some], row[some])
        records = lake.reader.records(slots[some])
        raw = {path: batches.fetch(path, slots[some]) for path in columns.obs}
        found = columns.rows(records, raw)
        np.testing.assert_array_equal(found.extras["born"], wanted.born)
        np.testing.assert_array_equal(found.action, wanted.action)
        np.testing.assert_array_equal(found.reward, wanted.reward)
        np.testing.assert_array_equal(found.obs["tiny"], wanted.tiny)
        assert np.array_equal(found.obs["wide"], wanted.wide), "a frame is not its row's"
        assert not (found.terminated | found.truncated).any()
    return Held(first, stop, index.total)


def check_samples(lake: Lake, rng: np.random.Generator, number: int, window: Window) -> None:
    """A sampled batch holds exactly the rows it says it holds."""
    batch = lake.sample(rng, number, window)
    stream, row = batch.draw.stream.astype(np.int64), batch.draw.row
    for obs, last in ((batch.obs, row), (batch.next_obs, row + batch.steps)):
        for back in range(window.stack):
            wanted = content(stream, last - (window.stack - 1 - back))
            assert np.array_equal(obs["wide"][:, back], wanted.wide)
            assert np.array_equal(obs["tiny"][:, back], wanted.tiny)
    np.testing.assert_array_equal(batch.action, content(stream, row).action)
    np.testing.assert_array_equal(batch.extras["born"], row)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every name below a folder with its bytes; folders are None."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def copy_tree(source: Path, target: Path) -> None:
    """A copy of a Lake that keeps holes as holes, so that thousands are cheap."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        to = target / path.relative_to(source)
        if path.is_dir():
            to.mkdir()
        else:
            copy_sparse(path, to)


def copy_sparse(source: Path, target: Path) -> None:
    old = os.open(source, os.O_RDONLY)
    new = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        size, at = os.fstat(old).st_size, 0
        os.ftruncate(new, size)
        while at < size:
            try:
                start = os.lseek(old, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(old, start, os.SEEK_HOLE)
            os.pwrite(new, os.pread(old, at - start, start), start)
    finally:
        os.close(old)
        os.close(new)


class Watched(Files, abc.ABC):
    """Calls `before(name, *arguments)` ahead of every operation that changes the disk."""

    @abc.abstractmethod
    def before(self, name: str, *arguments: object) -> None: ...

    def create(self, path: Path) -> int:
        self.before("create", path)
        return super().create(path)

    def open(self, path: Path) -> int:
        self.before("open", path)
        return super().open(path)

    def close(self, fd: int) -> None:
        self.before("close", fd)
        super().close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> None:
        self.before("pwrite", fd, data, offset)
        super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self.before("truncate", fd, size)
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self.before("sync", fd)
        super().sync(fd)

    def sync_folder(self, path: Path) -> None:
        self.before("sync_folder", path)
        super().sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self.before("rename", old, new)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self.before("unlink", path)
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self.before("make_folder", path)
        super().make_folder(path)
