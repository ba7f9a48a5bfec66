"""Turns failed reads of memory maps into errors, where they would kill the process.

If a mapped file is truncated or the disk cannot read a page, the kernel sends SIGBUS to the thread
that touches it. The handler here replaces the segment's seat by zeros, records that, and lets the
read continue; the call that made it then raises LakeDamaged. Any other SIGBUS is passed on to the
previous handler.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

_ADDRESS = 16  # offset of the fault address in a siginfo_t, on 64-bit Linux
_SIGINFO = 4  # SA_SIGINFO: the handler takes a siginfo_t

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Range(NamedTuple):
    size: int
    stride: int
    blank: Callable[[int], None]  # replaces the part of this number by zeros
    broken: set[int]  # the numbers of parts that were replaced


fault_addresses: list[int] = []  # of all faults handled; normally empty
_ranges: dict[int, _Range] = {}
_before = _Action()
_installed: list[Any] = []  # the handler, which must live as long as the process


def guard(
    base: int, size: int, stride: int, blank: Callable[[int], None], broken: set[int]
) -> None:
    """Handle faults in `size` bytes at `base`, which are divided into parts of `stride`."""
    _ranges[base] = _Range(size, stride, blank, broken)
    if not _installed:
        _installed.append(ctypes.CFUNCTYPE(None, *[ctypes.c_int] + [ctypes.c_void_p] * 2)(_on_bus))
        mine = _Action(ctypes.cast(_installed[0], ctypes.c_void_p), flags=_SIGINFO)
        _libc.sigaction(signal.SIGBUS, ctypes.byref(mine), ctypes.byref(_before))


def forget(base: int) -> None:
    """Stop handling faults in the range at `base`."""
    _ranges.pop(base, None)


def _on_bus(number: int, info: int, context: int) -> None:
    """The handler. Returning repeats the failed instruction, so the fault must be fixed first."""
    try:
        address = ctypes.c_uint64.from_address(info + _ADDRESS).value
        for base, part in list(_ranges.items()):
            if base <= address < base + part.size:
                which = (address - base) // part.stride
                part.blank(which)
                part.broken.add(which)
                fault_addresses.append(address)
                return
    except BaseException:  # an exception must not propagate through a C signal handler
        pass
    _libc.sigaction(number, ctypes.byref(_before), None)
