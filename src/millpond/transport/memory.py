"""`Memory`: anonymous shared memory, passed to other processes by its descriptor.

The kernel frees it with the last process that holds it, even if all are killed. A view of it must
never be pickled: the receiver would get a private copy, and both sides would go on without seeing
each other. So each end proves with a canary that its view is the shared memory.
"""

from __future__ import annotations

import abc
import fcntl
import mmap
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadConfig, ChannelBroken, MillpondError

PAGE = 4096
CANARIES = PAGE // 8  # words of the first page, which holds nothing else
PLACES = range(4, CANARIES)  # words for the canaries of ends of which there may be many
_TRIES = 8  # two ends that attach at the same moment may draw the same word
_gate = threading.Lock()


class Canary(NamedTuple):
    """A random number that an end wrote, and the word it wrote it to.

    `canary = memory.prove()` in one process, `memory.confirm(canary)` in the other.
    """

    word: int
    value: int


class Shared(abc.ABC):
    """Something in shared memory. Other processes get it as an argument of a spawned Process.

    Processes that were started otherwise `attach` to what `share` returns.
    """

    @abc.abstractmethod
    def share(self) -> tuple[dict[str, Any], list[int]]:
        """What another process needs to attach: plain values, and descriptors to send it."""

    @classmethod
    @abc.abstractmethod
    def attach(cls, plain: Mapping[str, Any], fds: Sequence[int]) -> Shared:
        """What another process shared; its descriptors belong to us from now on."""

    def __reduce__(self) -> tuple[Callable[..., Shared], tuple[Any, ...]]:
        if get_spawning_popen() is None:
            name = type(self).__name__
            raise BadConfig(
                f"{name}: shared memory cannot be copied or pickled; pass the {name} itself in the "
                "arguments of a spawned Process, or create another"
            )
        plain, fds = self.share()
        return _receive, (type(self), plain, [DupFd(fd) for fd in fds])


def _receive(kind: type[Shared], plain: Mapping[str, Any], sent: Sequence[Any]) -> Shared:
    fds = [fd.detach() for fd in sent]
    for fd in fds:
        os.set_inheritable(fd, False)  # not for programs that are started from here
    return kind.attach(plain, fds)


class Memory(Shared):
    """`size` zeroed bytes that processes share; the first page is for canaries.

    `memory = Memory.create(1 << 20); memory.prove(); memory.words()[512] = 1`.
    """

    def __init__(self, fd: int, size: int, identity: tuple[int, int]) -> None:
        self.size, self.identity = size, identity
        self._fd = fd
        self._map: mmap.mmap | None = mmap.mmap(fd, size)

    @staticmethod
    def create(size: int) -> Memory:
        """New memory of at least `size` bytes after the canaries' page."""
        if not hasattr(os, "memfd_create"):
            raise BadConfig(f"processes: this needs Linux, got {sys.platform}; use one process")
        size = PAGE + -(-size // PAGE) * PAGE
        if size > (free := _available()):
            raise BadConfig(
                f"processes: {size} bytes of shared memory are more than the {free} available; "
                "use fewer slots"
            )
        fd = os.memfd_create("millpond", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Now, with an error, rather than later by SIGBUS in whoever touches a page first.
            os.posix_fallocate(fd, 0, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            memory = Memory(fd, size, _identity(fd))
        except OSError as error:
            os.close(fd)
            raise BadConfig(
                f"processes: no shared memory of {size} bytes ({error}); use fewer slots"
            ) from error
        return memory

    def share(self) -> tuple[dict[str, Any], list[int]]:
        if self._map is None:
            raise BadConfig("shared memory: it was closed here; create a new one")
        return {"size": self.size, "identity": list(self.identity)}, [self._fd]

    @classmethod
    def attach(cls, plain: Mapping[str, Any], fds: Sequence[int]) -> Memory:
        device, inode = plain["identity"]
        return Memory(fds[0], int(plain["size"]), (device, inode))

    def raw(self) -> memoryview:
        """All bytes, writable."""
        if self._map is None:
            raise BadConfig("shared memory: it was closed here; create a new one")
        return memoryview(self._map)

    def words(self) -> memoryview:
        """All bytes as 64-bit words; one word is written and read whole."""
        return self.raw().cast("Q")

    def array(
        self, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]
    ) -> np.ndarray:
        """An array over the memory, for writing in place. Never pass it on."""
        return np.ndarray(shape, dtype, self.raw(), offset, strides)

    def prove(self, word: int | None = None, words: memoryview | None = None) -> Canary:
        """Write a random canary through `words`, find it in the descriptor's memory; and back.

        Raises ChannelBroken if the two differ. `word` is this end's own; without it one of `PLACES`
        is drawn, which another end may draw too and overwrite.
        """
        if _identity(self._fd) != self.identity:
            raise _by_value("its descriptor leads to other memory than the one created")
        view = self.words() if words is None else words
        for _ in range(_TRIES if word is None else 1):
            place = secrets.choice(PLACES) if word is None else word
            out, back = secrets.randbits(64), secrets.randbits(64)
            view[place] = out
            seen = os.pread(self._fd, 8, 8 * place) == out.to_bytes(8, sys.byteorder)
            os.pwrite(self._fd, back.to_bytes(8, sys.byteorder), 8 * place)
            if seen and view[place] == back:
                return Canary(place, back)
        raise _by_value("what is written through the view does not reach the memory")

    def confirm(self, canary: Canary) -> None:
        """Raise ChannelBroken unless the canary that another process reports is seen here."""
        if self.words()[canary.word] != canary.value:
            raise _by_value("the canary that the other process wrote is not seen here")

    def close(self) -> None:
        """Release it in this process; the mapping goes with the last view."""
        if self._map is not None:
            self._map = None
            os.close(self._fd)

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None:
            self.close()


def fence() -> None:
    """A memory barrier: all CPUs see what was stored before it before they see what follows."""
    # Two locked instructions in a row; x86 alone would only need one, before a load.
    _gate.acquire()
    _gate.release()
    _gate.acquire()
    _gate.release()


def _available() -> int:
    """Bytes available without swapping; taking more could wake the kernel's OOM killer."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable:"))


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _by_value(what: str) -> MillpondError:
    return ChannelBroken(
        f"shared memory travelled by value: {what}; pass the Channel or Weights itself to "
        "Process(args=...), never an array over its memory"
    )
