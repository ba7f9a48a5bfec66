"""`HostRanks`: priorities of a host ring's starts, and sampling by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..host_random import HostRandom
from ..rows import Batch, Draw
from ..samplers import Prioritized
from ..sequence import SequenceBatch
from ..spec import mismatch
from .host_starts import HostStarts
from .priorities import LARGEST, HostTree, one_per_draw


class HostRanks:
    """A sum tree over the valid starts of one ring; a start's mass is priority^alpha."""

    def __init__(self, sampler: Prioritized, starts: HostStarts) -> None:
        self._sampler, self._starts, self._ring = sampler, starts, starts.ring
        self.tree = HostTree(starts.layout.capacity)
        self.highest, self.samples = 1.0, 0
        self._streams = np.arange(starts.layout.streams)

    def mark(self) -> Any:
        """The rows added so far; call before an add, and pass the result to `follow` after it."""
        return self._ring.each if self._ring.lockstep else self._ring.added.copy()

    def follow(self, before: Any) -> None:
        """After an add: new starts get the highest mass seen, those that became too old get 0."""
        ring, window = self._ring, self._starts.window
        if np.ndim(before) == 0 and ring.lockstep:
            streams, before, added = self._streams, np.int64(before), np.int64(ring.each)
        else:
            before = np.broadcast_to(before, self._streams.shape)
            streams = np.flatnonzero(before != ring.added)
            before, added = before[streams], ring.added[streams]
        if not len(streams):
            return
        # All streams at once, even if they are not in lockstep.
        low0, high0 = ring.old_enough(window, before)
        low1, high1 = ring.old_enough(window, added)
        end = np.minimum(low1, high0)
        self._give(streams, np.maximum(low0, end - ring.length), end, 0.0)
        self._give(streams, np.maximum(high0, low1), high1, self.highest)

    def _give(self, streams: np.ndarray, start: Any, stop: Any, mass: float) -> None:
        """Set the mass of valid starts among the rows start ... stop - 1 of every stream."""
        slots = self._span(streams, start, stop)
        if not len(slots):
            return
        masses = self._starts.judge(slots).valid * mass if mass else np.zeros(len(slots))
        side_by_side = not (np.ndim(start) or self._starts.layout.own_heads)
        if side_by_side and stop - start == 1:  # one step of all envs
            self.tree.assign_run(int(slots[0]), masses)
        else:
            self.tree.assign_each(slots, masses)

    def _span(self, streams: np.ndarray, start: Any, stop: Any) -> np.ndarray:
        """Slots of the rows start ... stop - 1 of every stream."""
        if np.ndim(start) == 0:  # the same rows of all streams, in memory order
            return self._starts.slots(streams, np.arange(start, stop)[:, None]).ravel()
        count = np.maximum(stop - start, 0)
        if (count == 1).all():  # a step of these streams
            return self._starts.slots(streams, start)
        ends = count.cumsum()
        ids = np.arange(ends[-1]) + (start - ends + count).repeat(count)
        return self._starts.slots(streams.repeat(count), ids)

    def draw(self, random: HostRandom, batch: Batch | SequenceBatch) -> tuple[np.ndarray, Any]:
        """Draw starts: returns their slots and verdicts, and fills batch.draw and batch.weight."""
        number = len(batch.weight)
        slots, mass, total = self.tree.draw(random.generator, number)
        if total <= 0:
            raise self._starts.too_few(number)
        stream, position = self._starts.layout.place(slots)
        batch.draw.stream[:], batch.draw.row[:] = stream, self._ring.ids(stream, position)
        if batch.draw.probability is not None:
            np.divide(mass, total, out=batch.draw.probability, casting="same_kind")
        self._sampler.weigh(mass, self.samples, batch.weight)
        self.samples += 1
        return slots, self._starts.judge(slots)

    def update(self, draw: Draw, priorities: Any) -> None:
        """Set new priorities[batch] for drawn rows; rows overwritten since are ignored."""
        starts, streams = self._starts, len(self._streams)
        priorities = one_per_draw(draw, np.asarray(priorities)).astype(np.float64)
        stream, row = np.asarray(draw.stream), draw.ids()
        wrong = ~((priorities >= 0) & (priorities <= LARGEST))
        if wrong.any():
            at = int(np.argmax(wrong))
            got = f"{priorities[at]} at index {at}"
            wanted = f"numbers >= 0, up to {LARGEST:g}"
            raise mismatch("priorities", wanted, got, "look for NaN or a diverging loss")
        if row.size and not 0 <= stream.min() <= stream.max() < streams:
            wanted = f"0 ... {streams - 1}"
            raise mismatch("draw.stream", wanted, "others", "pass this ring's batch.draw")
        here, slots = starts.here(stream, row), starts.slots(stream, row)
        if not here.all():
            slots, priorities = slots[here], priorities[here]
        mass = priorities**self._sampler.alpha * starts.judge(slots).valid
        self.highest = max(self.highest, float(mass.max(initial=0.0)))
        self.tree.assign(slots, mass)

    def pack(self) -> tuple[np.ndarray, float, int]:
        """Masses of all slots, the highest mass seen, and how many batches were drawn."""
        return self.tree.leaves[: self.tree.capacity], self.highest, self.samples

    def unpack(self, packed: tuple[np.ndarray, float, int]) -> None:
        """Restore what `pack` returned."""
        mass, self.highest, self.samples = packed
        self.tree.rebuild(mass)
