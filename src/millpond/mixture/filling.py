"""`Filling`: fills one member's BigPond from its Lake, in background threads."""

from __future__ import annotations

from ..flow import Fill
from ..lake import Lake
from ..replay import Pond, PondState
from .settings import BigSettings

CORE = 128  # consecutive rows of a Lake that are drawn together; see docs/decisions/0007
RUNS = 16  # most of these runs per stream of BigPond in one block


class Filling:
    """`filling.start()` begins to gather rows; `filling()` returns the filled BigPond's state.

    Each row of the Lake is taken at most once, until the Pond is full or no rows are left. With
    choice newest, only rows from number `since` of every stream on are taken.
    """

    def __init__(self, lake: Lake, pond: Pond, big: BigSettings, seed: int, since: int) -> None:
        since = since if big.choice == "newest" else 0
        rows = sum(max(0, s.stop - max(s.first, since)) for s in lake.streams)
        context = pond.window.before + pond.window.n_step
        core = max(1, min(CORE, rows // pond.streams, pond.length - context))
        length = context + core
        wanted = max(1, min(pond.length // length, rows // (core * pond.streams)))
        # Few, large blocks, with as few runs left over as possible.
        runs = min(range(1, min(RUNS, wanted) + 1), key=lambda runs: (wanted % runs, -runs))
        self._pond, self._blocks = pond, wanted // runs
        more = dict(runs=runs, since=since)
        self._fill = Fill(lake, pond, core, seed, big.choice, big.half_life, **more)

    def start(self) -> None:
        """Begin to gather rows in the background."""
        self._fill.start(self._blocks)

    def __call__(self) -> PondState:
        """Wait for the filled Pond's state; call it once."""
        self.start()
        state: PondState | None = self._pond.init()
        for _ in range(self._blocks):
            state = self._fill(state)
        self.close()
        assert state is not None
        return state

    def close(self) -> None:
        """Stop gathering."""
        self._fill.close()
