"""Mapped bytes that cannot be had: an error of the call that reads them, not a killed process.

A file that was truncated under its reader, or a disk that does not give a page, makes the kernel
send SIGBUS to any thread that touches it. The handler here puts zeros where a segment's column was
mapped, notes it, and lets the reading continue; the call that read it then raises LakeDamaged. Any
other SIGBUS is left to whatever handled it before.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

_ADDRESS = 16  # where a siginfo_t holds it, on 64-bit Linux
_SIGINFO = 4  # of the handler's flags: it wants a siginfo_t

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
    blank: Callable[[int], None]  # puts zeros where the part of that number is
    broken: set[int]  # numbers of parts that were blanked


fault_addresses: list[int] = []  # addresses; empty in a process in which all is well
_ranges: dict[int, _Range] = {}
_before = _Action()
_installed: list[Any] = []  # the handler, which must live as long as the process


def guard(
    base: int, size: int, stride: int, blank: Callable[[int], None], broken: set[int]
) -> None:
    """From now on `size` bytes at `base`, in parts of `stride`, do not kill their readers."""
    _ranges[base] = _Range(size, stride, blank, broken)
    if not _installed:
        _installed.append(ctypes.CFUNCTYPE(None, *[ctypes.c_int] + [ctypes.c_void_p] * 2)(_on_bus))
        mine = _Action(ctypes.cast(_installed[0], ctypes.c_void_p), flags=_SIGINFO)
        _libc.sigaction(signal.SIGBUS, ctypes.byref(mine), ctypes.byref(_before))


def forget(base: int) -> None:
    """These addresses are given back."""
    _ranges.pop(base, None)


def _on_bus(number: int, info: int, context: int) -> None:
    """Returning repeats the instruction that failed, so it must not fail in the same way again."""
    try:
        address = ctypes.c_uint64.from_address(info + _ADDRESS).value
        for base, part in list(_ranges.items()):
            if base <= address < base + part.size:
                which = (address - base) // part.stride
                part.blank(which)
                part.broken.add(which)
                fault_addresses.append(address)
                return
    except BaseException:  # nothing may be raised through a signal handler of C
        pass
    _libc.sigaction(number, ctypes.byref(_before), None)
