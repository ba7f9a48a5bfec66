"""`DeviceSequences`: judges the starts of sequences in a device ring and makes batches of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..rows import CUT, Array, Draw
from ..sequence import Sequence, SequenceBatch, Span
from ..spec import Spec, walk
from .bits import around, remainder, settle
from .device_ring import DeviceRing, PondState


class DeviceSequences:
    """What a `Sequence` makes of the rows of one ring. Pure functions."""

    def __init__(self, spec: Spec, window: Sequence, ring: DeviceRing) -> None:
        self.spec, self.window, self.ring = spec, window, ring
        self._obs = [path for path, _ in walk(spec.obs, "obs")]

    def judge(self, state: PondState, stream: Array, position: Array) -> Span:
        """What the flags around these rows say."""
        span = self.window.judge(self.flags(state, stream, position), jnp)
        return span._replace(valid=span.valid & self.aligned(state, stream, position))

    def flags(self, state: PondState, stream: Array, position: Array) -> Array:
        """The flags bytes [rows, ...] of all rows that decide about starts.

        The newest row counts as cut: what follows it is not here yet, but the oldest row is.
        """
        window, ring = self.window, self.ring
        reach = np.arange(-window.before, window.length).reshape(-1, *(1,) * stream.ndim)
        near = around(position + reach, ring.length)
        newest = around(state.head - 1, ring.length)
        newest = newest[stream] if ring.layout.own_heads else newest
        flags = ring.flags_at(state, stream, near)
        return jnp.where(near == newest, flags | np.uint8(CUT), flags)

    def aligned(self, state: PondState, stream: Array, position: Array) -> Array:
        """Which rows have an id that is a multiple of `every`."""
        if self.window.every == 1:
            return jnp.ones(position.shape, bool)
        return remainder(self.ring.ids(state, stream, position), self.window.every) == 0

    def fill(
        self, state: PondState, stream: Array, position: Array, span: Span, mask: Array
    ) -> SequenceBatch:
        """The sequences that start at positions[batch] of streams[batch], with weight 1.

        One gather per column, at indices that are worked out once.
        """
        sequence, ring = self.window, self.ring
        stream, position, span, mask = settle((stream, position, span, mask), state.zero)
        streams, start = stream[:, None], position[:, None]
        rows = around(start + sequence.offsets(span, jnp), ring.length)
        rows = settle(rows, state.zero)
        flags = settle(ring.flags_at(state, streams, rows), state.zero)
        facts = sequence.facts(flags, span, jnp)
        steps = rows[:, : sequence.time]

        def at(path: str) -> Array:
            return ring.take(state, path, streams, steps)

        if sequence.stack == 1:  # nothing to pad
            obs = {path: ring.take(state, path, streams, rows)[:, :, None] for path in self._obs}
        else:
            offsets, padded = sequence.lookback(flags, span, jnp)
            stacks = around(start[..., None] + offsets, ring.length)
            stacks, padded = settle((stacks, padded), state.zero)
            obs = {
                path: ring.take(state, path, streams[..., None], stacks, padded)
                for path in self._obs
            }
        extras = {
            name: facts.life_lost if name == "life_lost" else at(f"extras/{name}")
            for name in self.spec.extras
        }
        return SequenceBatch(
            obs=self.spec.obs_tree(obs),
            action=at("action"),
            reward=sequence.rewards(at("reward"), facts.mask, jnp),
            discount=facts.discount,
            terminated=facts.terminated,
            truncated=facts.truncated,
            first=facts.first,
            mask=facts.mask & mask[:, None],
            weight=jnp.ones(stream.shape, np.float32),
            draw=Draw(stream, ring.ids(state, stream, position)),
            extras=extras,
        )
