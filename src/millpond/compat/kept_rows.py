"""`KeptRows`: a HostPond's rows in a Lake too, from which the next process fills its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import BadConfig
from ..lake import Lake
from ..replay import HostPond

_GROUP = "replay"
_BLOCK = 4096  # rows read at a time


class KeptRows:
    """Copies what is new in a pond to a Lake, at every `commit`.

    A Lake that is there is read first: the pond gets its newest rows, and a cut after them. What
    was committed survives SIGKILL. `kept = KeptRows("runs/replay", pond); pond.add(...);
    kept.commit()`.
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
        self._kept = pond.added

    def _fill(self) -> None:
        """The newest rows of every stream into the pond, which is empty."""
        for stream in self.lake.streams:
            if stream.group != _GROUP:
                raise BadConfig(
                    f"{self.lake.path}: has the writer group '{stream.group}', so it is not what "
                    "this buffer keeps; give it a folder of its own"
                )
            start = max(stream.first, stream.stop - self._pond.length)
            for begin in range(start, stream.stop, _BLOCK):
                rows = self.lake.read(stream.number, begin, min(begin + _BLOCK, stream.stop))
                self._pond.add(rows, env=stream.env)
        if len(self.lake):
            self._pond.cut()

    def commit(self) -> None:
        """Everything that was added is in the Lake when this returns."""
        for env, (start, stop) in enumerate(zip(self._kept, self._pond.added, strict=True)):
            if start < stop:
                ids = np.arange(start, stop)
                self.writer.append(self._pond.read(np.full(len(ids), env), ids), env=env)
                self._kept[env] = stop
        self.writer.commit()

    def close(self) -> None:
        """Commit, and release the Lake to other processes."""
        self.commit()
        self.writer.close()
