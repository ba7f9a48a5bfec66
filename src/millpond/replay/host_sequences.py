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
        rows = (position + sequence.offsets(span, np)) % layout.length
        where = layout.slot(stream, rows)
        flags = ring.flat_flags.take(where)
        facts = sequence.facts(flags, span, np)
        for name in ("mask", "first", "terminated", "truncated", "discount"):
            getattr(batch, name)[...] = getattr(facts, name)
        steps = where[:, :-1]
        ring.stores["reward"].take_around(steps, batch.reward)
        batch.reward[...] = sequence.rewards(batch.reward, facts.mask, np)
        ring.stores["action"].take_around(steps, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                extra[...] = facts.life_lost
            else:
                ring.stores[f"extras/{name}"].take_around(steps, extra)
        if sequence.stack > 1:
            offsets, padded = sequence.lookback(flags, span, np)
            stacks = (position[..., None] + offsets) % layout.length
            where: Any = layout.slot(stream[..., None], stacks)
            for path, out in zip(self._obs, leaves(batch.obs), strict=True):
                ring.stores[path].take_padded(where, padded, out)
        else:
            for path, out in zip(self._obs, leaves(batch.obs), strict=True):
                ring.stores[path].take_around(where, out)
