"""`HostPond`: the same replay over NumPy, mutable, for CPU learners and PyTorch users."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

import numpy as np

from ..errors import BadConfig, NotEnoughData, RowsGone, SpecMismatch
from ..host_random import HostRandom
from ..intake import KNOWN_FLAGS, Intake, broken_episode, pack_values, short_way
from ..rows import (
    LIFE_LOST,
    TERMINATED,
    TRUNCATED,
    Batch,
    Draw,
    Flag,
    Rows,
    Tree,
    breaks,
    host_batch,
    leaf,
    unpack_rows,
)
from ..samplers import Eligible, Prioritized, Sampler, Stratified, uniform
from ..spec import Field, Spec, mismatch
from ..window import Verdict, Window
from . import snapshot
from .host_ring import HostRing
from .layouts import LayoutName, make_layout
from .priorities import HostTree

_ROUNDS = 64  # redraws before the valid starts are counted out
_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel()
_TERMINATED, _TRUNCATED = (_BYTES & TERMINATED) != 0, (_BYTES & TRUNCATED) != 0
_INTEGERS = {int, Flag, np.uint8, np.int32, np.int64}
_NUMBERS = {float, np.float32, np.float64, int}
_BOOLS = {bool, np.bool_}
_ZERO, _ONE = np.int32(0), np.int32(1)
_BREAKS_ONE = _BREAKS.tolist()  # the same for one row at a time: a list look-up is 20 times faster


class HostPond:
    """A ring of exactly `capacity` rows in host memory, with its own generator.

    Bad input raises and changes nothing. A batch never shares memory with the ring; pass the last
    one as `out` to reuse its arrays. Layouts: see docs/replay.md.

        pond = HostPond(spec, capacity=100_000, num_envs=8, window=Window(stack=4), seed=1)
        pond.add(rows)                    # [env] or [time, env]
        pond.add(row, env=3)              # one row of one env, or [time] rows of it
        batch = pond.sample(256)
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: Window | None = None,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
        seed: int = 0,
    ) -> None:
        self.spec, self.num_envs, self.capacity = spec, num_envs, capacity
        self.window, self.sampler = window or Window(), sampler or uniform()
        self.layout = make_layout(layout, spec, capacity, num_envs, self.window, "HostPond")
        self.length, self.streams = self.layout.length, self.layout.streams
        self._intake = Intake(spec, self.layout.whole)
        self._ring = HostRing(spec, self.layout)
        self._random = HostRandom(seed)
        fan = self.sampler.fan if isinstance(self.sampler, Prioritized) else None
        self._tree = HostTree(capacity) if fan else None
        self._highest, self._samples = 1.0, 0
        self._short = None if self._tree else short_way(spec, self.layout.whole)
        # Stack positions for every depth: one look-up per sample.
        depths = np.arange(self.window.stack)
        self._back, self._padded = self.window.lookback(depths, np)
        # Where one flags byte decides about a start, all 128 verdicts are known beforehand.
        self._reach = np.arange(-self.window.before, self.window.n_step)
        single = len(self._reach) == 1
        self._verdicts = self.window.judge(_BYTES[None], np) if single else None
        self._around = single and not self.layout.own_heads
        self._discounts = (
            self.window.returns(np.zeros((1, 128), np.float32), self._verdicts, np)[1]
            if self._verdicts
            else np.zeros(0)
        )

    def add(
        self,
        rows: Rows,
        next_obs: Tree | None = None,
        env: int | None = None,
        mask: np.ndarray | None = None,
    ) -> None:
        """Append rows [env] or [time, env]; with `env`, one row [] or rows [time] of that env.

        Layout `shared` takes rows [batch] (or one row) with their `next_obs`; layout `per_env`
        may take a `mask` of the rows to add.
        """
        ring = self._ring
        short = self._short if rows.reward.__class__ in _NUMBERS else None
        if short and self._add_one(rows, next_obs, env, *short):
            return
        if env is None and self.streams == 1 and np.ndim(rows.reward) == 0:
            env = 0
        values, keep = self._arrange(rows, next_obs, env, mask)
        self._intake.check_values(values)
        flags = pack_values(values)
        if not flags.size:
            return  # no rows: nothing to add
        if not self.layout.whole:
            self._check_episodes(flags, env, keep)
        before = ring.added.copy() if self._tree else None
        together = ring.lockstep
        if keep is None and ring.lockstep and (env is None or self.streams == 1):
            ring.write_block(values, flags)
        else:
            ring.write_rows(values, flags, env, keep)
        if self._tree and before is not None:
            self._rank_new(self._tree, before, together and ring.lockstep)

    def _add_one(
        self, rows: Rows, next_obs: Tree | None, env: int | None, obs_field: Field, action: Field
    ) -> bool:
        """The short way for one row that is right at first sight; False: take the long way.

        The long way takes 20 times as long, finds the same faults, and names them.
        """
        obs, act, reward, terminated, truncated, flags, extras = rows
        if env is None:
            env = 0 if self.streams == 1 else -1
        if (
            not 0 <= env < self.streams
            or extras
            or next_obs is not None
            or terminated.__class__ not in _BOOLS
            or truncated.__class__ not in _BOOLS
            or flags.__class__ not in _INTEGERS
            or not 0 <= flags <= KNOWN_FLAGS
            or not isfinite(reward)
        ):
            return False
        byte = int(flags) | terminated << 4 | truncated << 5
        if _BREAKS_ONE[int(self._ring.last[env]) << 7 | byte]:
            return False
        for value, field in ((obs, obs_field), (act, action)):
            if value.__class__ is np.ndarray:
                if value.shape != field.shape or value.dtype != field.dtype:
                    return False
                if field.low is not None:  # few elements: faster as a list
                    few = value.ravel().tolist()
                    if not (field.low <= min(few) and max(few) <= field.high and sum(few) < inf):
                        return False
            elif value.__class__ not in _INTEGERS or not field.low <= value <= field.high:
                return False
        self._ring.write_one(env, obs, act, reward, byte)
        return True

    def _arrange(
        self, rows: Rows, next_obs: Tree | None, env: int | None, mask: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Checked values by path with leading axes [time, stream], and the mask."""
        if env is None:
            return self.layout.blocks(self._intake, rows, next_obs, mask)
        if not 0 <= env < self.streams:
            raise SpecMismatch(
                f"add: env must lie in [0, {self.streams - 1}], got {env}; "
                "pass the env's index in this ring"
            )
        time = np.shape(rows.reward)[:1]
        values = self._intake.arrange(rows, time, "[time]" if time else "one row", next_obs)
        axes = 1 if time else (0, 1)
        return {path: np.expand_dims(value, axes) for path, value in values.items()}, None

    def _check_episodes(self, flags: np.ndarray, env: int | None, keep: np.ndarray | None) -> None:
        """Raise BrokenEpisode for the first row that cannot follow the row before it."""
        begin = 0 if env is None else env
        last = self._ring.last[begin : begin + flags.shape[1]]
        if not (last.any() or flags.any()):
            return  # ordinary steps inside their episodes
        for time, now in enumerate(flags):
            code = np.left_shift(last, 7, dtype=np.int64)
            code |= now
            broken = _BREAKS.take(code, mode="clip")
            if keep is not None:
                broken = broken & keep[time]
            if broken.any():
                which = int(np.argmax(broken))
                where = f"add: env {begin + which}, row {time} of {len(flags)}"
                raise broken_episode(int(last[which]), int(now[which]), where)
            last = now if keep is None else np.where(keep[time], now, last)

    def _rank_new(self, tree: HostTree, before: np.ndarray, together: bool) -> None:
        """Starts that have become old enough get the highest mass seen, those too old none."""
        ring = self._ring
        changed = [0] if together else np.flatnonzero(before != ring.added)
        for one in changed:
            streams = np.arange(self.streams) if together else np.array([one])
            low0, high0 = ring.old_enough(self.window, before[one])
            low1, high1 = ring.old_enough(self.window, ring.added[one])
            gone = np.arange(low0, min(low1, high0))[-self.length :]
            fresh = np.arange(max(high0, low1), high1)
            slots = self.layout.slot(streams, np.concatenate([gone, fresh])[:, None] % self.length)
            mass = np.zeros(slots.shape)
            mass[len(gone) :] = self._judge(slots[len(gone) :]).valid * self._highest
            tree.assign(slots.ravel(), mass.ravel())

    def cut(self, env: int | None = None) -> None:
        """Declare continuity lost after the newest row of `env` (default: of every env)."""
        if not self.layout.whole:
            self._ring.cut(env)

    @property
    def size(self) -> int:
        """Rows stored, over all streams."""
        return int(np.minimum(self._ring.added, self.length).sum())

    @property
    def mass(self) -> float:
        """How much there is to draw from: the sum of priorities, or the rows that are stored.

        0 while nothing can be drawn. Of several ponds each is drawn in proportion to its mass.
        """
        if not self.can_sample():
            return 0.0
        return self._tree.total if self._tree else float(self.size)

    @property
    def nbytes(self) -> int:
        """Bytes held by the ring."""
        return self._ring.nbytes

    def can_sample(self) -> bool:
        """Whether the ring holds any row old enough to be a start."""
        low, high = self._ring.old_enough(self.window)
        return bool(np.any(high > low))

    def check(self) -> None:
        """Raise BadState if the ring's own books do not agree; bad input never gets this far."""
        self._ring.check()

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw `batch_size` transitions, or raise NotEnoughData if no start is valid."""
        batch = host_batch(self.spec, self.window.stack, batch_size, out)
        if self._tree:
            slots, verdict = self._draw_ranked(self._tree, batch_size, batch)
        else:
            slots, verdict = self._draw(batch_size, batch)
            batch.weight.fill(1)
        self._assemble(slots, verdict, batch)
        batch.mask.fill(True)
        return batch

    def _draw(self, batch_size: int, batch: Batch) -> tuple[np.ndarray, Verdict]:
        """Slots of valid starts and what their flags say; fills batch.draw."""
        ring, stream, row, chance = self._ring, *batch.draw
        low, high = ring.old_enough(self.window)
        count = high - low
        if not (count if ring.lockstep else count.any()):
            raise self._too_little(batch_size)
        eligible = Eligible(count, self.streams)
        assert not isinstance(self.sampler, Prioritized)
        bound = isinstance(self.sampler, Stratified)  # to redraw, a sample stays in its stratum
        tries = self.sampler.tries if bound else 1
        drawn = self.sampler.propose(self._random, tries, batch_size, eligible)
        stream[:], chance[:] = drawn.stream[0], drawn.probability
        np.add(low if ring.lockstep else low[stream], drawn.age[0], out=row)
        if self._around and ring.lockstep:  # a remainder less: takes go around the ring's end
            slots = self.layout.slot(stream, row - (low - low % self.length))
        else:
            slots = self._slots(stream, row)
        verdict = self._judge_old(slots, stream, eligible)
        if verdict.valid.all():
            return slots, verdict
        for round_ in range(1, _ROUNDS):
            bad = np.flatnonzero(~verdict.valid)
            if not len(bad):
                return slots, verdict
            if round_ < tries:
                stream[bad], age = drawn.stream[round_, bad], drawn.age[round_, bad]
            else:
                other = uniform() if bound else self.sampler
                again = other.propose(self._random, 1, len(bad), eligible)
                stream[bad], age, chance[bad] = again.stream[0], again.age[0], again.probability
            row[bad] = (low if ring.lockstep else low[stream[bad]]) + age
            fresh = self._slots(stream[bad], row[bad])
            slots[bad] = fresh
            for field, new in zip(
                verdict, self._judge_old(fresh, stream[bad], eligible), strict=True
            ):
                if field.ndim:
                    field[bad] = new
        bad = np.flatnonzero(~verdict.valid)
        stream[bad], position = self.layout.place(
            self._random.generator.choice(self._valid_slots(batch_size), len(bad))
        )
        row[bad] = ring.ids(stream[bad], position)
        slots = self._slots(stream, row)
        return slots, self._judge(slots)

    def _slots(self, stream: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Slots of rows by id, within the ring: int64[...]."""
        return self.layout.slot(stream, row % self.length)

    def _judge_old(self, slots: np.ndarray, stream: np.ndarray, eligible: Eligible) -> Verdict:
        """As `_judge`; a stream in which nothing is old enough yet has no valid start."""
        verdict = self._judge(slots)
        if self._ring.lockstep:
            return verdict
        return verdict._replace(valid=verdict.valid & (eligible.count > 0)[stream])

    def _draw_ranked(
        self, tree: HostTree, batch_size: int, batch: Batch
    ) -> tuple[np.ndarray, Verdict]:
        assert isinstance(self.sampler, Prioritized)
        slots, mass, total = tree.draw(self._random.generator, batch_size)
        if total <= 0:
            raise self._too_little(batch_size)
        stream, position = self.layout.place(slots)
        batch.draw.stream[:], batch.draw.row[:] = stream, self._ring.ids(stream, position)
        np.divide(mass, total, out=batch.draw.probability, casting="same_kind")
        batch.weight[:] = self.sampler.weights(mass, np.float32(self._samples), np)
        self._samples += 1
        return slots, self._judge(slots)

    def update_priorities(self, draw: Draw, priorities: np.ndarray) -> None:
        """Give drawn rows new priorities[batch]; draws of rows that are gone are ignored."""
        if not (self._tree and isinstance(self.sampler, Prioritized)):
            raise BadConfig("HostPond: update_priorities needs sampler=prioritized()")
        stream, row = np.asarray(draw.stream), draw.ids()
        priorities = np.asarray(priorities, np.float64)
        if priorities.shape != row.shape:
            raise mismatch(
                "priorities", f"shape {row.shape}", f"{priorities.shape}", "one per drawn row"
            )
        wrong = ~(np.isfinite(priorities) & (priorities >= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            got = f"{priorities[at]} at index {at}"
            raise mismatch("priorities", "numbers >= 0", got, "look for NaN in the loss")
        if row.size and not 0 <= stream.min() <= stream.max() < self.streams:
            raise mismatch(
                "draw.stream", f"0 ... {self.streams - 1}", "others", "pass this ring's batch.draw"
            )
        here, slots = self._here(stream, row), self._slots(stream, row)
        if not here.all():
            slots, priorities = slots[here], priorities[here]
        mass = priorities**self.sampler.alpha * self._judge(slots).valid
        self._highest = max(self._highest, float(mass.max(initial=0.0)))
        self._tree.assign(slots, mass)

    def take(self, stream: np.ndarray, row: np.ndarray) -> Batch:
        """The transitions that start at row ids[batch] of streams[batch]; invalid ones masked."""
        slots = self._slots(stream, row)
        verdict = self._judge(slots)
        batch = host_batch(self.spec, self.window.stack, len(row))
        batch.draw.stream[:], batch.draw.row[:] = stream, row
        self._assemble(slots, verdict, batch)
        batch.draw.probability.fill(0)
        batch.weight.fill(1)
        batch.mask[:] = verdict.valid & self._here(stream, row)
        return batch

    def read(self, stream: np.ndarray, row: np.ndarray) -> Rows:
        """The rows with these ids of these streams, any shape, as they were added."""
        stream, row = np.asarray(stream), np.asarray(row)
        added = self._ring.added[stream]
        if ((row < np.maximum(0, added - self.length)) | (row >= added)).any():
            raise RowsGone("HostPond.read: rows that were overwritten, or not added yet")
        slots = self._slots(stream, row)

        def at(path: str) -> np.ndarray:
            field = self.spec.columns[path]
            values = np.empty((*slots.shape, *field.shape), field.dtype)
            self._ring.stores[path].take_around(slots, values)
            return values

        return unpack_rows(self.spec, self._ring.flat_flags[slots], at)

    @property
    def added(self) -> np.ndarray:
        """int64[streams]: rows ever added per stream."""
        return self._ring.added.copy()

    def _here(self, stream: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Which row ids are stored and old enough to start."""
        low, high = self._ring.old_enough(self.window)
        if self._ring.lockstep:
            return (row >= low) & (row < high)
        return (row >= low[stream]) & (row < high[stream])

    def _judge(self, slots: np.ndarray) -> Verdict:
        window, ring = self.window, self._ring
        if self._verdicts:
            flags = ring.flat_flags.take(slots, mode="wrap")
            valid = self._verdicts.valid.take(flags, mode="clip")
            return Verdict(valid, _ZERO, _ONE, flags, flags)
        reach = self._reach.reshape(-1, *(1,) * slots.ndim)
        return window.judge(ring.flat_flags.take(ring.shift(slots, reach), mode="wrap"), np)

    def _valid_slots(self, batch_size: int) -> np.ndarray:
        """Every valid start's slot: for rings where almost nothing is valid."""
        low, high = self._ring.old_enough(self.window)
        ids = low + np.arange(self.length)[:, None]
        slots = self.layout.slot(np.arange(self.streams), ids % self.length)
        slots = slots[np.broadcast_to(ids < high, slots.shape)]
        slots = slots[self._judge(slots).valid]
        if not len(slots):
            raise self._too_little(batch_size)
        return slots

    def _too_little(self, batch_size: int) -> NotEnoughData:
        need = 1 if self.layout.whole else self.window.n_step + 1
        return NotEnoughData(
            f"HostPond: {batch_size} transitions asked for, none of the {self.size} stored rows is "
            f"a valid start (a start needs {need} rows of one env without a cut); "
            "add more rows first, and wait for can_sample()"
        )

    def _assemble(self, slots: np.ndarray, verdict: Verdict, batch: Batch) -> None:
        """Everything but batch.draw, mask and weight, from slots and what their flags say."""
        window, stores = self.window, self._ring.stores
        if window.stack > 1:
            self._take_stacks(slots, verdict, batch)
        else:
            after = self._ring.shift(slots, verdict.steps)
            for path in self._intake.obs:
                stores[path].take_around(slots, leaf(batch.obs, path))
                if self.layout.whole:
                    stores[f"next_{path}"].take_around(slots, leaf(batch.next_obs, path))
                else:
                    stores[path].take_around(after, leaf(batch.next_obs, path))
        if self._verdicts:
            stores["reward"].take_around(slots, batch.reward)
            if window.reward_clip:
                clip = window.reward_clip
                np.clip(batch.reward, -clip, clip, out=batch.reward)
            self._discounts.take(verdict.last, out=batch.discount, mode="clip")
        else:
            where = self._ring.shift(slots, self._reach[window.before :, None])
            rewards = stores["reward"].ring[:, 0].take(where, mode="wrap")
            batch.reward[:], batch.discount[:] = window.returns(rewards, verdict, np)
        stores["action"].take_around(slots, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                np.not_equal(verdict.first & LIFE_LOST, 0, out=extra)
            else:
                stores[f"extras/{name}"].take_around(slots, extra)
        _TERMINATED.take(verdict.last, out=batch.terminated, mode="clip")
        _TRUNCATED.take(verdict.last, out=batch.truncated, mode="clip")
        batch.steps[:] = verdict.steps

    def _take_stacks(self, slots: np.ndarray, verdict: Verdict, batch: Batch) -> None:
        """The stacks of starts and of the rows `steps` after them, [2, batch, stack] in all."""
        stream, position = self.layout.place(slots)
        newest = np.array([position, (position + verdict.steps) % self.length])
        depth = np.array([verdict.depth, verdict.depth + verdict.steps])
        rows = newest[..., None] - self._back.take(depth, axis=0, mode="clip")
        rows += (rows < 0) * self.length
        padded = self._padded.take(depth, axis=0, mode="clip")
        for path in self._intake.obs:
            outs = leaf(batch.obs, path), leaf(batch.next_obs, path)
            self._ring.stores[path].take_stacks(stream[:, None], rows, padded, outs)

    def export(self) -> dict[str, np.ndarray]:
        """The whole ring and its generator as flat arrays: `restore` gives an equal pond."""
        arrays = snapshot.pack(
            self.layout,
            self.spec,
            {path: store.values() for path, store in self._ring.stores.items()},
            self._ring.flags,
            self._ring.added,
            faults=np.zeros((2, self.streams), np.uint32),
            priorities=self._tree
            and (self._tree.leaves[: self.capacity], self._highest, self._samples),
        )
        return arrays | {"rng": self._random.pack()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Become the pond that was exported, by a HostPond or by a Pond of the same shape."""
        saved = snapshot.unpack(self, arrays)
        self._ring.restore(saved)
        if self._tree:
            mass, self._highest, self._samples = saved.priorities
            self._tree.rebuild(mass)
        if "rng" in arrays:
            self._random.unpack(arrays["rng"])
