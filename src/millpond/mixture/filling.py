"""`Filling`: one member's BigPond from its Lake, gathered beside whatever else runs."""

from __future__ import annotations

from ..flow import Fill
from ..lake import Lake
from ..replay import Pond, PondState
from .settings import BigSettings

CORE = 128  # rows of a Lake that are dealt together; see docs/decisions/0007
RUNS = 16  # at most that many of them for every stream of BigPond go into one block


class Filling:
    """`filling()` is the state of a BigPond with rows of a Lake; they are gathered from `start` on.

    The Pond is filled whole, or as far as the Lake's rows go, each at most once. With choice newest
    these are the rows from number `since` of every stream on.
    """

    def __init__(self, lake: Lake, pond: Pond, big: BigSettings, seed: int, since: int) -> None:
        since = since if big.choice == "newest" else 0
        rows = sum(max(0, s.stop - max(s.first, since)) for s in lake.streams)
        context = pond.window.before + pond.window.n_step
        core = max(1, min(CORE, rows // pond.streams, pond.length - context))
        length = context + core
        wanted = max(1, min(pond.length // length, rows // (core * pond.streams)))
        # Few, large blocks, and as few runs left over as can be.
        runs = min(range(1, min(RUNS, wanted) + 1), key=lambda runs: (wanted % runs, -runs))
        self._pond, self._blocks = pond, wanted // runs
        more = dict(runs=runs, since=since)
        self._fill = Fill(lake, pond, core, seed, big.choice, big.half_life, **more)

    def start(self) -> None:
        """Begin to gather, beside all that follows."""
        self._fill.start(self._blocks)

    def __call__(self) -> PondState:
        """The filled Pond's state; only once."""
        self.start()
        state: PondState | None = self._pond.init()
        for _ in range(self._blocks):
            state = self._fill(state)
        self.close()
        assert state is not None
        return state

    def close(self) -> None:
        """Gather no further."""
        self._fill.close()
