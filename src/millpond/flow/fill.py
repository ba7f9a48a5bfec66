"""`fill`: loads rows of a Lake into a Pond, all at once or a block at a time during training."""

from __future__ import annotations

import functools
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig, MillpondError
from ..lake import Lake
from ..replay import HostPond, Pond, PondState
from ..rows import Array, Rows
from ..spec import walk
from .pinned import pinned_array
from .row_runs import Choice, Cores, RowRuns

_PATIENCE = 600.0  # seconds after which waiting for a block is an error
_AHEAD = 4  # blocks in preparation at once: while one is located, another is copied or decoded


class Fill:
    """Prepares blocks of a Lake's rows for a Pond in the background: `runs` runs for each env.

        with Fill(lake, pond, seed=1) as fill:
            state = fill(state)       # adds the next block, prepared in the background

    The seed determines the order of blocks, so training is reproducible. Over many blocks, `choice`
    decides what is equally likely: every transition ("uniform"), every transition from row `since`
    of its stream on ("newest"), or every group ("balanced"). With "recent", the probability of a
    transition halves with every `half_life` rows of age. A run is `core` rows, plus the rows around
    them that the Pond's window needs. With small rows, more `runs` per block are faster, since
    every block costs a few calls. Up to five blocks are in host memory at a time, and as many on a
    Pond's device.
    """

    def __init__(
        self,
        lake: Lake,
        pond: Pond | HostPond,
        core: int = 64,
        seed: int = 0,
        choice: Choice = "uniform",
        half_life: float = 1e6,
        threads: int | None = None,
        runs: int = 1,
        since: int = 0,
    ) -> None:
        if pond.layout.name != "stream":
            raise BadConfig(
                f"fill: needs a Pond of layout 'stream', got '{pond.layout.name}': a block adds a "
                "run to every env at once"
            )
        if pond.spec.fingerprint() != lake.spec.fingerprint():
            raise BadConfig(
                "fill: the Pond's spec is not the Lake's; build the Pond with lake.spec"
            )
        # Not quite all CPUs: a thread that waits for one while it holds the interpreter lock blocks
        # all the others.
        cpus = len(os.sched_getaffinity(0))
        threads = threads or cpus - cpus // 8
        self.lake, self.pond = lake, pond
        device = isinstance(pond, Pond)
        self._into = pond.packed if device else pond
        self.runs = RowRuns(
            lake,
            pond.window,
            pond.streams,
            core,
            seed,
            choice,
            half_life,
            threads,
            packed=device,
            runs=runs,
            since=since,
        )
        if self.runs.rows > pond.length:
            raise BadConfig(
                f"fill: a block has {self.runs.rows} rows per env ({runs} runs of core {core} and "
                f"its context), the Pond keeps {pond.length}; lower core or runs, or raise the "
                "capacity"
            )
        self._pool: ThreadPoolExecutor | None = None
        self._ready: deque[Future[Rows]] = deque()  # in order
        self._left: int | None = None  # blocks still to be prepared; None: without end
        self._turn = 0
        # On a GPU: a buffer for each block in preparation and one for the block being transferred,
        # each created when its turn first comes.
        self._sent: list[Any] = [None] * (_AHEAD + 1)
        self._buffers: dict[int, dict[str, np.ndarray]] = {}

    @property
    def blocks(self) -> int:
        """The number of blocks that fill the whole Pond."""
        return self.pond.length // self.runs.rows

    def start(self, blocks: int | None = None) -> None:
        """Start preparing the blocks of the next calls; with `blocks`, only that number of them."""
        if blocks is not None:
            self._left = max(0, blocks - len(self._ready))
        elif not self._ready:
            self._left = None
        self._prepare()

    def _prepare(self) -> None:
        self._pool = self._pool or ThreadPoolExecutor(min(_AHEAD, self.runs.threads), "fill")
        while len(self._ready) < _AHEAD and self._left != 0:
            # Chosen here, in order: the result must not depend on which thread is first.
            cores, turn = self.runs.next_cores(), self._turn % len(self._sent)
            self._ready.append(self._pool.submit(self._block, cores, turn))
            self._turn += 1
            if self._left is not None:
                self._left -= 1

    def __call__(self, state: PondState | None = None) -> PondState | None:
        """Add the next block to a HostPond in place, or to a Pond's state, which is returned."""
        if isinstance(self.pond, Pond) and state is None:
            raise BadConfig("fill: pass the Pond's state")
        if not self._ready:
            self.start()
        next_ = self._ready[0]
        try:
            rows = next_.result(_PATIENCE)
        except BaseException as error:
            if isinstance(error, TimeoutError) and not next_.done():
                raise MillpondError(f"fill: no block was ready within {_PATIENCE:g} s") from None
            self.close()
            raise
        self._ready.popleft()
        self._prepare()
        pond = self._into
        if isinstance(pond, HostPond):
            pond.add(rows)
            return None
        assert state is not None
        return _add_block(pond, state, rows)

    def whole(self, state: PondState | None = None) -> PondState | None:
        """Replace the whole content of the Pond, starting from `init()` if no state is given."""
        if isinstance(self.pond, Pond) and state is None:
            state = self.pond.init()
        self.start(self.blocks)
        for _ in range(self.blocks):
            state = self(state)
        return state

    def refresh(self) -> None:
        """Include rows committed since; starts over with a new order of all rows."""
        self.close()
        self.lake.refresh()
        self.runs.refresh()

    def close(self) -> None:
        """Discard the blocks in preparation; a later call starts again."""
        self._ready.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None
        jax.block_until_ready(self._sent)  # until then a device may read from our buffers
        self._sent = [None] * len(self._sent)

    def __enter__(self) -> Fill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _block(self, cores: Cores, turn: int) -> Rows:
        """The rows of a block: [env, time] on the device, or [time, env] for a HostPond."""
        runs = self.runs
        if isinstance(self.pond, HostPond):
            return _time_first(runs.rows_of(cores))
        if jax.default_backend() != "gpu":
            return jax.device_put(runs.rows_of(cores))  # may alias these arrays: no buffer
        # Reuse a buffer only once its last block has arrived on the device.
        jax.block_until_ready(self._sent[turn])
        if turn not in self._buffers:
            self._buffers[turn] = self._new_buffers()
        rows = jax.device_put(runs.rows_of(cores, self._buffers[turn]))
        self._sent[turn] = rows
        return rows

    def _new_buffers(self) -> dict[str, np.ndarray]:
        runs = self.runs
        return {
            path: pinned_array((runs.envs, runs.rows, field.nbytes))
            for path, field in walk(self.lake.spec.obs, "obs")
        }


# Compiled once per Pond, however many Fills it has.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_block(pond: Pond, state: PondState, rows: Rows) -> PondState:
    return pond.add(state, _time_first(rows))


def _time_first(rows: Rows) -> Rows:
    """[env, time] → [time, env]; on a device, where that copy is fast."""

    def turn(leaf: Array) -> Array:
        return jnp.swapaxes(leaf, 0, 1) if isinstance(leaf, jax.Array) else leaf.swapaxes(0, 1)

    return jax.tree.map(turn, rows)


def fill(
    lake: Lake,
    pond: Pond | HostPond,
    core: int = 64,
    seed: int = 0,
    choice: Choice = "uniform",
    half_life: float = 1e6,
    threads: int | None = None,
) -> PondState | None:
    """Fill a whole Pond from a Lake: `state = fill(lake, pond, seed=1)`. A HostPond is filled in
    place."""
    with Fill(lake, pond, core, seed, choice, half_life, threads) as one:
        return one.whole()
