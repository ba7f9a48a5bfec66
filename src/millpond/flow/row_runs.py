"""`RowRuns`: chooses stretches of a Lake to load into a Pond; every start is equally likely.

Every stream is divided into *cores* of `core` rows. A run is a core with the rows before and after
it that its windows need, marked CONTEXT, and a cut at the end. Cores are chosen in random order,
each once before any is repeated, so every start is in the Pond equally often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np

from ..errors import BadConfig, NotEnoughData
from ..host_random import HostRandom
from ..lake import Lake, Shuffle
from ..rows import CONTEXT, CUT, Rows
from ..samplers import Eligible, recent
from ..sequence import AnyWindow

Choice = Literal["uniform", "newest", "recent", "balanced"]


class Cores(NamedTuple):
    """The cores of a block, one for every run."""

    which: np.ndarray  # indices of streams, among those with rows
    number: np.ndarray  # core numbers within these streams


class RowRuns:
    """Produces blocks in an order determined by a seed: Rows [envs, runs * length]."""

    def __init__(
        self,
        lake: Lake,
        window: AnyWindow,
        envs: int,
        core: int,
        seed: int,
        choice: Choice,
        half_life: float,
        threads: int,
        packed: bool = False,
        runs: int = 1,
        since: int = 0,
    ) -> None:
        if choice not in get_args(Choice):
            names = ", ".join(repr(name) for name in get_args(Choice))
            raise BadConfig(f"fill: choice must be one of {names}, got {choice!r}")
        if not isinstance(since, int) or since < 0:
            raise BadConfig(f"fill: since must be a row id, 0 or more, got {since!r}")
        if since and choice != "newest":
            raise BadConfig(f"fill: since={since} needs choice 'newest', got choice {choice!r}")
        if not isinstance(core, int) or core < 1:
            raise BadConfig(f"fill: core must be a whole number of rows >= 1, got {core!r}")
        if not isinstance(runs, int) or runs < 1:
            raise BadConfig(f"fill: runs must be a whole number >= 1, got {runs!r}")
        window.fits(lake.spec, window.stack + window.n_step)
        self.lake, self.window, self.envs, self.core = lake, window, envs, core
        self.length = window.before + core + window.n_step
        self.number, self.rows = envs * runs, runs * self.length
        self.choice, self.threads, self._seed, self._packed = choice, threads, seed, packed
        self.since = since
        self._recent = recent(half_life / core) if choice == "recent" else None
        self._turn = 0
        self.refresh()

    def refresh(self) -> None:
        """Divide what the Lake holds now into cores, in a new order: after `lake.refresh()`."""
        held = [s for s in self.lake.streams if s.stop > max(s.first, self.since)]
        if not held:
            what = f"row {self.since} or later" if self.since else "committed row"
            raise NotEnoughData(f"fill: the Lake holds no {what}; commit, refresh() and wait")
        self._stream = np.array([s.number for s in held])
        self._first = np.array([s.first for s in held])
        self._stop = np.array([s.stop for s in held])
        # A core that begins before `since` is left out, unless it is the only one.
        whole = -(-self.since // self.core)
        self._core0 = np.maximum(
            self._first // self.core, np.minimum(whole, (self._stop - 1) // self.core)
        )
        self._cores = (self._stop - 1) // self.core - self._core0 + 1
        groups = np.array([s.group for s in held])
        names = sorted(set(groups.tolist()))
        if self.choice == "balanced":
            parts = [np.flatnonzero(groups == name) for name in names]
        else:
            parts = [np.arange(len(held))]
        self._shuffles = [
            ShuffledCores(part, self._cores[part], self._seed, self._turn) for part in parts
        ]
        self._random = HostRandom(np.random.Generator(np.random.PCG64([self._seed, self._turn])))
        self._turn += 1 << 20  # the numbers in between are for reshuffles
        self._runs_done = 0

    def rows_of(self, cores: Cores, out: Mapping[str, np.ndarray] | None = None) -> Rows:
        """Read a block chosen by `next_cores`: Rows [envs, rows]. Several threads may call it.

        `out` may hold uint8[envs, rows, width] per field, to be filled in place.
        """
        which, number = cores
        core = (self._core0[which] + number) * self.core
        if out is not None:
            out = {name: block.reshape(self.number, self.length, -1) for name, block in out.items()}
        anchor = np.clip(core, self._first[which], self._stop[which] - 1)
        rows = self.lake.gather(
            self._stream[which],
            core - self.window.before,
            self.length,
            anchor=anchor,
            out=out,
            threads=self.threads,
            packed=self._packed,
        )
        flags = rows.flags
        flags[:, : self.window.before] |= np.uint8(CONTEXT)
        flags[:, self.window.before + self.core :] |= np.uint8(CONTEXT)
        flags[:, -1] |= np.uint8(CUT)
        return jax.tree.map(lambda leaf: leaf.reshape(self.envs, self.rows, *leaf.shape[2:]), rows)

    def next_cores(self) -> Cores:
        """Choose a core for every run of the next block."""
        if self._recent is not None:
            drawn = self._recent.propose(
                self._random, 1, self.number, Eligible(self._cores, len(self._cores))
            )
            return Cores(drawn.stream[0], drawn.age[0])
        which_shuffle = (np.arange(self.number) + self._runs_done) % len(self._shuffles)
        self._runs_done += self.number
        which = np.empty(self.number, np.int64)
        number = np.empty(self.number, np.int64)
        for i, one in enumerate(self._shuffles):
            mine = which_shuffle == i
            which[mine], number[mine] = one.next_cores(int(mine.sum()))
        return Cores(which, number)


class ShuffledCores:
    """All cores of some streams in random order; shuffled again when all have been taken."""

    def __init__(self, streams: np.ndarray, cores: np.ndarray, seed: int, turn: int) -> None:
        self._streams, self._ends = streams, np.cumsum(cores)
        self._begin = self._ends - cores
        self.total = int(self._ends[-1])
        self._seed, self._turn, self._at = seed, turn, 0
        self._order = Shuffle(self.total, seed, turn)

    def next_cores(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The next `number` cores: their streams, and their core numbers within these."""
        parts: list[np.ndarray] = []
        while number:
            some = min(number, self.total - self._at)
            parts.append(self._order(np.arange(self._at, self._at + some)))
            self._at += some
            number -= some
            if self._at == self.total:
                self._turn, self._at = self._turn + 1, 0
                self._order = Shuffle(self.total, self._seed, self._turn)
        core = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        which = np.searchsorted(self._ends, core, side="right")
        return self._streams[which], core - self._begin[which]
