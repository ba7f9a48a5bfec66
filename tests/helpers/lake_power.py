"""A disk that remembers what was synced: from its log, folders as a power loss may leave them."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np

from millpond.lake.files import Files

SECTOR = 512


class Disk(Files):
    """Real files below `base`, and a log of every operation in the order it happened.

    `fail_at` numbers a sync that fails; what it should have written then never will be.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.log: list[tuple[Any, ...]] = []
        self.dead = False
        self.fail_at = -1  # number of a sync
        self.syncs = 0
        self._names: dict[Path, int] = {}
        self._files: dict[int, int] = {}  # descriptor → file
        self._made = 0
        self._one = threading.RLock()

    def note(self, *entry: Any) -> None:
        with self._one:
            if self.dead:
                raise Killed
            self.log.append(entry)

    def create(self, path: Path) -> int:
        with self._one:
            self._made += 1
            self.note("create", path, self._made)
            fd = super().create(path)
            self._names[path] = self._files[fd] = self._made
            return fd

    def open(self, path: Path) -> int:
        with self._one:
            self.note("nothing")
            fd = super().open(path)
            self._files[fd] = self._names[path]
            return fd

    def close(self, fd: int) -> None:
        with self._one:
            self.note("nothing")
            del self._files[fd]
            super().close(fd)

    def close_all(self) -> None:
        """Every descriptor that a killed process had."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()

    def pwrite(self, fd: int, data: memoryview, offset: int) -> None:
        with self._one:
            self.note("pwrite", self._files[fd], bytes(data), offset)
            super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        with self._one:
            self.note("truncate", self._files[fd], size)
            super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        with self._one:
            self.syncs += 1
            if self.syncs == self.fail_at:
                self.note("failed sync", self._files[fd])
                raise OSError(errno.EIO, "planted")
            self.note("sync", self._files[fd])

    def sync_folder(self, path: Path) -> None:
        self.note("sync_folder", path)

    def rename(self, old: Path, new: Path) -> None:
        with self._one:
            self.note("rename", old, new, self._names[old])
            super().rename(old, new)
            self._names[new] = self._names.pop(old)

    def unlink(self, path: Path) -> None:
        with self._one:
            if path.suffix == ".seg":
                self.note("evict", ends_of(path))
            self.note("unlink", path)
            super().unlink(path)
            del self._names[path]

    def make_folder(self, path: Path) -> None:
        with self._one:
            self.note("make_folder", path)
            super().make_folder(path)


class Killed(BaseException):
    """Raised for every operation of a process that is gone."""


def ends_of(path: Path) -> np.ndarray:
    """Ids behind the rows of a sealed segment."""
    data = path.read_bytes()
    offset, length = struct.unpack_from("<QQ", data, len(data) - 48 + 16)
    plain = json.loads(data[offset : offset + length])
    return np.array(plain["first"]) + plain["count"]


class Image:
    """What is on disk when the power goes after `log`: all that was synced, the rest by chance."""

    def __init__(self, log: list[tuple[Any, ...]], base: Path, chance: random.Random) -> None:
        self.base, self.chance = base, chance
        self.data_kept = chance.choice([0, 0.1, 0.5, 0.9, 1])
        self.names_kept = chance.choice([0, 0.1, 0.5, 0.9, 1])
        self.names: dict[Path, int] = {}  # 0: a folder
        self.writes: dict[int, list[tuple[Any, ...]]] = {}
        waiting: dict[int, list[tuple[Any, ...]]] = {}
        waiting_names: dict[Path, list[tuple[Any, ...]]] = {}
        for kind, *rest in log:
            if kind in ("pwrite", "truncate"):
                waiting.setdefault(rest[0], []).append((kind, *rest[1:]))
            elif kind == "sync":
                self.writes.setdefault(rest[0], []).extend(waiting.pop(rest[0], []))
            elif kind == "failed sync":
                self._keep_some(rest[0], waiting.pop(rest[0], []))
            elif kind in ("create", "unlink", "rename", "make_folder"):
                waiting_names.setdefault(rest[0].parent, []).append((kind, *rest))
            elif kind == "sync_folder":
                for entry in waiting_names.pop(rest[0], []):
                    self._name(*entry)
        for entries in waiting_names.values():
            for entry in entries:
                if chance.random() < self.names_kept:
                    self._name(*entry)
        for file, writes in waiting.items():
            self._keep_some(file, writes)

    def _name(self, kind: str, path: Path, *rest: Any) -> None:
        if kind == "create":
            self.names[path] = rest[0]
        elif kind == "make_folder":
            self.names[path] = 0
        elif kind == "unlink":
            self.names.pop(path, None)
        else:
            self.names.pop(path, None)
            self.names[rest[0]] = rest[1]

    def _keep_some(self, file: int, writes: list[tuple[Any, ...]]) -> None:
        """Each sector that was to be written is, or is not; of some files all or none."""
        kept = self.writes.setdefault(file, [])
        likely = self.chance.choice([0, self.data_kept, 1])
        for kind, *rest in writes:
            if kind == "truncate":
                if self.chance.random() < likely:
                    kept.append((kind, *rest))
                continue
            data, offset = rest
            at = 0
            while at < len(data):
                stop = min(len(data), at + SECTOR - (offset + at) % SECTOR)
                if self.chance.random() < likely:
                    kept.append(("pwrite", data[at:stop], offset + at))
                at = stop

    def build(self, to: Path) -> None:
        """Make the folder."""
        to.mkdir()
        for path, file in sorted(self.names.items()):
            real = to / path.relative_to(self.base)
            if not real.parent.is_dir():
                continue  # the folder's own name is lost
            if file == 0:
                real.mkdir()
                continue
            fd = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            for kind, *rest in self.writes.get(file, []):
                if kind == "truncate":
                    os.ftruncate(fd, rest[0])
                else:
                    os.pwrite(fd, *rest)
            os.close(fd)
