"""How the C library treats freed memory."""

from __future__ import annotations

import ctypes
import functools
from contextlib import suppress
from typing import Any

_KEPT = 64 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep up to 64 MiB of freed memory. Every batch of images needs the same few
    megabytes; returned to the kernel each time, their page faults would double a batch's time."""
    with suppress(AttributeError):  # a C library without mallopt
        libc: Any = ctypes.CDLL(None)
        for parameter in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, _KEPT)
