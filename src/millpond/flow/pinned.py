"""Pinned host memory, from which a GPU copies fast.

`jax.device_put` from pinned memory runs at 54 GB/s on an H200, from ordinary memory at 3.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np


def pinned_array(shape: tuple[int, ...]) -> np.ndarray:
    """uint8[shape], page-aligned, and pinned if JAX's default device is a GPU."""
    size = max(1, int(np.prod(shape, dtype=np.int64)))
    memory = mmap.mmap(
        -1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8, size).reshape(shape)
    cuda = _cuda_runtime() if jax.default_backend() == "gpu" else None
    if cuda is not None:
        address = ctypes.c_void_p(array.ctypes.data)
        if cuda.cudaHostRegister(address, ctypes.c_size_t(len(memory)), 0) == 0:
            weakref.finalize(memory, cuda.cudaHostUnregister, address)
    return array


def _cuda_runtime() -> Any:
    """The CUDA runtime that JAX has loaded, or None: without it, copies are only slower."""
    names = ["libcudart.so", "libcudart.so.13", "libcudart.so.12"]
    maps = Path("/proc/self/maps")
    if maps.exists():
        names = re.findall(r"\S*libcudart[^\s]*", maps.read_text()) + names
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
