"""`DeviceSequences`: judges the starts of sequences in a device ring and makes batches of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..rows import CUT, Array, Draw
from ..sequence import Sequence, SequenceBatch, Span
from ..spec import Spec, walk
from .bits import around, finished, remainder, settle
from .device_ring import DeviceRing, PondState


class DeviceSequences:
    """What a `Sequence` makes of the rows of one ring. Pure functions."""

    def __init__(self, spec: Spec, window: Sequence, ring: DeviceRing) -> None:
        self.spec, self.window, self.ring = spec, window, ring
        self._obs = {path for path, _ in walk(spec.obs, "obs")}

    def judge(self, state: PondState, stream: Array, position: Array) -> Span:
        """What the flags around these rows say."""
        span = self.window.judge(self.flags(state, stream, position), jnp)
        return span._replace(valid=span.valid & self.aligned(state, stream, position))

    def flags(self, state: PondState, stream: Array, position: Array) -> Array:
        """The flags bytes [rows, ...] of all rows that decide about starts.

        The newest row counts as cut: what follows it is not here yet, but the oldest row is.
        """
        window, ring = self.window, self.ring
        stream, position = stream[..., None], position[..., None]
        reach = np.arange(-window.before, window.length) % ring.length  # a burn-in may be longer
        near = around(position + reach, ring.length)
        newest = around(state.head - 1, ring.length)
        newest = newest[stream] if ring.layout.own_heads else newest
        flags = ring.flags_at(state, stream, near)  # as they lie, side by side
        return jnp.moveaxis(jnp.where(near == newest, flags | np.uint8(CUT), flags), -1, 0)

    def aligned(self, state: PondState, stream: Array, position: Array) -> Array:
        """Which rows have an id that is a multiple of `every`."""
        if self.window.every == 1:
            return jnp.ones(position.shape, bool)
        return remainder(self.ring.ids(state, stream, position), self.window.every) == 0

    def fill(
        self, state: PondState, stream: Array, position: Array, span: Span, mask: Array
    ) -> tuple[SequenceBatch, Array]:
        """The sequences that start at positions[batch] of streams[batch], with weight 1.

        One gather per column, at indices that are worked out once; and `zero` after them all.
        """
        sequence, ring = self.window, self.ring
        stream, position, span, mask = settle((stream, position, span, mask), state.zero)
        streams, start = stream[:, None], position[:, None]
        rows = around(start + sequence.offsets(span, jnp), ring.length)
        rows = settle(rows, state.zero)
        places: Any = (streams, rows)
        if sequence.stack > 1:
            flags = settle(ring.flags_at(state, streams, rows), state.zero)
            offsets, padded = sequence.lookback(flags, span, jnp)
            stacks = around(start[..., None] + offsets, ring.length)
            places = (streams[..., None], *settle((stacks, padded), state.zero))
        steps = (streams, rows[:, : sequence.time])
        stored = {
            path: ring.stored(state, path, *(places if path in self._obs else steps))
            for path in ring.columns
        }
        # As it lies in the ring: what is worked out from that need not be read once more.
        stored, zero = finished(stored, state.zero)
        taken = {path: ring.columns[path].decode(column) for path, column in stored.items()}
        if sequence.stack == 1:
            taken |= {path: jnp.expand_dims(taken[path], 2) for path in self._obs}
        facts = sequence.facts(sequence.seen(span, jnp))
        extras = {
            name: facts.life_lost if name == "life_lost" else taken[f"extras/{name}"]
            for name in self.spec.extras
        }
        batch = SequenceBatch(
            obs=self.spec.obs_tree(taken),
            action=taken["action"],
            reward=sequence.rewards(taken["reward"], facts.mask, jnp),
            discount=facts.discount,
            terminated=facts.terminated,
            truncated=facts.truncated,
            first=facts.first,
            mask=facts.mask & mask[:, None],
            weight=jnp.ones(stream.shape, np.float32),
            draw=Draw(stream, ring.ids(state, stream, position)),
            extras=extras,
        )
        return batch, zero
