"""`Files`: every operation that changes a Lake on disk, in one place.

Tests replace it to fail, kill or lose power at any operation. Reads do not go through it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LakeFailed, LakeFull

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Files:
    """The operating system's file operations; links are never followed."""

    def create(self, path: Path) -> int:
        """A descriptor of a new, empty file."""
        return os.open(path, _NEW, 0o644)

    def open(self, path: Path) -> int:
        """A descriptor of an existing file, to write to."""
        return os.open(path, _OLD)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> None:
        """Write all of `data`; never through a memory map, where a full disk raises SIGBUS."""
        while data.nbytes:
            done = os.pwrite(fd, data, offset)
            data, offset = data[done:], offset + done

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return once the file's content survives a power loss."""
        os.fsync(fd)

    def sync_folder(self, path: Path) -> None:
        """Return once the folder's entries survive a power loss."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Atomically: a reader sees either name, and a file under `new` is replaced."""
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        """A second name for a file; it is an error if `new` already exists."""
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        os.mkdir(path, 0o755)


@contextmanager
def translated_errors(doing: str, path: Path, again: bool = True) -> Generator[None]:
    """Turn an OSError into LakeFull or LakeFailed, which name the file and a remedy.

    A full disk is LakeFull, unless the operation must not be tried `again`: after a failed sync,
    the kernel regards pages it never wrote as clean, and another sync would wrongly succeed.
    """
    try:
        yield
    except OSError as error:
        if again and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LakeFull(
                f"{path}: the disk is full while {doing}; everything committed is safe. "
                "Free space and call again"
            ) from error
        raise LakeFailed(
            f"{path}: {doing} failed: {os.strerror(error.errno or 0)}; everything committed "
            "is kept. Check the disk, then open the writer again: it recovers"
        ) from error


@contextmanager
def translated_read_errors(path: Path) -> Generator[None]:
    """The same for reading. FileNotFoundError is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LakeFailed(
            f"{error.filename or path}: reading failed: {os.strerror(error.errno or 0)}; nothing "
            "was changed. Check permissions, the limit on open files (ulimit -n) and the disk"
        ) from error


@contextmanager
def opened(path: Path) -> Generator[int]:
    """A descriptor for reading a file, closed at the end of the block; links are not followed."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def as_bytes(array: Any) -> memoryview:
    """A contiguous array as bytes, without a copy."""
    return memoryview(array).cast("B")
