"""`look`: check the contents of a Pond on the device, as evidence for the doctor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import NotEnoughData
from ..replay import HostPond, Pond, PondState
from ..return_check import places_of, return_of, same_return
from ..rows import BORDER, ENDED, breaks, pack_flags
from ..samplers import Prioritized
from ..window import Window
from .pond_audit import reward_bound

_DRAWN = 64  # samples that are drawn and checked


def look(pond: Pond[Any], state: PondState) -> dict[str, Any]:
    """The evidence as plain values; `state` is not changed."""
    arrays = pond.export(state)
    window: Any = pond.window
    layout: Any = pond.layout.name
    shape = pond.capacity, pond.num_envs
    host: HostPond[Any] = HostPond(pond.spec, *shape, window, pond.sampler, layout)
    host.restore(arrays)
    added = host.added
    ids = [np.arange(max(0, number - host.length), number) for number in added.tolist()]
    reward = np.zeros((host.streams, host.length), np.float32)
    byte = np.zeros((host.streams, host.length), np.uint8)
    broken = ended = 0
    for stream, rows in enumerate(ids):
        if not len(rows):
            continue
        held = host.read(np.full(len(rows), stream), rows)
        flags = pack_flags(held.flags, held.terminated, held.truncated, None)
        at = rows % host.length
        reward[stream, at], byte[stream, at] = held.reward, flags
        ended += int(np.count_nonzero(flags & ENDED))
        if not pond.layout.whole:
            broken += int(np.count_nonzero(breaks(flags[:-1], flags[1:])))
    checked, wrong = _check_returns(pond, state, host, reward, byte)
    size = np.abs(reward[(byte & BORDER) == 0])
    faults = int(np.asarray(state.faults).sum())
    return {
        "looked": True,
        "held": sum(map(len, ids)),
        "ended": ended,
        "border_breaks": broken,
        "faults": faults,
        "rewards_nonzero": int(np.count_nonzero(size)),
        "reward_max": float(size.max(initial=0)),
        "returns_checked": checked,
        "returns_wrong": wrong,
        "stored": host.size,
        "capacity": pond.capacity,
        "ranked": isinstance(pond.sampler, Prioritized),
        **reward_bound(window),
    }


def _check_returns(
    pond: Pond[Any], state: PondState, host: HostPond[Any], reward: np.ndarray, byte: np.ndarray
) -> tuple[int, int]:
    """Compare the device's returns for some starts with those of the stored rows."""
    window: Any = pond.window
    steps = window.n_step if isinstance(window, Window) else 1
    if pond.layout.whole and steps > 1:
        return 0, 0
    try:
        drawn = host.sample(_DRAWN).draw
    except NotEnoughData:
        return 0, 0
    batch = pond.take(state, drawn.stream, (drawn.row % host.length).astype(np.int32))
    mask = np.asarray(batch.mask)
    stream, ids = places_of(window, drawn.stream, drawn.row, mask)
    added, checked, wrong = host.added, 0, 0
    for i in zip(*np.nonzero(mask), strict=True):
        if int(ids[i]) + steps > int(added[stream[i]]) or int(ids[i]) < 0:
            continue
        where = int(stream[i]), (int(ids[i]) + np.arange(steps)) % host.length
        wanted = return_of(reward[where], byte[where], window)
        checked += 1
        wrong += not same_return((batch.reward[i], batch.discount[i]), wanted)
    return checked, wrong
