"""`HostStarts`: judges which rows of a host ring are valid starts, and draws from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import NotEnoughData
from ..host_random import HostRandom
from ..rows import CUT, Draw
from ..samplers import Eligible, Proposer, Stratified, uniform
from ..sequence import AnyWindow, Sequence, Span
from ..window import Judgement, Window
from .host_ring import HostRing

_ROUNDS = 64  # redraws before all valid starts are listed instead
_BYTES = np.arange(128, dtype=np.uint8)
_ZERO, _ONE = np.int32(0), np.int32(1)


class HostStarts:
    """Judges the starts of one ring; the caller holds the ring's lock."""

    def __init__(self, window: AnyWindow, ring: HostRing, num_envs: int) -> None:
        self.window, self.ring, self.layout = window, ring, ring.layout
        self._interleaved = num_envs if self.layout.whole else 1
        self._known = np.zeros(1, np.int64), np.full(1, -1)  # stream and id of a valid start
        self.reach = np.arange(-window.before, window.n_step)
        # If a start depends on one flags byte only, all 128 verdicts are precomputed.
        single = len(self.reach) == 1 and isinstance(window, Window)
        self.verdicts = window.judge(_BYTES[None], np) if single else None
        self._around = single and not self.layout.own_heads

    def slots(self, stream: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Slots of rows by id, within the ring: int64[...]."""
        return self.layout.slot(stream, row % self.layout.length)

    def here(self, stream: np.ndarray, row: np.ndarray) -> np.ndarray:
        """bool[...]: which row ids are stored and possible starts by age."""
        low, high = self.ring.old_enough(self.window)
        if self.ring.lockstep:
            return (row >= low) & (row < high)
        return (row >= low[stream]) & (row < high[stream])

    def judge(self, slots: np.ndarray) -> Any:
        """Judge the starts at these slots by the flags around them: a Judgement, or a Span."""
        ring, window = self.ring, self.window
        if isinstance(window, Sequence):
            return self._judge_sequences(window, slots)
        if self.verdicts:
            flags = ring.flat_flags.take(slots, mode="wrap")
            valid = self.verdicts.valid.take(flags, mode="clip")
            return Judgement(valid, _ZERO, _ONE, flags, flags)
        reach = self.reach.reshape(-1, *(1,) * slots.ndim)
        return window.judge(ring.flat_flags.take(ring.shift(slots, reach), mode="wrap"), np)

    def _judge_sequences(self, window: Sequence, slots: np.ndarray) -> Span:
        """Exactly, at either end of the ring: what follows the newest row is not here yet."""
        ring, length, before = self.ring, self.layout.length, window.before
        stream, position = self.layout.place(slots)
        flags = ring.flat_flags.take(ring.shift(slots[..., None], self.reach), mode="wrap")
        added: Any = ring.each if ring.lockstep else ring.added[stream]
        newest = (added - 1 + before - position) % length  # counted from the first row looked at
        rows = len(self.reach)
        for again in range(0, rows, length):  # a long burn-in sees every row several times
            met = newest < rows - again
            if b"\1" in met.tobytes():  # in a tenth of the time of `any`
                flags[met, newest[met] + again] |= np.uint8(CUT)
        flags = flags.transpose(flags.ndim - 1, *range(flags.ndim - 1))
        span = window.judge(flags, np)
        if window.every == 1:
            return span
        aligned = ring.ids(stream, position) % window.every == 0
        return span._replace(valid=span.valid & aligned)

    def any_valid(self) -> bool:
        """Whether there is a valid start."""
        low, high = self.ring.old_enough(self.window)
        if not np.any(high > low):
            return False
        # A known start stays valid until it is overwritten.
        known = self.here(*self._known).all()
        if known and isinstance(self.window, Sequence):  # or until its stack is
            known = self.judge(self.slots(*self._known)).valid.all()
        if not known:
            slots = self.valid_slots()
            if not len(slots):
                return False
            stream, position = self.layout.place(slots[-1:])
            self._known = stream, self.ring.ids(stream, position)
        return True

    def forget(self) -> None:
        """Drop what is cached, after the ring was replaced."""
        self._known = np.zeros(1, np.int64), np.full(1, -1)

    def valid_slots(self) -> np.ndarray:
        """The slots of all valid starts, the oldest first; used when almost none is valid."""
        low, high = self.ring.old_enough(self.window)
        ids = low + np.arange(self.layout.length)[:, None]
        slots = self.slots(np.arange(self.layout.streams), ids)
        slots = slots[np.broadcast_to(ids < high, slots.shape)]
        return slots[self.judge(slots).valid]

    def draw(self, sampler: Proposer, random: HostRandom, into: Draw) -> tuple[np.ndarray, Any]:
        """Draw as many valid starts as `into` has room for; return their slots and verdicts."""
        ring, stream, row, batch_size = self.ring, into.stream, into.row, len(into.row)
        low, high = ring.old_enough(self.window)
        every = self.window.every
        if every > 1:  # multiples of it, numbered
            low, high = -(-low // every), -(-high // every)
        count = high - low
        if not (count if ring.lockstep else count.any()):
            raise self.too_few(batch_size)
        eligible = Eligible(count, self.layout.streams, self._interleaved / every)
        strata = None
        if isinstance(sampler, Stratified):
            strata = sampler.strata(random, batch_size)
            stream[:], age = sampler.within(random, strata, eligible)
        else:
            drawn = sampler.propose(random, 1, batch_size, eligible)
            stream[:], age = drawn.stream[0], drawn.age[0]
        np.add(low if ring.lockstep else low[stream], age, out=row)
        if every > 1:
            row *= every
        if self._around and ring.lockstep:  # a remainder less: takes go around the ring's end
            slots = self.layout.slot(stream, row - (low - low % self.layout.length))
        else:
            slots = self.slots(stream, row)
        verdict = self._judge_old(slots, stream, eligible)
        if b"\0" not in verdict.valid.tobytes():
            return slots, verdict
        for round_ in range(1, _ROUNDS):
            bad = np.flatnonzero(~verdict.valid)
            if not len(bad):
                return slots, verdict
            # Redrawn once in its stratum, if it has one, then anywhere.
            if round_ == 1 and strata and isinstance(sampler, Stratified) and sampler.tries > 1:
                again, ages = sampler.within(random, strata, eligible)
                stream[bad], age = again[bad], ages[bad]
            else:
                other = uniform() if strata else sampler
                again = other.propose(random, 1, len(bad), eligible)
                stream[bad], age = again.stream[0], again.age[0]
            row[bad] = ((low if ring.lockstep else low[stream[bad]]) + age) * every
            fresh = self.slots(stream[bad], row[bad])
            slots[bad] = fresh
            judged = self._judge_old(fresh, stream[bad], eligible)
            for field, new in zip(verdict, judged, strict=True):
                if field.ndim:
                    field[bad] = new
        bad = np.flatnonzero(~verdict.valid)
        left = self.valid_slots()
        if not len(left):
            raise self.too_few(batch_size)
        stream[bad], position = self.layout.place(random.generator.choice(left, len(bad)))
        row[bad] = ring.ids(stream[bad], position)
        slots = self.slots(stream, row)
        return slots, self.judge(slots)

    def _judge_old(self, slots: np.ndarray, stream: np.ndarray, eligible: Eligible) -> Any:
        """`judge`, but starts of streams without any possible start are invalid."""
        verdict = self.judge(slots)
        if self.ring.lockstep:
            return verdict
        return verdict._replace(valid=verdict.valid & (eligible.count > 0)[stream])

    def too_few(self, batch_size: int) -> NotEnoughData:
        """The error if no start is valid."""
        window = self.window
        need = 1 if self.layout.whole else window.n_step + 1
        what, end = "transitions", ""
        if isinstance(window, Sequence):
            what, end = "sequences", ", or up to its episode's end," * (window.end == "stop")
        stored = int(np.minimum(self.ring.added, self.layout.length).sum())
        return NotEnoughData(
            f"HostPond: {batch_size} {what} asked for, none of the {stored} stored rows is "
            f"a valid start (a start needs {need} rows of one env{end} without a cut); "
            "add more rows first, and wait for can_sample()"
        )
