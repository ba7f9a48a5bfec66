"""`RowRuns`: which stretches of a Lake go into a Pond, so that every transition is equally likely.

Every stream is divided into *cores* of `core` rows. A run is a core with the rows before and after
it that its windows need, marked CONTEXT, and a cut after it. Cores are taken in a random order
without repetition until all have had their turn; so every start is in the Pond equally often.
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


class Dealt(NamedTuple):
    """Cores, one for every run of a block."""

    which: np.ndarray  # indices into the streams held
    number: np.ndarray  # core numbers in them


class RowRuns:
    """A deterministic sequence of blocks from one seed: `together` runs, one after the other, for
    every env, [envs, together * length].
    """

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
        together: int = 1,
        since: int = 0,
    ) -> None:
        if choice not in get_args(Choice):
            names = ", ".join(repr(name) for name in get_args(Choice))
            raise BadConfig(f"fill: choice must be one of {names}, got {choice!r}")
        if not isinstance(since, int) or since < 0:
            raise BadConfig(f"fill: since must be a row's number, 0 or more, got {since!r}")
        if since and choice != "newest":
            raise BadConfig(
                f"fill: since={since} is the first row of choice 'newest', got choice {choice!r}"
            )
        if not isinstance(core, int) or core < 1:
            raise BadConfig(f"fill: core must be a whole number of rows >= 1, got {core!r}")
        if not isinstance(together, int) or together < 1:
            raise BadConfig(f"fill: runs must be a whole number >= 1, got {together!r}")
        window.fits(lake.spec, window.stack + window.n_step)
        self.lake, self.window, self.envs, self.core = lake, window, envs, core
        self.length = window.before + core + window.n_step
        self.number, self.rows = envs * together, together * self.length
        self.choice, self.threads, self._seed, self._packed = choice, threads, seed, packed
        self.since = since
        self._recent = recent(half_life / core) if choice == "recent" else None
        self._turn = 0
        self.look()

    def look(self) -> None:
        """Divide what the Lake holds now; call after `lake.refresh()`. A new order begins."""
        held = [s for s in self.lake.streams if s.stop > max(s.first, self.since)]
        if not held:
            what = f"row {self.since} or later" if self.since else "committed row"
            raise NotEnoughData(f"fill: the Lake holds no {what}; commit, refresh() and wait")
        self._stream = np.array([s.number for s in held])
        self._first = np.array([s.first for s in held])
        self._stop = np.array([s.stop for s in held])
        # A core that is only in part new is left out, unless there is no other.
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
        self._decks = [Deck(part, self._cores[part], self._seed, self._turn) for part in parts]
        self._random = HostRandom(np.random.Generator(np.random.PCG64([self._seed, self._turn])))
        self._turn += 1 << 20  # decks shuffle again with the numbers in between
        self._dealt = 0

    def rows_of(self, dealt: Dealt, out: Mapping[str, np.ndarray] | None = None) -> Rows:
        """The block of what `deal` chose: Rows [envs, rows]. Several threads may gather at once.

        `out` may hold uint8[envs, rows, width] per field, to be filled in place.
        """
        which, number = dealt
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

    def deal(self) -> Dealt:
        """One core for every run of the next block."""
        if self._recent is not None:
            drawn = self._recent.propose(
                self._random, 1, self.number, Eligible(self._cores, len(self._cores))
            )
            return Dealt(drawn.stream[0], drawn.age[0])
        deck = (np.arange(self.number) + self._dealt) % len(self._decks)
        self._dealt += self.number
        which = np.empty(self.number, np.int64)
        number = np.empty(self.number, np.int64)
        for i, one in enumerate(self._decks):
            mine = deck == i
            which[mine], number[mine] = one.deal(int(mine.sum()))
        return Dealt(which, number)


class Deck:
    """All cores of some streams in random order, taken until none is left, then shuffled again."""

    def __init__(self, streams: np.ndarray, cores: np.ndarray, seed: int, turn: int) -> None:
        self._streams, self._ends = streams, np.cumsum(cores)
        self._begin = self._ends - cores
        self.total = int(self._ends[-1])
        self._seed, self._turn, self._at = seed, turn, 0
        self._order = Shuffle(self.total, seed, turn)

    def deal(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The next `number` cores: which stream, and which core of it."""
        cards: list[np.ndarray] = []
        while number:
            some = min(number, self.total - self._at)
            cards.append(self._order(np.arange(self._at, self._at + some)))
            self._at += some
            number -= some
            if self._at == self.total:
                self._turn, self._at = self._turn + 1, 0
                self._order = Shuffle(self.total, self._seed, self._turn)
        card = np.concatenate(cards) if cards else np.zeros(0, np.int64)
        which = np.searchsorted(self._ends, card, side="right")
        return self._streams[which], card - self._begin[which]
