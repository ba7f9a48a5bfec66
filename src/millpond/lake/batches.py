"""Batches from a Lake: draws valid starts and builds what the window asks for from their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..batch_out import arrays_of, check_out
from ..errors import BadConfig, NotEnoughData
from ..rows import CUT, LIFE_LOST, TERMINATED, TRUNCATED, Batch, Draw
from ..samplers import Eligible, Prioritized, Random, Sampler, Stratified, uniform
from ..sequence import AnyWindow, Sequence, blank_batch
from .columns import LOST
from .observations import Observations, shared_frames
from .reader import Reader, major_faults
from .sequences import Sequences

_ROUNDS = 64  # redraws before every valid start is listed instead
_SCAN = 1 << 20  # rows judged at a time when listing them


class JudgedStarts:
    """Starts with the slots, records and flags of the rows around them, and what these imply."""

    def __init__(self, batches: Batches, piece: np.ndarray, at: np.ndarray) -> None:
        window, reader = batches.window, batches.reader
        self.slots = reader.index.around(piece, at, batches.reach)  # [before + 1 + n_step, n]
        self.records = reader.records(self.slots)
        flags = self.records["flags"].copy()
        missing = self.slots < 0
        cut = (flags[1:] & LOST) != 0
        if missing.any():
            flags[missing] = CUT
            cut |= missing[1:]
        flags[:-1] |= cut * np.uint8(CUT)
        flags &= np.uint8(127)
        self.flags = flags
        self.verdict: Any = window.judge(flags[:-1], np)
        if window.every > 1:
            aligned = (reader.index.first[piece] + at) % window.every == 0
            self.verdict = self.verdict._replace(valid=self.verdict.valid & aligned)

    def replace(self, which: np.ndarray, other: JudgedStarts) -> None:
        """Replace the starts at indices `which`."""
        self.slots[:, which], self.records[:, which] = other.slots, other.records
        self.flags[:, which] = other.flags
        for field, new in zip(self.verdict, other.verdict, strict=True):
            field[which] = new


class Batches:
    """Draws batches of one window from a reader's rows."""

    def __init__(self, reader: Reader, window: AnyWindow, threads: int) -> None:
        window.fits(reader.info.spec, reader.info.slots)
        self.reader, self.window = reader, window
        self._observations = Observations(reader, window, threads)
        self._sequences = None
        if isinstance(window, Sequence):
            self._sequences = Sequences(reader, window, self._observations)
        self._accepted: Any = None  # the last `out` that passed the check
        self.reach = np.arange(-window.before, window.n_step + 1)

    def sample(self, random: Random, number: int, sampler: Sampler, out: Any) -> Any:
        """Draw `number` valid starts, or raise NotEnoughData."""
        if isinstance(sampler, Prioritized):
            raise BadConfig(
                "Lake: prioritized() needs priorities that change with learning, which stay in "
                "memory; fill a Pond from the Lake, or use uniform, stratified or recent"
            )
        faults = major_faults()
        batch = self._buffers(number, out)
        found = self._draw(random, number, sampler, batch.draw)
        self.assemble(found, batch)
        if isinstance(batch, Batch):
            batch.mask.fill(True)
        batch.weight.fill(1)
        self.reader.note_faults(faults)
        return batch

    def _draw(self, random: Random, number: int, sampler: Any, draw: Draw) -> JudgedStarts:
        index = self.reader.index
        if index.total == 0:
            raise self._too_little(number)
        starts = index.multiples(self.window.every)
        which = np.flatnonzero(starts.rows)  # streams that hold rows
        if not len(which):
            raise self._too_little(number)
        eligible = Eligible(starts.rows[which], len(which), 1 / self.window.every)
        bound = isinstance(sampler, Stratified)  # its own tries redraw within the stratum
        tries = sampler.tries if bound else 1
        drawn = sampler.propose(random, tries, number, eligible)

        def judge(stream: np.ndarray, age: np.ndarray, to: Any) -> JudgedStarts:
            piece, at = starts.locate(which[stream], age)
            draw.stream[to], draw.row[to] = index.stream[piece], index.first[piece] + at
            return JudgedStarts(self, piece, at)

        found = judge(drawn.stream[0], drawn.age[0], slice(None))
        for turn in range(1, _ROUNDS):
            bad = np.flatnonzero(~found.verdict.valid)
            if not len(bad):
                return found
            if turn < tries:
                stream, age = drawn.stream[turn, bad], drawn.age[turn, bad]
            else:
                other = uniform() if bound else sampler
                again = other.propose(random, 1, len(bad), eligible)
                stream, age = again.stream[0], again.age[0]
            found.replace(bad, judge(stream, age, bad))
        bad = np.flatnonzero(~found.verdict.valid)
        if len(bad):
            valid = np.concatenate([np.zeros(0, np.int64), *self.valid_rows()])
            if not len(valid):
                raise self._too_little(number)
            (pick,) = random.integers((len(bad),), len(valid))
            piece, at = self.pieces_of(valid[pick])
            draw.stream[bad], draw.row[bad] = index.stream[piece], index.first[piece] + at
            found.replace(bad, JudgedStarts(self, piece, at))
        return found

    def valid_rows(self) -> Iterator[np.ndarray]:
        """Yield every valid start in order, as row numbers counted across all streams."""
        for start in range(0, self.reader.index.total, _SCAN):
            rows = np.arange(start, min(start + _SCAN, self.reader.index.total))
            yield rows[self.judge_rows(rows).verdict.valid]

    def judge_rows(self, rows: np.ndarray) -> JudgedStarts:
        """Judge rows, given by their numbers across all streams, as starts."""
        return JudgedStarts(self, *self.pieces_of(rows))

    def batch_of(self, rows: np.ndarray) -> Any:
        """The transitions that start at these row numbers; invalid ones are masked."""
        piece, at = self.pieces_of(rows)
        return self.take(piece, at)

    def take(self, piece: np.ndarray, at: np.ndarray, out: Any = None) -> Any:
        """The transitions that start at row at[i] of piece[i]; invalid ones are masked."""
        found, index = JudgedStarts(self, piece, at), self.reader.index
        batch = self._buffers(len(piece), out)
        batch.draw.stream[:], batch.draw.row[:] = index.stream[piece], index.first[piece] + at
        self.assemble(found, batch)
        if isinstance(batch, Batch):
            batch.mask[:] = found.verdict.valid
        batch.weight.fill(1)
        return batch

    def all_masked(self, stream: np.ndarray, row: np.ndarray) -> Any:
        """A fully masked batch, for when no row is stored."""
        batch = self._buffers(len(stream), None)
        for array in arrays_of(batch):
            array.fill(0)
        batch.draw.stream[:], batch.draw.row[:] = stream, row
        return batch

    def fetch(self, path: str, slots: np.ndarray) -> np.ndarray:
        """The stored bytes uint8[n, width] of an observation field."""
        return self._observations.fetch(path, slots)

    def pieces_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The piece of each row number, and the row's place in it."""
        index = self.reader.index
        piece = np.searchsorted(index.begin, rows, side="right") - 1
        return piece, rows - index.begin[piece]

    def _blank(self, number: int, out: Any = None) -> Any:
        return blank_batch(self.reader.info.spec, self.window, number, out)

    def _buffers(self, number: int, out: Any) -> Any:
        batch = self._blank(number, out)
        if out is not None and out is not self._accepted:
            who = f"Lake with {self.window}"
            check_out(who, self._blank(number), out, self._ids_of_shared(out))
            self._accepted = out
        return batch

    def _ids_of_shared(self, out: Any) -> set[int]:
        """The `id()` of arrays in `out` that share frames, as one-step windows may."""
        if not isinstance(out, Batch) or self.window.n_step != 1:
            return set()
        pairs = list(zip(arrays_of(out.obs), arrays_of(out.next_obs), strict=False))
        return {
            id(one)
            for pair in pairs
            if all(isinstance(part, np.ndarray) and part.ndim > 1 for part in pair)
            and shared_frames(*pair) is not None
            for one in pair
        }

    def _too_little(self, number: int) -> NotEnoughData:
        what = "sequences" if self._sequences else "transitions"
        return NotEnoughData(
            f"Lake: {number} {what} asked for, none of the {self.reader.index.total} "
            f"committed rows is a valid start (it needs {self.window.n_step} following rows of its "
            "stream, or its episode's end, without a cut); commit more, then refresh()"
        )

    def assemble(self, found: JudgedStarts, batch: Any) -> None:
        """Fill the batch, except batch.draw, mask and weight."""
        if isinstance(self.window, Sequence):
            assert self._sequences
            self._sequences.assemble(found, batch)
            return
        window, columns = self.window, self.reader.columns
        verdict, records, here = found.verdict, found.records, window.before
        rewards = columns.small(records[here : here + window.n_step], "reward")
        batch.reward[:], batch.discount[:] = window.returns(rewards, verdict, np)
        batch.action[...] = columns.small(records[here], "action")
        for name, extra in batch.extras.items():
            if name == "life_lost":
                np.not_equal(verdict.first & LIFE_LOST, 0, out=extra)
            else:
                extra[...] = columns.small(records[here], f"extras/{name}")
        np.not_equal(verdict.last & TERMINATED, 0, out=batch.terminated)
        np.not_equal(verdict.last & TRUNCATED, 0, out=batch.truncated)
        batch.steps[:] = verdict.steps
        for path in columns.obs:
            self._observations.fill(found.slots, verdict, path, batch)
