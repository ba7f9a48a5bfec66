"""The replay of your own loop, examined: `examine_replay(pond)`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig, NotEnoughData, RowsGone
from ..lake import Lake
from ..replay import HostPond, Pond
from ..rows import Rows
from ..window import Window
from .draw_checks import of_pond
from .play import Play
from .play_checks import examined
from .timing_checks import timing
from .transition_checks import rebuilt
from .verdict import Verdict, unknown, worst_first

_TURNS, _STREAMS = 400, 128
_BYTES = 64 << 20


def examine_replay(replay: Pond | HostPond | Lake, state: Any = None) -> list[Verdict]:
    """What the rows of any replay say, worst first; of a Pond with its `state`.

    Its newest rows are read: rewards, observations, ends, resets, copies, whether rewards and
    actions stand in their own rows; and transitions that it draws are rebuilt from their rows.
    Nothing is changed. `examine_replay(pond, state)`, `examine_replay(Lake.open("lake"))`.
    """
    if isinstance(replay, Pond) != (state is not None):
        raise BadConfig("examine_replay: a Pond is given with its state, others are given alone")
    drawn: list[Verdict]
    if isinstance(replay, Pond):
        play = _of_pond(replay, state)
        drawn = of_pond(replay, state)
    elif isinstance(replay, HostPond):
        play = _of_host_pond(replay)
        drawn = _host_draws(replay)
    else:
        play, drawn = _of_lake(replay), [_lake_draws(replay)]
    found = drawn
    if play is None:
        found.append(unknown("rows", "it holds no two rows of a stream, or rows without an order"))
    else:
        found += [*examined(play), *timing(play)]
    return worst_first(found)


def _sizes(spec: Any, streams: int, size: int) -> tuple[int, int]:
    """Streams and turns that are read: whole streams rather than short ones."""
    each = max(1, sum(f.size * max(4, f.dtype.itemsize) for f in spec.columns.values()))
    turns = min(size, _TURNS)
    some = max(1, min(streams, _STREAMS, _BYTES // (each * max(1, turns))))
    return some, min(turns, max(32, _BYTES // (each * some)))


def _of_pond(pond: Pond, state: Any) -> Play | None:
    added = pond.added(state)
    size = int(min(added.min(), pond.length))
    if size < 2 or pond.layout.name == "shared":
        return None
    streams, turns = _sizes(pond.spec, pond.streams, size)
    ids = added[None, :streams] - turns + np.arange(turns)[:, None]
    stream = np.broadcast_to(np.arange(streams), ids.shape)
    position = (ids % pond.length).astype(np.int32)
    rows = pond.read(state, jnp.asarray(stream), jnp.asarray(position))
    return Play.of(pond.spec, jax.device_get(rows), "the replay")


def _of_host_pond(pond: HostPond) -> Play | None:
    added = pond.added
    size = int(min(added.min(), pond.length))
    if size < 2 or pond.layout.name == "shared":
        return None
    streams, turns = _sizes(pond.spec, pond.streams, size)
    ids = added[None, :streams] - turns + np.arange(turns)[:, None]
    stream = np.broadcast_to(np.arange(streams), ids.shape)
    return Play.of(pond.spec, pond.read(stream, ids), "the replay")


def _host_draws(pond: HostPond) -> list[Verdict]:
    name = "replay-transitions"
    if not isinstance(pond.window, Window):
        return [unknown(name, "sequences are not rebuilt here")]
    if pond.layout.name == "shared" or not pond.can_sample():
        return [unknown(name, "there is nothing to draw yet, or no order of rows")]
    # Drawn and read one after the other: whoever adds rows meanwhile may overwrite them.
    batch: Any = pond.sample(256)
    try:
        return [rebuilt(pond.window, batch, pond.read, name)]
    except RowsGone:
        return [unknown(name, "rows were overwritten meanwhile: ask again while nobody adds")]


def _of_lake(lake: Lake) -> Play | None:
    streams = [one for one in lake.streams if one.stop - one.first >= 2]
    if not streams:
        return None
    longest = max(one.stop - one.first for one in streams)
    # Streams of about one length, so that all are read over the same number of rows.
    kept = [one for one in streams if one.stop - one.first >= min(longest, _TURNS) // 2][:_STREAMS]
    some, turns = _sizes(lake.spec, len(kept), min(one.stop - one.first for one in kept))
    parts = [lake.read(one.number, one.stop - turns, one.stop) for one in kept[:some]]
    rows: Rows = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *parts)
    return Play.of(lake.spec, rows, "the Lake")


def _lake_draws(lake: Lake) -> Verdict:
    name, window = "replay-transitions", Window()
    try:
        batch = lake.sample(np.random.default_rng(0), 128, window)
    except NotEnoughData:
        return unknown(name, "there is nothing to draw yet")

    def read(stream: np.ndarray, ids: np.ndarray) -> Rows:
        each = [
            lake.read(int(s), int(i), int(i) + 1)
            for s, i in zip(stream.flat, ids.flat, strict=True)
        ]
        return jax.tree.map(
            lambda *leaves: np.concatenate(leaves).reshape(*stream.shape, *leaves[0].shape[1:]),
            *each,
        )

    return rebuilt(window, batch, read, name)
