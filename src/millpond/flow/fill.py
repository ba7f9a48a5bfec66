"""`fill`: rows of a Lake become a Pond's content, whole or a block at a time, beside training."""

from __future__ import annotations

import functools
import os
import queue
import threading
from contextlib import suppress
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
from .runs import Choice, Runs

_PATIENCE = 600.0  # seconds after which waiting for a block is an error
_AHEAD = 2  # blocks prepared while one is in use


class Fill:
    """Keeps blocks of a Lake's rows ready for a Pond: `runs` runs for every env of it.

        with Fill(lake, pond, seed=1) as fill:
            state = fill(state)       # adds the next block, which was prepared meanwhile

    Blocks come in an order that the seed decides, so runs that call at the same updates get the
    same rows. Over many blocks every transition is equally likely (`choice="uniform"`), every
    group (`"balanced"`), or newer rows likelier by half per `half_life` rows (`"recent"`).
    A Pond of another window than the Lake's users have is fine: the Pond's own is used. Where rows
    are small more `runs` in a block are faster, since every block costs a few calls.
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
        threads = threads or len(os.sched_getaffinity(0))
        self.lake, self.pond = lake, pond
        device = isinstance(pond, Pond)
        self._into = pond.packed if device else pond
        self.runs = Runs(
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
        )
        if self.runs.rows > pond.length:
            raise BadConfig(
                f"fill: a block has {self.runs.rows} rows per env ({runs} runs of core {core} and "
                f"its context), the Pond keeps {pond.length}; lower core or runs, or raise the "
                "capacity"
            )
        self._ready: queue.Queue[Any] = queue.Queue(1)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._buffers: list[dict[str, np.ndarray]] = []
        self._sent: list[Any] = [None] * _AHEAD

    @property
    def blocks(self) -> int:
        """Blocks that fill the whole Pond."""
        return self.pond.length // self.runs.rows

    def __call__(self, state: PondState | None = None) -> PondState | None:
        """Add the next block; a HostPond changes itself, a Pond's new state is returned."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fill", daemon=True)
            self._thread.start()
        try:
            rows = self._ready.get(timeout=_PATIENCE)
        except queue.Empty:
            raise MillpondError(f"fill: no block was ready within {_PATIENCE:.0f} s") from None
        if isinstance(rows, BaseException):
            self.close()
            raise rows
        pond = self._into
        if isinstance(pond, HostPond):
            pond.add(rows)
            return None
        if state is None:
            raise BadConfig("fill: pass the Pond's state")
        return _add_block(pond, state, rows)

    def whole(self, state: PondState | None = None) -> PondState | None:
        """Replace everything the Pond holds (a fresh state if none is given)."""
        if isinstance(self.pond, Pond) and state is None:
            state = self.pond.init()
        for _ in range(self.blocks):
            state = self(state)
        return state

    def refresh(self) -> None:
        """Take in what was committed since. Blocks prepared before come first."""
        self.close()
        self.lake.refresh()
        self.runs.look()

    def close(self) -> None:
        """End the background thread; a later call starts it again."""
        self._stop.set()
        if self._thread is not None:
            while self._thread.is_alive():
                with suppress(queue.Empty):
                    self._ready.get_nowait()  # it may be waiting to hand over a block
                self._thread.join(0.005)
        self._thread, self._ready = None, queue.Queue(1)
        self._stop.clear()

    def __enter__(self) -> Fill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            turn = 0
            while not self._stop.is_set():
                rows = self._block(turn)
                turn += 1
                self._hand_over(rows)
        except BaseException as error:
            self._hand_over(error)

    def _hand_over(self, what: Any) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(what, timeout=0.1)
                return
            except queue.Full:
                continue

    def _block(self, turn: int) -> Rows:
        """The next block, on the device (or [time, env] on the host)."""
        runs = self.runs
        if isinstance(self.pond, HostPond):
            return _time_first(runs.block())
        if jax.default_backend() != "gpu":
            return jax.device_put(runs.block())  # it may keep these arrays: they are not reused
        if not self._buffers:
            self._buffers = [self._new_buffers() for _ in range(_AHEAD)]
        # While one block travels to the device the next is gathered; a buffer is written again
        # only when its last block has arrived.
        mine = turn % _AHEAD
        jax.block_until_ready(self._sent[mine])
        rows = jax.device_put(runs.block(self._buffers[mine]))
        self._sent[mine] = rows
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
