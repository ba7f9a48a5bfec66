"""`HostPond`: the same replay over NumPy, mutable, for CPU learners and PyTorch users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadState, NotEnoughData, SpecMismatch
from ..rows import CUT, Batch, Draw, Rows, breaks, pack_flags
from ..samplers import Sampler, uniform
from ..spec import Field, Spec
from ..window import Verdict, Window
from . import snapshot
from .intake import Intake, broken_episode, rows_of
from .pond import ring_length

_WIDE = 1024  # bytes; wider fields lie env by env, which makes windows of them one stretch
_ROUNDS = 64  # redraws before the valid starts are counted out
_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel()


class _Store:
    """One field of every row: [rows + 1, width], the last row all zeros for padded positions."""

    def __init__(self, field: Field, length: int, num_envs: int) -> None:
        self.field, self.length, self.num_envs = field, length, num_envs
        self.by_env = field.nbytes >= _WIDE
        width = field.nbytes if field.binary else field.size
        dtype = np.uint8 if field.binary else field.dtype
        self.row_shape = (width,) if field.binary else field.shape
        self.data = np.zeros((length * num_envs + 1, width), dtype)
        outer = (num_envs, length) if self.by_env else (length, num_envs)
        grid = self.data[:-1].reshape(*outer, width)
        self.grid = grid.swapaxes(0, 1) if self.by_env else grid  # [length, env, width]

    def encode(self, value: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
        flat = value.reshape(*lead, self.field.size)
        if self.field.binary:
            return np.packbits(flat != 0, axis=-1, bitorder="little")
        return flat

    def take(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Rows at time-major slots into out[*slots.shape, ...]; slot `capacity` is the zero row."""
        if self.by_env and self.num_envs > 1:
            time, env = np.divmod(slots, self.num_envs)
            by_env = env * self.length + time
            slots = np.where(slots == len(self.data) - 1, slots, by_env)
        if not self.field.binary:
            flat = out.reshape(slots.size, self.field.size)
            np.take(self.data, slots.reshape(-1), axis=0, out=flat, mode="clip")
            return
        packed = self.data[slots.reshape(-1)]
        bits = np.unpackbits(packed, axis=-1, count=self.field.size, bitorder="little")
        out[...] = bits.reshape(out.shape)


