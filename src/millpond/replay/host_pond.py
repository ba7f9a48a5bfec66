"""`HostPond`: the same replay over NumPy, mutable, for CPU learners and PyTorch users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadConfig, BadState, NotEnoughData, SpecMismatch
from ..rows import CUT, LIFE_LOST, TERMINATED, TRUNCATED, Batch, Draw, Rows, Tree, breaks
from ..samplers import Eligible, Prioritized, Sampler, Stratified, uniform
from ..spec import Field, Spec, mismatch
from ..window import Verdict, Window
from . import snapshot
from .host_store import HostStore
from .intake import Intake, broken_episode, pack_values
from .layouts import LayoutName, make_layout
from .priorities import HostTree

_ROUNDS = 64  # redraws before the valid starts are counted out
_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel()


class _GeneratorRandom:
    """Random numbers from a generator, for samplers on the host."""

    xp: Any = np

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def integers(self, shape: tuple[int, ...], below: Any) -> np.ndarray:
        return self._generator.integers(0, int(below), shape)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._generator.random(shape, np.float32)

    def permutation(self, number: int) -> np.ndarray:
        return self._generator.permutation(number)


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
        columns = self.layout.columns(spec)
        self._stores = {path: HostStore(field, self.layout) for path, field in columns.items()}
        self._flags = np.full(self.layout.lead, CUT, np.uint8)  # CUT where nothing was written
        self._flat_flags = self._flags.reshape(-1)
        self._last = np.full(self.streams, CUT, np.uint8)
        self._added = np.zeros(self.streams, np.int64)  # int32 would wrap in 36 min at 1M steps/s
        self._lockstep = True  # every stream has received the same number of rows
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._random = _GeneratorRandom(self._rng)
        fan = self.sampler.fan if isinstance(self.sampler, Prioritized) else None
        self._tree = HostTree(capacity, fan) if fan else None
        self._highest, self._samples = 1.0, 0

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
        values, keep = self._arrange(rows, next_obs, env, mask)
        self._intake.check_values(values)
        flags = pack_values(values)
        if not self.layout.whole:
            self._check_episodes(flags, env, keep)
        before = self._added.copy() if self._tree else self._added
        if env is None and keep is None and self._lockstep:
            self._write_block(values, flags)
        else:
            self._write_rows(values, flags, env, keep)
        if self._tree:
            self._rank_new(self._tree, before)

    def _arrange(
        self, rows: Rows, next_obs: Tree | None, env: int | None, mask: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Checked values by path with leading axes [time, stream], and the mask."""
        rank = np.ndim(getattr(rows, "reward", 0))
        if rank == 0 and (self.layout.whole or self.streams == 1):
            env = 0
        if env is None:
            return self._intake.blocks(rows, next_obs, mask, self.layout)
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
        last = self._last[begin : begin + flags.shape[1]]
        for time, now in enumerate(flags):
            broken = _BREAKS.take((last.astype(np.int16) << 7) | now)
            if keep is not None:
                broken = broken & keep[time]
            if broken.any():
                which = int(np.argmax(broken))
                where = f"add: env {begin + which}, row {time} of {len(flags)}"
                raise broken_episode(int(last[which]), int(now[which]), where)
            last = now if keep is None else np.where(keep[time], now, last)

    def _write_block(self, values: Mapping[str, np.ndarray], flags: np.ndarray) -> None:
        """Write [time, stream] rows of all streams, in at most two stretches per column."""
        time = len(flags)
        kept = min(time, self.length)
        start = (int(self._added[0]) + time - kept) % self.length
        upper = min(kept, self.length - start)
        skip = time - kept
        for path, store in self._stores.items():
            rows = store.encode(values[path][skip:] if skip else values[path])
            store.grid[start : start + upper] = rows[:upper]
            if upper < kept:
                store.grid[: kept - upper] = rows[upper:]
        grid = self._flags.T if self.layout.own_heads else self._flags
        grid[start : start + upper] = flags[skip : skip + upper]
        grid[: kept - upper] = flags[skip + upper :]
        self._last[:] = flags[-1]
        self._added += time

    def _write_rows(
        self,
        values: Mapping[str, np.ndarray],
        flags: np.ndarray,
        env: int | None,
        keep: np.ndarray | None,
    ) -> None:
        """Write [time, stream] rows of one stream, or the kept ones, each at its own head."""
        stream = np.arange(self.streams) if env is None else np.array([env])
        keep = np.ones(flags.shape, bool) if keep is None else keep
        rank = np.cumsum(keep, axis=0) - 1
        number = rank[-1] + 1
        fits = keep & (rank >= number - self.length)  # of more than fit, the newest
        position = (self._added[stream] + rank) % self.length
        slots = self.layout.slot(stream, position)[fits]
        for path, store in self._stores.items():
            store.put(slots, store.encode(values[path])[fits])
        self._flat_flags[slots] = flags[fits]
        newest = keep & (rank == number - 1)
        last = np.where(newest, flags, 0).max(axis=0)
        self._last[stream] = np.where(number > 0, last, self._last[stream])
        self._added[stream] += number
        self._lockstep = bool(np.all(self._added == self._added[0]))

    def _rank_new(self, tree: HostTree, before: np.ndarray) -> None:
        """Starts that have become old enough get the highest mass seen, those too old none."""
        ends = [self._old_enough(before), self._old_enough(self._added)]
        (low0, high0), (low1, high1) = ends
        groups = [slice(None)] if self._lockstep and np.all(before == before[0]) else None
        changed = np.flatnonzero(before != self._added)
        streams = np.arange(self.streams)
        for group in groups or [slice(e, e + 1) for e in changed]:
            one = group.start or 0
            gone = np.arange(low0[one], min(low1[one], high0[one]))
            fresh = np.arange(max(high0[one], low1[one]), high1[one])
            ids = np.concatenate([gone[-self.length :], fresh])[:, None]
            slots = self.layout.slot(streams[group], ids % self.length)
            mass = np.zeros(slots.shape)
            new = slots[len(slots) - len(fresh) :]
            mass[len(slots) - len(fresh) :] = self._judge(new).valid * self._highest
            tree.assign(slots.ravel(), mass.ravel())

    def _old_enough(self, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Per stream the first id that may start by age, and the first after it that may not."""
        size = np.minimum(added, self.length)
        first, count = self.layout.eligible(self.window, size)
        low = added - size + first
        return low, low + count

    def cut(self, env: int | None = None) -> None:
        """Declare continuity lost after the newest row of `env` (default: of every env)."""
        if self.layout.whole:
            return
        streams = np.arange(self.streams) if env is None else np.array([env])
        self._last[streams] |= CUT
        newest = self.layout.slot(streams, (self._added[streams] - 1) % self.length)
        self._flat_flags[newest] |= CUT

    @property
    def size(self) -> int:
        """Rows stored, over all streams."""
        return int(np.minimum(self._added, self.length).sum())

    @property
    def nbytes(self) -> int:
        """Bytes held by the ring."""
        return self._flags.nbytes + sum(store.nbytes for store in self._stores.values())

    def can_sample(self) -> bool:
        """Whether the ring holds any row old enough to be a start."""
        low, high = self._old_enough(self._added)
        return bool(np.any(high > low))

    def check(self) -> None:
        """Raise BadState if the ring's own books do not agree; bad input never gets this far."""
        newest = self.layout.slot(np.arange(self.streams), (self._added - 1) % self.length)
        written = self._added > 0
        if not np.array_equal(self._flat_flags[newest][written], self._last[written]):
            raise BadState(
                "HostPond: the newest rows' flags do not match; was a private array changed?"
            )

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw `batch_size` transitions, or raise NotEnoughData if no start is valid."""
        batch = self._buffers(batch_size) if out is None else self._reuse(out, batch_size)
        if self._tree:
            slots, verdict = self._draw_ranked(self._tree, batch_size, batch)
        else:
            slots, verdict = self._draw(batch_size, batch)
            batch.weight[:] = 1
        self._assemble(slots, verdict, batch)
        batch.mask[:] = True
        return batch

    def _draw(self, batch_size: int, batch: Batch) -> tuple[np.ndarray, Verdict]:
        """Slots of valid starts and what their flags say."""
        low, high = self._old_enough(self._added)
        count: Any = int(high[0] - low[0]) if self._lockstep else high - low
        if np.sum(count) == 0:
            raise self._too_little(batch_size)
        eligible = Eligible(count, self.streams)
        assert not isinstance(self.sampler, Prioritized)
        bound = isinstance(self.sampler, Stratified)  # to redraw, a sample stays in its stratum
        tries = self.sampler.tries if bound else 1
        proposed, chances = self._propose(self.sampler, tries, batch_size, eligible, low)
        slots, chance = proposed[0].copy(), chances[0].copy()
        verdict = self._judge_old(slots, eligible)
        for round_ in range(1, _ROUNDS):
            bad = np.flatnonzero(~verdict.valid)
            if not len(bad):
                break
            if round_ < tries:
                slots[bad], chance[bad] = proposed[round_, bad], chances[round_, bad]
            else:
                other = uniform() if bound else self.sampler
                fresh, likely = self._propose(other, 1, len(bad), eligible, low)
                slots[bad], chance[bad] = fresh[0], likely[0]
            for field, new in zip(verdict, self._judge_old(slots[bad], eligible), strict=True):
                field[bad] = new
        else:
            bad = np.flatnonzero(~verdict.valid)
            slots[bad] = self._rng.choice(self._valid_slots(batch_size), len(bad))
            verdict = self._judge(slots)
        batch.draw.probability[:] = chance
        return slots, verdict

    def _propose(
        self, sampler: Any, tries: int, number: int, eligible: Eligible, low: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots and probabilities [tries, number] of starts that are old enough."""
        drawn = sampler.propose(self._random, tries, number, eligible)
        begin: Any = low[0] if self._lockstep else low[drawn.stream]
        position = begin % self.length + drawn.age
        position = position - self.length * (position >= self.length)
        return self.layout.slot(drawn.stream, position), drawn.probability

    def _judge_old(self, slots: np.ndarray, eligible: Eligible) -> Verdict:
        """As `_judge`; a stream in which nothing is old enough yet has no valid start."""
        verdict = self._judge(slots)
        if self._lockstep:
            return verdict
        return verdict._replace(
            valid=verdict.valid & (eligible.count > 0)[self.layout.place(slots)[0]]
        )

    def _draw_ranked(
        self, tree: HostTree, batch_size: int, batch: Batch
    ) -> tuple[np.ndarray, Verdict]:
        assert isinstance(self.sampler, Prioritized)
        total = tree.total()
        if total <= 0:
            raise self._too_little(batch_size)
        slots, mass = tree.draw(self._rng, batch_size)
        batch.draw.probability[:] = mass / total
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
        if np.any((stream < 0) | (stream >= self.streams)):
            raise mismatch(
                "draw.stream", f"0 ... {self.streams - 1}", "others", "pass this ring's batch.draw"
            )
        low, high = self._old_enough(self._added)
        here = (row >= low[stream]) & (row < high[stream])
        slots = self.layout.slot(stream, row % self.length)[here]
        mass = priorities[here] ** self.sampler.alpha * self._judge(slots).valid
        self._highest = max(self._highest, float(mass.max(initial=0.0)))
        self._tree.assign(slots, mass)

    def take(self, stream: np.ndarray, row: np.ndarray) -> Batch:
        """The transitions that start at row ids[batch] of streams[batch]; invalid ones masked."""
        low, high = self._old_enough(self._added)
        slots = self.layout.slot(stream, row % self.length)
        verdict = self._judge(slots)
        batch = self._buffers(len(row))
        self._assemble(slots, verdict, batch)
        batch.draw.probability[:] = 0
        batch.weight[:] = 1
        batch.mask[:] = verdict.valid & (row >= low[stream]) & (row < high[stream])
        return batch

    def _shift(self, slots: np.ndarray, rows: Any) -> np.ndarray:
        """Slots that lie `rows` rows later in the same streams, around the ring's end."""
        if self.layout.own_heads:
            stream, position = self.layout.place(slots)
            return self.layout.slot(stream, (position + rows) % self.length)
        return (slots + rows * self.streams) % self.capacity

    def _judge(self, slots: np.ndarray) -> Verdict:
        window = self.window
        if window.before + window.n_step == 1:
            flags = self._flat_flags.take(slots, mode="clip")[None]
        else:
            reach = np.arange(-window.before, window.n_step).reshape(-1, *(1,) * slots.ndim)
            flags = self._flat_flags.take(self._shift(slots, reach), mode="clip")
        return window.judge(flags, np)

    def _valid_slots(self, batch_size: int) -> np.ndarray:
        """Every valid start's slot: for rings where almost nothing is valid."""
        low, high = self._old_enough(self._added)
        ids = low + np.arange(self.length)[:, None]
        slots = self.layout.slot(np.arange(self.streams), ids % self.length)[ids < high]
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
        window = self.window
        self._take_stacks(slots, verdict.depth, batch.obs, "")
        if self.layout.whole:
            self._take_stacks(slots, verdict.depth, batch.next_obs, "next_")
        else:
            after = self._shift(slots, verdict.steps)
            self._take_stacks(after, verdict.depth + verdict.steps, batch.next_obs, "")
        rewards = self._stores["reward"].ring[:, 0]
        ahead = np.arange(window.n_step)[:, None]
        where = slots[None] if window.n_step == 1 else self._shift(slots, ahead)
        batch.reward[:], batch.discount[:] = window.returns(
            rewards.take(where, mode="clip"), verdict, np
        )
        self._stores["action"].take(slots, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                np.not_equal(verdict.first & LIFE_LOST, 0, out=extra)
            else:
                self._stores[f"extras/{name}"].take(slots, extra)
        np.not_equal(verdict.last & TERMINATED, 0, out=batch.terminated)
        np.not_equal(verdict.last & TRUNCATED, 0, out=batch.truncated)
        batch.steps[:] = verdict.steps
        stream, position = self.layout.place(slots)
        batch.draw.stream[:] = stream
        added: Any = int(self._added[0]) if self._lockstep else self._added[stream]
        row = added - added % self.length + position
        batch.draw.row[:] = row - self.length * (row >= added)

    def _take_stacks(self, slots: np.ndarray, depth: np.ndarray, tree: Any, prefix: str) -> None:
        if self.window.stack == 1:
            where = slots
        else:
            back, padded = self.window.lookback(depth, np)
            where = self._shift(slots[:, None], -back)
            where[padded] = self.capacity
        for path in self._intake.obs:
            self._stores[prefix + path].take(where, _leaf(tree, path))

    def _buffers(self, batch_size: int) -> Batch:
        def empty(field: Field, *lead: int) -> np.ndarray:
            return np.empty((batch_size, *lead, *field.shape), field.dtype)

        def obs() -> Any:
            fields = self.spec.columns
            return self.spec.obs_tree(
                {p: empty(fields[p], self.window.stack) for p in self._intake.obs}
            )

        def plain(dtype: str) -> np.ndarray:
            return np.empty(batch_size, dtype)

        return Batch(
            obs=obs(),
            action=empty(self.spec.action),
            reward=plain("float32"),
            next_obs=obs(),
            discount=plain("float32"),
            terminated=plain("bool"),
            truncated=plain("bool"),
            steps=plain("int32"),
            mask=plain("bool"),
            weight=plain("float32"),
            draw=Draw(plain("int32"), plain("int64"), plain("float32")),
            extras={name: empty(field) for name, field in self.spec.extras.items()},
        )

    def _reuse(self, out: Batch, batch_size: int) -> Batch:
        if not isinstance(out, Batch) or len(out.reward) != batch_size:
            raise SpecMismatch(
                f"sample: out must be a batch of {batch_size} from this pond; "
                "pass what an earlier sample of the same size returned"
            )
        return out

    def export(self) -> dict[str, np.ndarray]:
        """The whole ring and its generator as flat arrays: `restore` gives an equal pond."""
        arrays = snapshot.pack(
            self.layout,
            self.spec,
            {path: store.values() for path, store in self._stores.items()},
            self._flags,
            self._added,
            faults=np.zeros(3, np.uint32),
            priorities=self._tree
            and (self._tree.levels[0][: self.capacity], self._highest, self._samples),
        )
        return arrays | {"rng": _pack_rng(self._rng)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Become the pond that was exported, by a HostPond or by a Pond of the same shape."""
        saved = snapshot.unpack(self, arrays)
        for path, store in self._stores.items():
            store.restore(saved.columns[path])
        self._flags[...] = saved.flags
        self._added[:] = saved.added
        self._lockstep = bool(np.all(self._added == self._added[0]))
        self._last[:] = snapshot.newest_flags(self.layout, saved)
        if self._tree:
            mass, self._highest, self._samples = saved.priorities
            self._tree.rebuild(mass)
        if "rng" in arrays:
            _unpack_rng(self._rng, arrays["rng"])


def _leaf(tree: Any, path: str) -> np.ndarray:
    for key in path.split("/")[1:]:
        tree = tree[key]
    return tree


def _pack_rng(rng: np.random.Generator) -> np.ndarray:
    """A PCG64 generator's state as uint64[6]."""
    state = rng.bit_generator.state
    words = [state["state"]["state"], state["state"]["inc"]]
    halves = [half for word in words for half in (word >> 64, word & (2**64 - 1))]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def _unpack_rng(rng: np.random.Generator, packed: np.ndarray) -> None:
    words = [int(word) for word in packed]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3]},
        "has_uint32": words[4],
        "uinteger": words[5],
    }
