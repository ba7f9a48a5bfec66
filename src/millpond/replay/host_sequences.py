"""`HostSequences`: fills batches of sequences from a host ring, given the slots of their starts."""

from __future__ import annotations

import numpy as np

from ..rows import leaves
from ..sequence import Sequence, SequenceBatch, Span
from ..spec import Spec, walk
from .host_ring import HostRing
from .stretches import Places, Stretches

_BYTES = np.arange(256, dtype=np.uint8)
_NONE = np.zeros(0, np.int64)


class HostSequences:
    """Takes the rows of sequences out of one ring, into arrays that are there."""

    def __init__(self, spec: Spec, sequence: Sequence, ring: HostRing) -> None:
        self._sequence, self._ring = sequence, ring
        self._obs = [path for path, _ in walk(spec.obs, "obs")]
        self._stretches = {
            path: Stretches(store, sequence.time + (path in self._obs))
            for path, store in ring.stores.items()
        }
        self._facts = sequence.facts(_BYTES)  # what every flags byte says

    def fill(self, slots: np.ndarray, span: Span, batch: SequenceBatch) -> None:
        """Everything but draw and weight, from slots and what their flags say."""
        sequence, facts = self._sequence, self._facts
        stream, position = self._ring.layout.place(slots)
        seen = sequence.seen(span, np).astype(np.intp)  # once, for all look-ups
        for name in ("mask", "first", "terminated", "truncated", "discount"):
            getattr(facts, name).take(seen, out=getattr(batch, name), mode="clip")
        places = self._places(stream, position, span)
        self._stretches["reward"].take(places, batch.reward)
        if sequence.reward_clip:
            np.clip(batch.reward, -sequence.reward_clip, sequence.reward_clip, out=batch.reward)
        np.copyto(batch.reward, 0, where=~batch.mask)
        self._stretches["action"].take(places, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                facts.life_lost.take(seen, out=extra, mode="clip")
            else:
                self._stretches[f"extras/{name}"].take(places, extra)
        if sequence.stack > 1:
            self._take_stacks(stream[:, None], position[:, None], span, batch)
            return
        for path, out in zip(self._obs, leaves(batch.obs), strict=True):
            self._stretches[path].take(places, out)

    def _places(self, stream: np.ndarray, position: np.ndarray, span: Span) -> Places:
        """Of sequences whose starts are at these positions of these streams."""
        sequence, length = self._sequence, self._ring.length
        begin, first = stream * length, position - sequence.burn_in
        whole = (first >= 0) & (first < length - sequence.time) & sequence.whole(span)
        if b"\0" not in whole.tobytes():
            return Places(begin + first, slice(None), _NONE, _NONE)
        kept, rest = whole.nonzero()[0], (~whole).nonzero()[0]
        some = span._replace(back=span.back[rest], until=span.until[rest])
        rows = position[rest, None] + sequence.offsets(some, np)
        rows = begin[rest, None] + rows % length
        return Places((begin + first)[kept], kept, rest, rows)

    def _take_stacks(
        self, stream: np.ndarray, position: np.ndarray, span: Span, batch: SequenceBatch
    ) -> None:
        """The stacks of observations, of starts at positions[batch, 1] of streams[batch, 1]."""
        sequence, layout = self._sequence, self._ring.layout
        rows = (position + sequence.offsets(span, np)) % layout.length
        flags = self._ring.flat_flags.take(layout.slot(stream, rows), mode="clip")
        offsets, padded = sequence.lookback(flags, span, np)
        rows = (position[..., None] + offsets) % layout.length
        where = stream[..., None] * layout.length + rows
        for path, out in zip(self._obs, leaves(batch.obs), strict=True):
            self._ring.stores[path].take_stretched(where, out, padded)
