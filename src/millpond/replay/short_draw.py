"""`ShortDraw`: the fast path for sampling small batches of single transitions from a host ring."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..host_random import HostRandom
from ..rows import Batch
from ..samplers import Proposer, Uniform
from ..window import Judgement
from .host_batches import HostBatches
from .host_starts import HostStarts

_FEW = 128  # starts; above that, the slow path is faster
_TRUE, _ZERO, _ONE = np.True_, np.int32(0), np.int32(1)


class ShortDraw:
    """Draws uniformly where validity depends on a single flags byte, and fills a batch.

    It draws a few more starts than wanted and takes the first valid ones, which has the same
    distribution as redrawing invalid ones. It declines if too few are valid or streams are in a
    state it cannot handle; the slow path (`HostStarts.draw`) then takes over.
    """

    def __init__(self, starts: HostStarts, batches: HostBatches) -> None:
        self._starts, self._batches, self._ring = starts, batches, starts.ring
        self._length, self._streams = starts.layout.length, starts.layout.streams
        assert starts.verdicts
        self._valid = starts.verdicts.valid
        self._good = bytes(np.flatnonzero(self._valid).tolist())
        # Slots after which the ring wraps around: the last of every stream.
        self._ends = set((np.arange(1, self._streams + 1) * self._length - 1).tolist())

    @staticmethod
    def of(sampler: Proposer, starts: HostStarts, batches: HostBatches) -> ShortDraw | None:
        """The fast path for a ring, if batches of this kind can take it."""
        plain = type(sampler) is Uniform and starts.verdicts and not starts.layout.whole
        return ShortDraw(starts, batches) if plain else None

    def fill(self, random: HostRandom, batch: Batch) -> bool:
        """Fill a batch, except its mask and weight; False if it was declined."""
        ring, number = self._ring, len(batch.reward)
        if self._streams > 1 and ring.layout.own_heads:
            return number <= _FEW and self._fill_uneven(random, batch, number)
        added, streams = ring.each, self._streams
        stored = min(added, self._length)
        if stored < 2:  # or streams are not in lockstep
            return False
        drawn = random.generator.integers(0, (stored - 1) * streams, number + number // 4 + 8)
        oldest = added - stored
        base = oldest % self._length * streams
        drawn, flags = self._first(drawn, drawn + base if base else drawn, number)
        if flags is None:
            return False
        slots = drawn + base if base else drawn
        self._fill(slots, flags, batch, slots + streams)
        stream, row, _ = batch.draw
        if streams == 1:
            stream.fill(0)
            np.add(drawn, oldest, out=row)
        else:
            np.divmod(drawn, streams, out=(row, stream), casting="same_kind")
            np.add(row, oldest, out=row)
        return True

    def _first(self, drawn: np.ndarray, slots: np.ndarray, number: int) -> tuple[Any, Any]:
        """The first `number` valid starts and their flags (None: too few are valid)."""
        flags = self._ring.flat_flags.take(slots, mode="wrap")
        if flags.tobytes().translate(None, self._good):
            valid = self._valid.take(flags, mode="clip")
            drawn, flags = drawn[valid], flags[valid]
            if len(drawn) < number:
                return drawn, None
        return drawn[:number], flags[:number]

    def _fill(self, slots: np.ndarray, flags: np.ndarray, batch: Batch, after: np.ndarray) -> None:
        self._batches.fill(slots, Judgement(_TRUE, _ZERO, _ONE, flags, flags), batch, after)

    def _fill_uneven(self, random: HostRandom, batch: Batch, number: int) -> bool:
        """`fill` for several streams with their own heads."""
        ring, length = self._ring, self._length
        heads: list[int] = ring.added.tolist()
        most, least = max(heads), min(heads)
        if most < 2:
            return False
        drawn = random.generator.integers(
            0, min(most, length) * self._streams, number + number // 4 + 8
        )
        if least < length:  # rows never written are not valid
            stream, position = np.divmod(drawn, min(most, length))
            drawn = stream * length + position
        slots, flags = self._first(drawn, drawn, number)
        if flags is None:
            return False
        chosen = slots.tolist()
        newest = {env * length + (head - 1) % length for env, head in enumerate(heads)}
        if not newest.isdisjoint(chosen):  # their next rows do not exist yet
            return False
        after = slots + 1
        if not self._ends.isdisjoint(chosen):
            after -= (after % length == 0) * length
        self._fill(slots, flags, batch, after)
        stream, row, _ = batch.draw
        np.divmod(slots, length, out=(stream, row), casting="same_kind")
        if most > length:
            added = ring.added.take(stream)
            row += added - added % length
            row -= (row >= added) * length
        return True
