"""`HostPond`: the same replay over NumPy, mutable, for CPU learners and PyTorch users."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from ..errors import BadConfig, NotEnoughData, RowsGone, SpecMismatch
from ..host_random import HostRandom
from ..intake import (
    KNOWN_FLAGS,
    Intake,
    Short,
    broken_episode,
    no_rows,
    pack_values,
    short_way,
)
from ..rows import (
    BORDER,
    ENDED,
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
    leaves,
    unpack_rows,
)
from ..samplers import Eligible, Prioritized, Sampler, Stratified, uniform
from ..spec import Spec, mismatch
from ..window import Verdict, Window
from . import snapshot
from .fork_lock import fork_lock
from .host_ring import HostRing
from .layouts import LayoutName, make_layout, which_envs
from .priorities import LARGEST, HostTree, one_per_draw

_ROUNDS = 64  # redraws before the valid starts are counted out
_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel()
_TERMINATED, _TRUNCATED = (_BYTES & TERMINATED) != 0, (_BYTES & TRUNCATED) != 0
_INTEGERS = {int, Flag, np.uint8, np.int32, np.int64}
_NUMBERS = {float, np.float32, np.float64, int}
_BOOLS = {bool, np.bool_}
_MOST = float(np.finfo(np.float32).max)  # a reward beyond it would be stored as infinite
_ZERO, _ONE = np.int32(0), np.int32(1)
_BREAKS_ONE = _BREAKS.tolist()  # the same for one row at a time: a list look-up is 20 times faster


class HostPond:
    """A ring of exactly `capacity` rows in host memory, with its own generator.

    Bad input raises and changes nothing. A batch never shares memory with the ring; pass the last
    one as `out` to reuse its arrays. Any number of threads may call it: every call is whole, and a
    copy is a pond of its own. Layouts: see docs/replay.md.

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
        self.capacity, self.num_envs = self.layout.capacity, int(num_envs)
        self.length, self.streams = self.layout.length, self.layout.streams
        self._intake = Intake(spec, self.layout.whole)
        self._ring = HostRing(spec, self.layout)
        self._lock = fork_lock()
        self._random = HostRandom(seed)
        fan = self.sampler.fan if isinstance(self.sampler, Prioritized) else None
        self._tree = HostTree(self.capacity) if fan else None
        self._highest, self._samples = 1.0, 0
        self._known = np.zeros(1, np.int64), np.full(1, -1)  # stream and id of a valid start
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
        final_obs: Tree | None = None,
    ) -> None:
        """Append rows [env] or [time, env]; with `env`, one row [] or rows [time] of that env.

        Layout `shared` takes rows [batch] (or one row) with their `next_obs`; layout `per_env`
        may take a `mask` of the rows to add. `final_obs`, shaped as the observations, is for envs
        that reset in the same step: the true final observations of the rows that ended.
        """
        with self._lock:
            ring = self._ring
            if rows.__class__ is not Rows and not isinstance(rows, Rows):
                raise no_rows(rows)
            short = self._short if rows.reward.__class__ in _NUMBERS and mask is None else None
            short = short if final_obs is None else None
            if short and self._add_one(rows, next_obs, env, *short):
                return
            if env is None and self.streams == 1 and np.ndim(rows.reward) == 0:
                env = 0
            values, keep = self._arrange(rows, next_obs, env, mask)
            if final_obs is not None:
                values, keep = self._close(rows, final_obs, env, values, keep)
            self._intake.check_values(values, keep)
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

    def _close(
        self,
        rows: Rows,
        final_obs: Tree,
        env: int | None,
        values: dict[str, np.ndarray],
        keep: np.ndarray | None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Values and mask with the true final observations of the rows that ended."""
        next_obs = final_obs if self.layout.whole else None
        final, _ = self._arrange(rows._replace(obs=final_obs), next_obs, env, None)
        if not (values["terminated"].any() or values["truncated"].any()):
            return values, keep
        return self.layout.with_final(self._intake, values, final, keep, np)

    def _add_one(
        self, rows: Rows, next_obs: Tree | None, env: int | None, obs_must: Short, act_must: Short
    ) -> bool:
        """The short way for one row that is right at first sight; False: take the long way.

        The long way takes 20 times as long, finds the same faults, and names them.
        """
        obs, act, reward, terminated, truncated, flags, extras = rows
        if env is None:
            env = 0 if self.streams == 1 else -1
        if (
            env.__class__ not in _INTEGERS
            or not 0 <= env < self.streams
            or extras
            or next_obs is not None
            or terminated.__class__ not in _BOOLS
            or truncated.__class__ not in _BOOLS
            or flags.__class__ not in _INTEGERS
            or not 0 <= (byte := int(flags)) <= KNOWN_FLAGS
            or not -_MOST <= reward <= _MOST
        ):
            return False
        byte |= terminated << 4 | truncated << 5
        if byte & BORDER and (reward or byte & ENDED):
            return False
        if _BREAKS_ONE[self._ring.last.item(env) << 7 | byte]:
            return False
        for value, (shape, dtype, low, high, nan) in ((obs, obs_must), (act, act_must)):
            if value.__class__ is np.ndarray:
                if value.shape != shape or value.dtype != dtype:
                    return False
                if low is not None:  # few elements: faster as a list
                    few = value.ravel().tolist()
                    if not (low <= min(few) and max(few) <= high and sum(few) < inf):
                        return False
                elif nan:
                    square = value.dot(value) if len(shape) == 1 else np.vdot(value, value)
                    if square != square:
                        return False
            elif value.__class__ not in _INTEGERS or low is None or not low <= value <= high:
                return False
        self._ring.write_one(env, obs, act, reward, byte)
        return True

    def _arrange(
        self, rows: Rows, next_obs: Tree | None, env: int | None, mask: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Checked values by path with leading axes [time, stream], and the mask."""
        if env is None:
            return self.layout.blocks(self._intake, rows, next_obs, mask)
        self._env("add", env)
        time = np.shape(rows.reward)[:1]
        values = self._intake.arrange(rows, time, "[time]" if time else "one row", next_obs)
        axes = 1 if time else (0, 1)
        values = {path: np.expand_dims(value, axes) for path, value in values.items()}
        return values, self.layout.mask_of(mask, time, axes)

    def _env(self, what: str, env: Any) -> int:
        """An env's index in this ring, or SpecMismatch."""
        whole = isinstance(env, (int, np.integer)) and not isinstance(env, bool)
        if not whole or not 0 <= env < self.streams:
            raise SpecMismatch(
                f"{what}: env must lie in [0, {self.streams - 1}], got {env!r}; "
                "pass the env's index in this ring"
            )
        return int(env)

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
        streams = np.arange(self.streams) if together else np.flatnonzero(before != ring.added)
        if not len(streams):
            return
        # All streams at once: one that is out of step must not cost a pass of its own.
        one = 0 if together else streams
        low0, high0 = ring.old_enough(self.window, before[one])
        low1, high1 = ring.old_enough(self.window, ring.added[one])
        end = np.minimum(low1, high0)
        gone = _spans(streams, np.maximum(low0, end - self.length), end)
        fresh = _spans(streams, np.maximum(high0, low1), high1)
        slots = self._slots(*(np.concatenate(pair) for pair in zip(gone, fresh, strict=True)))
        mass = np.zeros(len(slots))
        left = len(gone[0])
        mass[left:] = self._judge(slots[left:]).valid * self._highest
        tree.assign(slots, mass)

    def cut(self, envs: int | np.ndarray | None = None) -> None:
        """Declare continuity lost after the newest row of `envs`: an index, bool[env], or all."""
        which = which_envs(envs, self.num_envs, np)
        with self._lock:
            if not self.layout.whole:
                self._ring.cut(np.flatnonzero(which))

    @property
    def size(self) -> int:
        """Rows stored, over all streams."""
        with self._lock:
            return int(np.minimum(self._ring.added, self.length).sum())

    @property
    def mass(self) -> float:
        """How much there is to draw from: the sum of priorities, or the rows that are stored.

        0 while nothing can be drawn. Of several ponds each is drawn in proportion to its mass.
        """
        with self._lock:
            if not self.can_sample():
                return 0.0
            return self._tree.total if self._tree else float(self.size)

    @property
    def nbytes(self) -> int:
        """Bytes held by the ring and, if it is prioritised, by its tree."""
        return self._ring.nbytes + (self._tree.nbytes if self._tree else 0)

    def can_sample(self) -> bool:
        """Whether the ring holds a valid start: `sample` then gives a batch."""
        with self._lock:
            low, high = self._ring.old_enough(self.window)
            if not np.any(high > low):
                return False
            if self._tree:
                return self._tree.total > 0
            # A start once found stays valid until it is overwritten.
            if not self._here(*self._known).all():
                slots = self._valid_slots()
                if not len(slots):
                    return False
                stream, position = self.layout.place(slots[-1:])
                self._known = stream, self._ring.ids(stream, position)
            return True

    def check(self) -> None:
        """Raise BadState if the ring's own books do not agree; bad input never gets this far."""
        with self._lock:
            self._ring.check()

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw `batch_size` transitions, or raise NotEnoughData if no start is valid."""
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise SpecMismatch(
                f"sample: expected a batch of 1 or more, got {batch_size!r}; give a whole number"
            )
        ranked = self._tree is not None
        batch = host_batch(self.spec, self.window.stack, batch_size, out, ranked)
        with self._lock:
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
        ring, stream, row = self._ring, batch.draw.stream, batch.draw.row
        low, high = ring.old_enough(self.window)
        count = high - low
        if not (count if ring.lockstep else count.any()):
            raise self._too_little(batch_size)
        interleaved = self.num_envs if self.layout.whole else 1
        eligible = Eligible(count, self.streams, interleaved)
        assert not isinstance(self.sampler, Prioritized)
        bound = isinstance(self.sampler, Stratified)  # to redraw, a sample stays in its stratum
        tries = self.sampler.tries if bound else 1
        drawn = self.sampler.propose(self._random, tries, batch_size, eligible)
        stream[:] = drawn.stream[0]
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
                stream[bad], age = again.stream[0], again.age[0]
            row[bad] = (low if ring.lockstep else low[stream[bad]]) + age
            fresh = self._slots(stream[bad], row[bad])
            slots[bad] = fresh
            for field, new in zip(
                verdict, self._judge_old(fresh, stream[bad], eligible), strict=True
            ):
                if field.ndim:
                    field[bad] = new
        bad = np.flatnonzero(~verdict.valid)
        left = self._valid_slots()
        if not len(left):
            raise self._too_little(batch_size)
        stream[bad], position = self.layout.place(self._random.generator.choice(left, len(bad)))
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
        if batch.draw.probability is not None:
            np.divide(mass, total, out=batch.draw.probability, casting="same_kind")
        batch.weight[:] = self.sampler.weights(mass, np.float32(self._samples), np)
        self._samples += 1
        return slots, self._judge(slots)

    def update_priorities(self, draw: Draw, priorities: np.ndarray) -> None:
        """Give drawn rows new priorities[batch]; draws of rows that are gone are ignored."""
        if not (self._tree and isinstance(self.sampler, Prioritized)):
            raise BadConfig("HostPond: update_priorities needs sampler=prioritized()")
        stream, row = np.asarray(draw.stream), draw.ids()
        priorities = one_per_draw(draw, np.asarray(priorities)).astype(np.float64)
        wrong = ~((priorities >= 0) & (priorities <= LARGEST))
        if wrong.any():
            at = int(np.argmax(wrong))
            got = f"{priorities[at]} at index {at}"
            wanted = f"numbers >= 0, up to {LARGEST:g}"
            raise mismatch("priorities", wanted, got, "look for NaN or a diverging loss")
        if row.size and not 0 <= stream.min() <= stream.max() < self.streams:
            raise mismatch(
                "draw.stream", f"0 ... {self.streams - 1}", "others", "pass this ring's batch.draw"
            )
        with self._lock:
            here, slots = self._here(stream, row), self._slots(stream, row)
            if not here.all():
                slots, priorities = slots[here], priorities[here]
            mass = priorities**self.sampler.alpha * self._judge(slots).valid
            self._highest = max(self._highest, float(mass.max(initial=0.0)))
            self._tree.assign(slots, mass)

    def take(self, stream: np.ndarray, row: np.ndarray) -> Batch:
        """The transitions that start at row ids[batch] of streams[batch]; invalid ones masked."""
        slots = self._slots(stream, row)
        batch = host_batch(self.spec, self.window.stack, len(row))
        batch.draw.stream[:], batch.draw.row[:] = stream, row
        batch.weight.fill(1)
        with self._lock:
            verdict = self._judge(slots)
            self._assemble(slots, verdict, batch)
            batch.mask[:] = verdict.valid & self._here(stream, row)
        return batch

    def read(self, stream: np.ndarray, row: np.ndarray) -> Rows:
        """The rows with these ids of these streams, any shape, as they were added."""
        with self._lock:
            return self._read(np.asarray(stream), np.asarray(row))

    def _read(self, stream: np.ndarray, row: np.ndarray) -> Rows:
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
        with self._lock:
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

    def _valid_slots(self) -> np.ndarray:
        """Every valid start's slot, the oldest first: where almost nothing is valid."""
        low, high = self._ring.old_enough(self.window)
        ids = low + np.arange(self.length)[:, None]
        slots = self.layout.slot(np.arange(self.streams), ids % self.length)
        slots = slots[np.broadcast_to(ids < high, slots.shape)]
        return slots[self._judge(slots).valid]

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
            outs = leaves(batch.obs), leaves(batch.next_obs)
            for path, obs, next_obs in zip(self._intake.obs, *outs, strict=True):
                stores[path].take_around(slots, obs)
                if self.layout.whole:
                    stores[f"next_{path}"].take_around(slots, next_obs)
                else:
                    stores[path].take_around(after, next_obs)
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
        pairs = zip(leaves(batch.obs), leaves(batch.next_obs), strict=True)
        for path, outs in zip(self._intake.obs, pairs, strict=True):
            self._ring.stores[path].take_stacks(stream[:, None], rows, padded, outs)

    def export(self) -> dict[str, np.ndarray]:
        """The whole ring and its generator as flat arrays: `restore` gives an equal pond."""
        with self._lock:
            arrays = snapshot.pack(
                self,
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
        with self._lock:
            if "rng" in arrays:
                self._random.unpack(arrays["rng"])  # raises before anything has changed
            self._ring.restore(saved)
            self._known = np.zeros(1, np.int64), np.full(1, -1)
            if self._tree:
                mass, self._highest, self._samples = saved.priorities
                self._tree.rebuild(mass)

    def __reduce__(self) -> Any:
        """Copies and messages to other processes: how it was built, and what it holds.

        Attribute by attribute would not do: views into the ring's arrays would become arrays of
        their own, and what is added later would never be seen.
        """
        how = (self.spec, self.capacity, self.num_envs, self.window, self.sampler)
        return _rebuilt, (type(self), (*how, self.layout.name), self.export())


def _spans(streams: np.ndarray, start: Any, stop: Any) -> tuple[np.ndarray, np.ndarray]:
    """Stream and id of the rows start ... stop - 1 of every stream: int64[n] each."""
    if np.ndim(start) == 0:  # the same of all, row by row: neighbours in memory stay neighbours
        ids = np.arange(start, stop)
        return np.tile(streams, len(ids)), ids.repeat(len(streams))
    count = np.maximum(stop - start, 0)
    ends = count.cumsum()
    ids = np.arange(ends[-1]) + (start - ends + count).repeat(count)
    return streams.repeat(count), ids


def _rebuilt(kind: type[HostPond], how: tuple[Any, ...], arrays: dict[str, np.ndarray]) -> HostPond:
    pond = kind(*how)
    pond.restore(arrays)
    return pond
