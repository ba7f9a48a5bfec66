"""Sequences from a Lake: builds a `SequenceBatch` from judged starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rows import leaf
from ..sequence import Sequence, SequenceBatch
from .observations import Observations
from .reader import Reader


class Sequences:
    """Fills batches of one kind of `Sequence`."""

    def __init__(self, reader: Reader, sequence: Sequence, observations: Observations) -> None:
        self._reader, self._sequence, self._observations = reader, sequence, observations

    def assemble(self, found: Any, batch: SequenceBatch) -> None:
        """Fill the batch, except batch.draw and weight; invalid sequences are masked and zero."""
        sequence, columns, span = self._sequence, self._reader.columns, found.verdict
        here, offsets = sequence.before, sequence.offsets(span, np)
        one = np.arange(len(span.valid))[:, None]
        facts = sequence.facts(sequence.seen(span, np))
        valid = span.valid[:, None]
        for name in ("mask", "first", "terminated", "truncated", "discount"):
            getattr(batch, name)[...] = getattr(facts, name) * valid
        records = found.records[here + offsets[:, :-1], one]
        rewards = columns.small(records, "reward")
        batch.reward[...] = sequence.rewards(rewards, facts.mask & valid, np)
        batch.action[...] = columns.small(records, "action")
        for name, extra in batch.extras.items():
            if name == "life_lost":
                extra[...] = facts.life_lost & valid
            else:
                extra[...] = columns.small(records, f"extras/{name}")
        if sequence.stack > 1:
            flags = found.flags[here + offsets, one]
            offsets, padded = sequence.lookback(flags, span, np)
            slots = found.slots[here + offsets, one[..., None]]
            slots[padded] = -1
        else:
            slots = found.slots[here + offsets, one]
        slots[~span.valid] = -1
        for path in columns.obs:
            self._observations.spread(path, slots, leaf(batch.obs, path))
