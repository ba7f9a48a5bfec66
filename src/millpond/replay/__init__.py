"""Replay in memory: `Pond` on a device, `HostPond` in NumPy."""

from .device_ring import PondState
from .host_pond import HostPond
from .packed_step import PackedStep
from .pond import Pond

__all__ = ["HostPond", "PackedStep", "Pond", "PondState"]
