"""`Lock`: a lock file held by one process at a time, until it releases the lock or ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ..errors import LakeFailed, LakeLocked
from .files import translated_errors
from .forks import fork_gate, pause_at_fork

_LOOK = 0.005  # seconds between two attempts


class Lock:
    """An exclusive lock, not inherited by forked children, released when it is collected."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        pause_at_fork(self)

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._fd >= 0

    def check_path(self) -> None:
        """Raise LakeFailed if the lock's path no longer leads to the locked file."""
        try:
            same = os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            same = False
        if not same:
            raise LakeFailed(
                f"{self._path.parent}: the folder was moved, deleted or replaced since this writer "
                "was opened; nothing is written to the new one. Open the Lake again where it is "
                "now"
            )

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def before_fork(self) -> None:
        pass

    def after_fork(self, child: bool) -> None:
        if child:  # else the child would keep the lock, in the name of its parent
            self.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def take_lock(path: Path, what: str, patience: float = 0.0) -> Lock:
    """Lock a file; LakeLocked if another process holds it for longer than `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        with translated_errors("locking", path), fork_gate:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Of constant length, so that a concurrent reader always sees a whole number.
                os.pwrite(fd, f"{os.getpid():<19}\n".encode(), 0)
                return Lock(fd, path)
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
        if time.monotonic() >= end:
            raise LakeLocked(f"{path.parent}: {what} is open {_where(holder, patience)}")
        time.sleep(_LOOK)


def _where(holder: str, patience: float) -> str:
    """Where a lock is held, as far as its file says, and what to do about it."""
    waited = f" (for more than {patience:g} s)" if patience else ""
    if holder == str(os.getpid()):
        return (
            f"in process {holder}, this very one{waited}; close() the writer opened here before, "
            "or use another group"
        )
    if not holder.isdigit():
        return f"in another process{waited}; use another group, or end that process"
    if not os.path.exists(f"/proc/{holder}"):
        return (
            f"in a process started by process {holder}, which has ended, or on another "
            f"machine{waited}; end that process, or use another group"
        )
    return (
        f"in process {holder}{waited}; one process writes to a group at a time. "
        "Use another group, or end that process"
    )
