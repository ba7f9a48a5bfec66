"""`ChannelEnd`: what the two ends of a channel have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadConfig
from .eventfd import EventFd
from .header import Header
from .slots import SlotMemory


class ChannelEnd:
    """One process alone has each end. It waits at its own bell and rings the other's."""

    def __init__(
        self,
        header: Header,
        slots: SlotMemory,
        own: EventFd,
        other: EventFd,
        alive: Callable[[], bool] | None,
    ) -> None:
        self.canary = header.canary
        self._header, self._slots, self._layout = header, slots, slots.layout
        self._own, self._other, self._alive = own, other, alive

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise BadConfig(
            f"{name}: one process alone has this end of a channel, so it cannot be copied or "
            "pickled; pass the Channel to Process(args=...), and call "
            f"channel.{name.removeprefix('Channel').lower()}(spec) there"
        )
