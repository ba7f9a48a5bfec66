"""Replay in memory: `Pond` on a device, `HostPond` in NumPy."""

from .host_pond import HostPond
from .pond import Pond, PondState

__all__ = ["HostPond", "Pond", "PondState"]
