"""`fill`: rows of a Lake become a Pond's content, whole or a block at a time, during training."""

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
from .pinned import staging
from .row_runs import Choice, Dealt, RowRuns

_PATIENCE = 600.0  # seconds after which waiting for a block is an error
_AHEAD = 4  # blocks in preparation at once: while one is looked up another is copied or decoded


class Fill:
    """Keeps blocks of a Lake's rows ready for a Pond: `runs` runs for every env of it.

        with Fill(lake, pond, seed=1) as fill:
            state = fill(state)       # adds the next block, which was prepared meanwhile

    Blocks come in an order that the seed decides, so runs that call at the same updates get the
    same rows. Over many blocks every transition is equally likely (`choice="uniform"`), every one
    from row `since` of its stream on (`"newest"`), every group (`"balanced"`), or newer rows, half
    as likely per `half_life` rows of age (`"recent"`).
    The Pond may have any window: its own is used. Where rows are small, more `runs` in
    a block are faster, since every block costs a few calls. Up to five blocks are in the host's
    memory at a time, and as many on a Pond's device.
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
                f"fill: needs a Pond of layout 'stream', got '{pond.layout.name}': runs of all "
                "envs are added together"
            )
        if pond.spec.fingerprint() != lake.spec.fingerprint():
            raise BadConfig(
                "fill: the Pond's spec is not the Lake's; build the Pond with lake.spec"
            )
        # Not quite all cores: a thread that must wait for one while it holds the interpreter holds
        # up all others.
        cores = len(os.sched_getaffinity(0))
        threads = threads or cores - cores // 8
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
            together=runs,
            since=since,
        )
        if self.runs.rows > pond.length:
            raise BadConfig(
                f"fill: a block has {self.runs.rows} rows per env ({runs} runs of core {core} and "
                f"its context), the Pond keeps {pond.length}; lower core or runs, or raise the "
                "capacity"
            )
        self._pool: ThreadPoolExecutor | None = None
        self._ready: deque[Future[Rows]] = deque()  # in their order
        self._left: int | None = None  # blocks to prepare yet; None: no end
        self._turn = 0
        # On a GPU: one place more than blocks in preparation, for the one that travels there. A
        # buffer is made when its turn first comes.
        self._sent: list[Any] = [None] * (_AHEAD + 1)
        self._buffers: dict[int, dict[str, np.ndarray]] = {}

    @property
    def blocks(self) -> int:
        """Blocks that fill the whole Pond."""
        return self.pond.length // self.runs.rows

    def start(self, blocks: int | None = None) -> None:
        """Begin to prepare now what the next calls add; given a number, that many blocks in all."""
        if blocks is not None:
            self._left = max(0, blocks - len(self._ready))
        elif not self._ready:
            self._left = None
        self._prepare()

    def _prepare(self) -> None:
        self._pool = self._pool or ThreadPoolExecutor(min(_AHEAD, self.runs.threads), "fill")
        while len(self._ready) < _AHEAD and self._left != 0:
            # Dealt here, in order: which thread comes first must not matter.
            dealt, turn = self.runs.deal(), self._turn % len(self._sent)
            self._ready.append(self._pool.submit(self._block, dealt, turn))
            self._turn += 1
            if self._left is not None:
                self._left -= 1

    def __call__(self, state: PondState | None = None) -> PondState | None:
        """Add the next block; a HostPond changes itself, a Pond's new state is returned."""
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
        """Replace everything the Pond holds (a fresh state if none is given)."""
        if isinstance(self.pond, Pond) and state is None:
            state = self.pond.init()
        self.start(self.blocks)
        for _ in range(self.blocks):
            state = self(state)
        return state

    def refresh(self) -> None:
        """Take in what was committed since; a new order of all rows begins."""
        self.close()
        self.lake.refresh()
        self.runs.look()

    def close(self) -> None:
        """Discard the blocks in preparation; a later call begins again."""
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

    def _block(self, dealt: Dealt, turn: int) -> Rows:
        """A block, on the device (or [time, env] on the host)."""
        runs = self.runs
        if isinstance(self.pond, HostPond):
            return _time_first(runs.rows_of(dealt))
        if jax.default_backend() != "gpu":
            return jax.device_put(runs.rows_of(dealt))  # it may keep these arrays: not reused
        # A buffer is written again only when its last block has arrived.
        jax.block_until_ready(self._sent[turn])
        if turn not in self._buffers:
            self._buffers[turn] = self._new_buffers()
        rows = jax.device_put(runs.rows_of(dealt, self._buffers[turn]))
        self._sent[turn] = rows
        return rows

    def _new_buffers(self) -> dict[str, np.ndarray]:
        runs = self.runs
        return {
            path: staging((runs.envs, runs.rows, field.nbytes))
            for path, field in walk(self.lake.spec.obs, "obs")
        }


# Compiled once for a Pond, however many fills it sees.
@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_block(pond: Pond, state: PondState, rows: Rows) -> PondState:
    return pond.add(state, _time_first(rows))


def _time_first(rows: Rows) -> Rows:
    """[env, time] → [time, env]; on a device the copy runs at its memory's speed."""

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
    """Fill a whole Pond from a Lake: `state = fill(lake, pond, seed=1)`; a HostPond in place."""
    with Fill(lake, pond, core, seed, choice, half_life, threads) as one:
        return one.whole()