class HostPond:
    """A ring of `capacity` rows over `num_envs` streams in host memory, with its own generator.

    Bad input raises and changes nothing. A batch never shares memory with the ring; pass the last
    one as `out` to reuse its arrays.

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
        seed: int = 0,
    ) -> None:
        self.spec, self.num_envs, self.capacity = spec, num_envs, capacity
        self.window, self.sampler = window or Window(), sampler or uniform()
        self.length = ring_length(capacity, num_envs)
        self.window.fits(spec, self.length)
        self._intake = Intake(spec)
        self._stores = {
            path: _Store(field, self.length, num_envs) for path, field in spec.columns.items()
        }
        self._obs = [path for path in self._stores if path.startswith("obs")]
        self._flags = np.full(capacity, CUT, np.uint8)  # CUT wherever nothing was written yet
        self._grid_flags = self._flags.reshape(self.length, num_envs)
        self._last = np.full(num_envs, CUT, np.uint8)
        self._added = np.zeros(num_envs, np.int64)  # int64: int32 wraps in 36 min at 1M steps/s
        self._lockstep = True  # every env has received the same number of rows
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def add(self, rows: Rows, env: int | None = None) -> None:
        """Append rows [env] or [time, env]; with `env`, one row [] or rows [time] of that env."""
        if env is None and self.num_envs == 1 and np.ndim(rows.reward) == 0:
            env = 0
        values = self._arrange(rows, env)
        self._intake.check_values(values)
        block = pack_flags(rows_of(values))
        envs = slice(None) if env is None else slice(env, env + 1)
        self._check_episodes(self._last[envs], block, env or 0)
        if env is None and self._lockstep:
            self._write(values, block, slice(None), int(self._added[0]))
        else:
            for one in range(self.num_envs) if env is None else (env,):
                part = slice(one, one + 1)
                mine = slice(one, one + 1) if env is None else slice(None)
                own = {path: value[:, mine] for path, value in values.items()}
                self._write(own, block[:, mine], part, int(self._added[one]))
            self._lockstep = bool(np.all(self._added == self._added[0]))

    def _write(
        self, values: Mapping[str, np.ndarray], block: np.ndarray, envs: slice, added: int
    ) -> None:
        """Write [time, envs] rows after row `added`, in at most two stretches per column."""
        time = len(block)
        kept = min(time, self.length)
        start = (added + time - kept) % self.length
        upper = min(kept, self.length - start)
        skip = time - kept
        for path, store in self._stores.items():
            rows = store.encode(values[path][skip:], (kept, block.shape[1]))
            store.grid[start : start + upper, envs] = rows[:upper]
            if upper < kept:
                store.grid[: kept - upper, envs] = rows[upper:]
        self._grid_flags[start : start + upper, envs] = block[skip : skip + upper]
        if upper < kept:
            self._grid_flags[: kept - upper, envs] = block[skip + upper :]
        self._last[envs] = block[-1]
        self._added[envs] += time

    def _arrange(self, rows: Rows, env: int | None) -> dict[str, np.ndarray]:
        """Checked values by path, all with leading axes [time, env]."""
        rank = np.ndim(getattr(rows, "reward", 0))
        if env is None:
            time = (len(rows.reward),) if rank == 2 else ()
            values = self._intake.arrange(
                rows, (*time, self.num_envs), "[time, env]" if time else "[env]"
            )
        else:
            if not 0 <= env < self.num_envs:
                raise SpecMismatch(
                    f"add: env must lie in [0, {self.num_envs - 1}], got {env}; "
                    "pass the env's index in this ring"
                )
            time = (len(rows.reward),) if rank == 1 else ()
            values = self._intake.arrange(rows, time, "[time]" if time else "one row")
            values = {path: np.expand_dims(value, len(time)) for path, value in values.items()}
        return values if time else {path: value[None] for path, value in values.items()}

    def _check_episodes(self, last: np.ndarray, block: np.ndarray, env: int) -> None:
        before = np.concatenate([last[None], block[:-1]]) if len(block) > 1 else last[None]
        broken = _BREAKS.take((before.astype(np.int16) << 7) | block)
        if broken.any():
            time, which = (int(i) for i in np.argwhere(broken)[0])
            where = f"add: env {env + which}, row {time} of {len(block)}"
            raise broken_episode(int(before[time, which]), int(block[time, which]), where)

    def cut(self, env: int | None = None) -> None:
        """Declare continuity lost after the newest row of `env` (default: of every env)."""
        for one in range(self.num_envs) if env is None else (env,):
            self._last[one] |= CUT
            self._grid_flags[(self._added[one] - 1) % self.length, one] |= CUT

    @property
    def size(self) -> int:
        """Rows stored, over all envs."""
        return int(np.minimum(self._added, self.length).sum())

    def can_sample(self) -> bool:
        """Whether the ring holds any row old enough to be a start."""
        return bool(np.any(self._eligible()[1] > 0))

    def check(self) -> None:
        """Raise BadState if the ring's own books do not agree; bad input never gets this far."""
        newest = self._grid_flags[(self._added - 1) % self.length, np.arange(self.num_envs)]
        if not np.array_equal(newest, self._last):
            raise BadState(
                "HostPond: the newest rows' flags do not match; was a private array changed?"
            )

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw `batch_size` transitions, or raise NotEnoughData if no start is valid."""
        first, count = self._eligible()
        total = int(count.sum())
        if total == 0:
            raise self._too_little(batch_size)
        slots = self._draw(batch_size, first, count)
        verdict = self._judge(slots)
        for round_ in range(_ROUNDS + 1):
            bad = np.flatnonzero(~verdict.valid)
            if not len(bad):
                break
            if round_ == _ROUNDS:
                fresh = self._rng.choice(self._valid_slots(batch_size), len(bad))
            else:
                fresh = self._draw(len(bad), first, count)
            slots[bad] = fresh
            for field, new in zip(verdict, self._judge(fresh), strict=True):
                field[bad] = new
        batch = self._buffers(batch_size) if out is None else self._reuse(out, batch_size)
        self._assemble(slots, verdict, batch)
        batch.draw.probability[:] = 1.0 / total
        batch.mask[:] = True
        return batch

    def take(self, stream: np.ndarray, row: np.ndarray) -> Batch:
        """The transitions that start at row ids[batch] of streams[batch]; invalid ones masked."""
        first, count = self._eligible()
        oldest = self._added - np.minimum(self._added, self.length)
        age = row - oldest[stream]
        slots = (row % self.length) * self.num_envs + stream
        verdict = self._judge(slots)
        batch = self._buffers(len(row))
        self._assemble(slots, verdict, batch)
        batch.draw.probability[:] = 0
        inside = (age >= first[stream]) & (age < first[stream] + count[stream])
        batch.mask[:] = verdict.valid & inside
        return batch

    def _eligible(self) -> tuple[np.ndarray, np.ndarray]:
        """Per env, counted from its oldest row: the first start by age, and how many."""
        size = np.minimum(self._added, self.length)
        return self.window.eligible(size, self.length)

    def _draw(self, number: int, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Slots (time-major) of uniformly drawn starts that are old enough: int64[number]."""
        oldest = self._added - np.minimum(self._added, self.length)
        if self._lockstep:
            low = (int(oldest[0] + first[0]) % self.length) * self.num_envs
            return (
                self._rng.integers(0, int(count[0]) * self.num_envs, number) + low
            ) % self.capacity
        ends = np.cumsum(count)
        flat = self._rng.integers(0, int(ends[-1]), number)
        env = np.searchsorted(ends, flat, side="right")
        row = oldest[env] + first[env] + flat - (ends[env] - count[env])
        return (row % self.length) * self.num_envs + env

    def _judge(self, slots: np.ndarray) -> Verdict:
        window = self.window
        reach = np.arange(-window.before, window.n_step)[:, None] * self.num_envs
        flags = self._flags.take((slots + reach) % self.capacity)
        return window.judge(flags, np)

    def _valid_slots(self, batch_size: int) -> np.ndarray:
        """Every valid start's slot: for rings where almost nothing is valid."""
        first, count = self._eligible()
        age = np.arange(self.length)[:, None]
        inside = (age >= first) & (age < first + count)
        oldest = self._added - np.minimum(self._added, self.length)
        slots = ((oldest + age) % self.length) * self.num_envs + np.arange(self.num_envs)
        slots = slots[inside]
        slots = slots[self._judge(slots).valid]
        if not len(slots):
            raise self._too_little(batch_size)
        return slots

    def _too_little(self, batch_size: int) -> NotEnoughData:
        need = self.window.n_step + 1
        return NotEnoughData(
            f"HostPond: {batch_size} transitions asked for, none of the {self.size} stored rows is "
            f"a valid start (a start needs {need} rows of one env without a cut); "
            "add more rows first, and wait for can_sample()"
        )

    def _assemble(self, slots: np.ndarray, verdict: Verdict, batch: Batch) -> None:
        window, envs, capacity = self.window, self.num_envs, self.capacity
        for tree, start, depth in (
            (batch.obs, slots, verdict.depth),
            (batch.next_obs, slots + verdict.steps * envs, verdict.depth + verdict.steps),
        ):
            back, padded = window.lookback(depth, np)
            where = (start[:, None] - back * envs) % capacity
            where[padded] = capacity
            for path in self._obs:
                self._stores[path].take(where, _leaf(tree, path))
        ahead = np.arange(window.n_step)[:, None] * envs
        rewards = self._stores["reward"].data[:, 0].take((slots + ahead) % capacity)
        batch.reward[:], batch.discount[:] = window.returns(rewards, verdict, np)
        self._stores["action"].take(slots, batch.action)
        for name, extra in batch.extras.items():
            if name == "life_lost":
                np.not_equal(verdict.first & 64, 0, out=extra)
            else:
                self._stores[f"extras/{name}"].take(slots, extra)
        np.not_equal(verdict.last & 16, 0, out=batch.terminated)
        np.not_equal(verdict.last & 32, 0, out=batch.truncated)
        batch.steps[:] = verdict.steps
        batch.weight[:] = 1
        position, stream = np.divmod(slots, envs)
        batch.draw.stream[:] = stream
        added = self._added[stream]
        lap = added - added % self.length
        batch.draw.row[:] = lap + position - np.where(lap + position >= added, self.length, 0)

    def _buffers(self, batch_size: int) -> Batch:
        def empty(field: Field, *lead: int) -> np.ndarray:
            return np.empty((batch_size, *lead, *field.shape), field.dtype)

        def obs() -> Any:
            fields = self.spec.columns
            return self.spec.obs_tree({p: empty(fields[p], self.window.stack) for p in self._obs})

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
        shape = (self.length, self.num_envs)
        columns = {
            path: store.grid.copy().reshape(*shape, *store.row_shape)
            for path, store in self._stores.items()
        }
        arrays = snapshot.pack(
            self, columns, self._grid_flags.copy(), self._added.copy(), np.zeros(2, np.uint32)
        )
        return arrays | {"rng": _pack_rng(self._rng)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Become the pond that was exported, by a HostPond or by a Pond of the same shape."""
        saved = snapshot.unpack(self, arrays)
        for path, store in self._stores.items():
            store.grid[...] = saved.columns[path].reshape(store.grid.shape)
        self._grid_flags[...] = saved.flags
        self._added[:] = saved.added
        self._lockstep = bool(np.all(self._added == self._added[0]))
        newest = self._grid_flags[(self._added - 1) % self.length, np.arange(self.num_envs)]
        self._last[:] = newest
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
