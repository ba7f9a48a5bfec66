"""`LakeCopy`: copies a HostPond's rows to a Lake, from which a later process can refill it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import BadConfig
from ..lake import Lake
from ..replay import HostPond

_GROUP = "replay"
_BLOCK = 4096  # rows read at once


class LakeCopy:
    """Copies a pond's new rows to a Lake at every `commit`.

    If the Lake exists, its newest rows are first added to the pond, followed by a cut. Committed
    rows survive SIGKILL. `copy = LakeCopy("runs/replay", pond, 10**6); pond.add(...);
    copy.commit()`.
    """

    def __init__(self, folder: str | Path, pond: HostPond, capacity: int | str) -> None:
        self._pond, there = pond, (Path(folder) / "lake.json").exists()
        if there:
            self.lake = Lake.open(folder, mode="a", spec=pond.spec)
        else:
            self.lake = Lake.create(folder, pond.spec, capacity)
        self.writer = self.lake.writer(_GROUP, streams=pond.num_envs)
        if there:
            self._fill()
        self._copied = pond.added

    def _fill(self) -> None:
        """Add the newest rows of every stream to the pond, which is empty."""
        for stream in self.lake.streams:
            if stream.group != _GROUP:
                raise BadConfig(
                    f"{self.lake.path}: has the writer group '{stream.group}', so it is not a copy "
                    "of this buffer; choose another folder"
                )
            start = max(stream.first, stream.stop - self._pond.length)
            for begin in range(start, stream.stop, _BLOCK):
                rows = self.lake.read(stream.number, begin, min(begin + _BLOCK, stream.stop))
                self._pond.add(rows, env=stream.env)
        if len(self.lake):
            self._pond.cut()

    def commit(self) -> None:
        """Write all rows added so far to the Lake."""
        for env, (start, stop) in enumerate(zip(self._copied, self._pond.added, strict=True)):
            if start < stop:
                ids = np.arange(start, stop)
                self.writer.append(self._pond.read(np.full(len(ids), env), ids), env=env)
                self._copied[env] = stop
        self.writer.commit()

    def close(self) -> None:
        """Commit, and release the Lake for other processes."""
        self.commit()
        self.writer.close()
