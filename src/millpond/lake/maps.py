"""`MapBudget`: how many memory maps a reader may use; segments beyond that are read into memory.

Linux limits a process to `vm.max_map_count` maps. A segment takes one per column and index, so a
Lake with many short segments could exceed that. Adjacent plain memory counts as one map, however
many segments it holds.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import LakeFailed

_USUAL = 65530  # what Linux allows unless it is set otherwise


class MapBudget:
    """Counts the maps and the memory that one reader uses."""

    def __init__(self) -> None:
        # Half of what is free: other code in this process, such as a second reader, needs some.
        self.most = max(0, (_limit() - _used()) // 2)
        self.used = self.held = 0  # maps; bytes

    def take(self, number: int, always: bool) -> bool:
        """Reserve `number` maps; False if the budget is used up, unless `always`."""
        fits = always or self.used + number <= self.most
        self.used += number * fits
        return fits

    def give_back(self, number: int) -> None:
        self.used -= number

    def hold(self, folder: Path, size: int) -> None:
        """Reserve `size` bytes of memory; LakeFailed if they are over half of what is free."""
        room = _memory()
        if size > room // 2:
            raise LakeFailed(
                f"{folder}: more segments than this process may map (vm.max_map_count = "
                f"{_limit()}), and not enough memory to hold the others: {self.held} bytes are "
                f"held, {size} more are needed, {room} are free; raise vm.max_map_count"
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


def _limit() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _USUAL


def _used() -> int:
    try:
        with open("/proc/self/maps", "rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def _memory() -> int:
    """Bytes available without swapping; a huge number if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 62
