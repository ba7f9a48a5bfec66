"""What the C library does with memory it gets back."""

from __future__ import annotations

import ctypes
import functools
from contextlib import suppress
from typing import Any

_KEPT = 64 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep up to 64 MiB it got back. Every batch of images needs the same few megabytes;
    given back to the kernel each time, their page faults would double the time a batch takes."""
    with suppress(AttributeError):  # a C library without mallopt
        libc: Any = ctypes.CDLL(None)
        for parameter in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, _KEPT)
