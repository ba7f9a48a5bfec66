"""`HostSequences`: fills batches of sequences from a host ring, given the slots of their starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rows import leaves
from ..sequence import Sequence, SequenceBatch, Span
from ..spec import Spec, walk
from .host_ring import HostRing


class HostSequences:
    """Takes the rows of sequences out of one ring, into arrays that are there."""

    def __init__(self, spec: Spec, sequence: Sequence, ring: HostRing) -> None:
        self._sequence, self._ring = sequence, ring
        self._obs = [path for path, _ in walk(spec.obs, "obs")]

    def fill(self, slots: np.ndarray, span: Span, batch: SequenceBatch) -> None:
        """Everything but draw and weight, from slots and what their flags say."""
        sequence, ring, layout = self._sequence, self._ring, self._ring.layout
        stream, position = (part[:, None] for part in layout.place(slots))
        rows = position + sequence.offsets(span, np)
        if rows[:, 0].min() < 0 or rows[:, -1].max() >= layout.length:
            rows %= layout.length
        flags = ring.flat_flags.take(layout.slot(stream, rows), mode="clip")
        begin = stream * layout.length
        where = begin + rows
        facts = sequence.facts(flags, span, np)
        for name in ("mask", "first", "terminated", "truncated", "discount"):
            getattr(batch, name)[...] = getattr(facts, name)
        steps = where[:, :-1]
        ring.stores["reward"].take_stretched(steps, batch.reward)
        batch.reward[...] = sequence.rewards(batch.reward, facts.mask, np)
        ring.stores["action"].take_stretched(steps, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                extra[...] = facts.life_lost
            else:
                ring.stores[f"extras/{name}"].take_stretched(steps, extra)
        padded: Any = None
        if sequence.stack > 1:
            offsets, padded = sequence.lookback(flags, span, np)
            where = begin[..., None] + (position[..., None] + offsets) % layout.length
        for path, out in zip(self._obs, leaves(batch.obs), strict=True):
            ring.stores[path].take_stretched(where, out, padded)
