"""`Pond`: replay in device memory, as pure functions over a state that can be donated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig, BadState, FaultsFound
from ..rows import CUT, Array, Batch, Draw, Rows, breaks, pack_flags
from ..samplers import Sampler, uniform
from ..spec import Spec
from ..window import Verdict, Window
from . import snapshot
from .columns import Column
from .intake import Intake, rows_of
from .ring import write


class Faults(NamedTuple):
    """Rows with bad values that arrived inside jit, where nothing can raise: uint32 counts."""

    values: Array  # a value outside its bounds, or a reward that is no number
    borders: Array  # flags that contradict the row before


class PondState(NamedTuple):
    """The ring. Time by env: every column lies [length, env, ...], so that a step is one write."""

    columns: dict[str, Array]
    flags: Array  # uint8[length, env]; CUT wherever nothing was written yet
    last: Array  # uint8[env]: flags byte of the newest row
    head: Array  # int32: where the next row goes
    size: Array  # int32: rows stored per env
    base: Array  # uint32[2]: 64-bit id of the row at position 0 in this lap, high and low word
    faults: Faults
    # Always 0, but the compiler does not know: `sample` makes it depend on the batch and `add`
    # mixes it into what it writes, so reads finish before writes and the ring is never copied.
    zero: Array


class Pond:
    """A ring of `capacity` rows over `num_envs` streams in lockstep, in device memory.

    `init`, `add`, `sample`, `can_sample`, `size` and `cut` are pure and run inside jit, scan and
    vmap; donate the state. The newest `capacity` rows remain, exactly.

        pond = Pond(spec, capacity=500_000, num_envs=2048, window=Window(n_step=3))
        state = jax.jit(pond.add, donate_argnums=0)(pond.init(), rows)
        state, batch = pond.sample(state, key, 4096)
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: Window | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.spec, self.num_envs = spec, num_envs
        self.window, self.sampler = window or Window(), sampler or uniform()
        self.length = ring_length(capacity, num_envs)
        if capacity >= 2**31:
            raise BadConfig(
                f"Pond: capacity {capacity} needs 64-bit positions, which JAX lacks on a device; "
                "use several Ponds, HostPond or a Lake"
            )
        self.window.fits(spec, self.length)
        self.capacity = capacity
        self._intake = Intake(spec)
        self._columns = {path: Column(path, field) for path, field in spec.columns.items()}

    def init(self) -> PondState:
        """An empty ring."""
        shape = (self.length, self.num_envs)
        return PondState(
            columns={p: jnp.zeros((*shape, *c.shape), c.dtype) for p, c in self._columns.items()},
            flags=jnp.full(shape, CUT, np.uint8),
            last=jnp.full(self.num_envs, CUT, np.uint8),
            head=jnp.int32(0),
            size=jnp.int32(0),
            base=jnp.zeros(2, np.uint32),
            faults=Faults(jnp.uint32(0), jnp.uint32(0)),
            zero=jnp.uint32(0),
        )

    @property
    def axes(self) -> Any:
        """vmap axes of a state for several agents' ponds that are written together.

        The head is shared: batched, it would turn every write into a scatter.
        `jax.vmap(pond.add, in_axes=(pond.axes, 0), out_axes=pond.axes)(states, rows)`.
        """
        return PondState(
            columns=dict.fromkeys(self._columns, 0),
            flags=0,
            last=0,
            head=None,
            size=None,
            base=None,
            faults=Faults(0, 0),
            zero=0,
        )  # pyright: ignore[reportArgumentType]

    def init_many(self, agents: int) -> PondState:
        """Empty rings for `agents` agents with one shared head, to be vmapped with `axes`."""
        return jax.tree.map(
            lambda axis, leaf: leaf if axis is None else jnp.repeat(leaf[None], agents, axis),
            self.axes,
            self.init(),
            is_leaf=lambda axis: axis is None,
        )

    def add(self, state: PondState, rows: Rows) -> PondState:
        """Append rows [env] or [time, env], any number of them; the newest `capacity` remain.

        Wrong names, shapes and dtypes raise. A row with a bad value is stored as CUT, so that no
        sample touches it, and counted in `state.faults`: see `check`.
        """
        values = self._arrange(rows)
        time = values["reward"].shape[0]
        bad = self._intake.bad_values(values, rank=2, xp=jnp)
        values["reward"] = jnp.where(jnp.isfinite(values["reward"]), values["reward"], 0)
        block = pack_flags(rows_of(values))
        block = jnp.where(bad, block | np.uint8(CUT), block) & np.uint8(127)
        joined = jnp.concatenate([state.last[None], block])
        broken = breaks(joined[:-1], joined[1:])
        joined = joined.at[:-1].set(jnp.where(broken, joined[:-1] | np.uint8(CUT), joined[:-1]))
        faults = Faults(
            state.faults.values + bad.sum(dtype=np.uint32),
            state.faults.borders + broken.sum(dtype=np.uint32),
        )
        kept = min(time, self.length)  # of more rows than fit, only the newest are written
        start = (state.head + (time - kept)) % self.length
        columns = {
            path: write(
                state.columns[path],
                _mix(
                    column.encode(values[path], values[path].shape[:2])[time - kept :], state.zero
                ),
                start,
            )
            for path, column in self._columns.items()
        }
        joined = _mix(joined, state.zero)
        head = (state.head + time % self.length) % self.length
        return PondState(
            columns=columns,
            flags=self._write_flags(state.flags, joined, kept, start),
            last=joined[-1],
            head=head,
            size=jnp.minimum(state.size + time, self.length),
            base=_plus(state.base, self._laps(state.head, time)),
            faults=faults,
            zero=state.zero,
        )

    def _write_flags(self, flags: Array, joined: Array, kept: int, start: Array) -> Array:
        """The new rows' flags, and those of the newest row before, which may have become a cut."""
        if kept < self.length:
            before = (start - 1) % self.length
            if kept == 1:
                flags = write(flags, joined[:1], before)
                return write(flags, joined[1:], start)
            return write(flags, joined[-kept - 1 :], before)
        return write(flags, joined[-kept:], start)

    def _laps(self, head: Array, time: int) -> Array:
        """uint32[2]: by how much `base` grows when `time` rows are added at `head`."""
        whole, rest = divmod(time, self.length)
        low = np.uint32((whole * self.length) & 0xFFFFFFFF)
        high = np.uint32((whole * self.length) >> 32)
        wraps = (head + rest >= self.length).astype(np.uint32) * np.uint32(self.length)
        return _plus(jnp.array([high, low]), jnp.stack([jnp.uint32(0), wraps]))

    def cut(self, state: PondState, envs: Array | None = None) -> PondState:
        """Declare continuity lost after the newest row of `envs` (bool[env]; default all)."""
        which = jnp.ones(self.num_envs, bool) if envs is None else envs
        last = _mix(jnp.where(which, state.last | np.uint8(CUT), state.last), state.zero)
        flags = write(state.flags, last[None], (state.head - 1) % self.length)
        return state._replace(last=last, flags=flags)

    def size(self, state: PondState) -> Array:
        """Rows stored, over all envs: int32."""
        return state.size * self.num_envs

    def can_sample(self, state: PondState) -> Array:
        """Whether the ring holds any row old enough to be a start: bool."""
        return self.window.eligible(state.size, self.length)[1] > 0

    def sample(self, state: PondState, key: Array, batch_size: int) -> tuple[PondState, Batch]:
        """Draw `batch_size` transitions; return the state too, and go on with that one.

        Where no valid start was found `batch.mask` is false.
        """
        first, count = self.window.eligible(state.size, self.length)
        tries = self.sampler.tries
        env_key, time_key = jax.random.split(key)
        env = _integers(env_key, (tries, batch_size), jnp.uint32(self.num_envs))
        age = _integers(time_key, (tries, batch_size), count.astype(np.uint32))
        oldest = state.head - state.size
        position = (oldest + first + age) % self.length
        verdict = self._judge(state, env, position)
        # The first valid candidate; where there is none, the last one, masked.
        chosen = jnp.where(verdict.valid.any(0), verdict.valid.argmax(0), tries - 1)[None]
        env, position, verdict = jax.tree.map(
            lambda leaf: jnp.take_along_axis(leaf, chosen, axis=0)[0], (env, position, verdict)
        )
        mask = verdict.valid & (count > 0)
        chance = 1.0 / jnp.maximum(count * self.num_envs, 1).astype(np.float32)
        batch = self._assemble(state, env, position, verdict, mask, chance)
        return self._after(state, batch), batch

    def take(self, state: PondState, env: Array, position: Array) -> Batch:
        """The transitions that start at ring positions[batch] of envs[batch], valid or masked."""
        verdict = self._judge(state, env, position)
        first, count = self.window.eligible(state.size, self.length)
        age = (position - (state.head - state.size)) % self.length
        mask = verdict.valid & (age >= first) & (age < first + count)
        return self._assemble(state, env, position, verdict, mask, jnp.float32(0))

    def _judge(self, state: PondState, env: Array, position: Array) -> Verdict:
        window = self.window
        reach = np.arange(-window.before, window.n_step).reshape(-1, *(1,) * env.ndim)
        flags = _rows(state.flags, (position + reach) % self.length, env)
        return window.judge(flags, jnp)

    def _assemble(
        self,
        state: PondState,
        env: Array,
        position: Array,
        verdict: Verdict,
        mask: Array,
        chance: Array,
    ) -> Batch:
        window = self.window

        def at(path: str, where: Array, env: Array = env) -> Array:
            return self._columns[path].decode(_rows(state.columns[path], where % self.length, env))

        def stack(start: Array, depth: Array) -> Any:
            back, padded = window.lookback(depth, jnp)
            columns = {
                path: _blank(at(path, start[:, None] - back, env[:, None]), padded)
                for path in self._columns
                if path.startswith("obs")
            }
            return self.spec.obs_tree(columns)

        ahead = np.arange(window.n_step)[:, None]
        reward, discount = window.returns(at("reward", position + ahead), verdict, jnp)
        extras = {
            name: (verdict.first & 64) != 0
            if name == "life_lost"
            else at(f"extras/{name}", position)
            for name in self.spec.extras
        }
        return Batch(
            obs=stack(position, verdict.depth),
            action=at("action", position),
            reward=reward,
            next_obs=stack(position + verdict.steps, verdict.depth + verdict.steps),
            discount=discount,
            terminated=(verdict.last & 16) != 0,
            truncated=(verdict.last & 32) != 0,
            steps=verdict.steps,
            mask=mask,
            weight=jnp.ones_like(reward),
            draw=Draw(env, self._ids(state, position), jnp.broadcast_to(chance, mask.shape)),
            extras=extras,
        )

    def _ids(self, state: PondState, position: Array) -> Array:
        """uint32[batch, 2]: positions at or after the head were written one lap earlier."""
        low = state.base[1] + position.astype(np.uint32)
        high = state.base[0] + (low < state.base[1])
        earlier = position >= state.head
        borrow = earlier & (low < self.length)
        low = jnp.where(earlier, low - np.uint32(self.length), low)
        return jnp.stack([high - borrow, low], axis=-1)

    def _after(self, state: PondState, batch: Batch) -> PondState:
        seen = jnp.uint32(0)
        for leaf in jax.tree.leaves(batch):
            seen = seen | _fold(leaf)
        return state._replace(zero=state.zero & seen)

    def _arrange(self, rows: Rows) -> dict[str, Array]:
        """Values by path with leading axes [time, env]."""
        reward = getattr(rows, "reward", None)
        time = reward.shape[:-1] if reward is not None and reward.ndim == 2 else ()
        lead = (*time, self.num_envs)
        whose = "[time, env]" if time else "[env]"
        values = self._intake.arrange(rows, lead, whose)
        return {path: v if time else jnp.asarray(v)[None] for path, v in values.items()}

    def check(self, state: PondState) -> None:
        """Host: raise FaultsFound if bad values were ignored inside jit since `init`."""
        values, borders = (int(np.sum(np.asarray(count))) for count in state.faults)
        if values or borders:
            raise FaultsFound(
                f"Pond: {values} rows with a value outside its bounds or a reward that is no "
                f"number, {borders} rows whose flags contradict the row before; they were kept "
                "out of every sample; check the env, or add to a HostPond, which says which row"
            )

    def export(self, state: PondState) -> dict[str, np.ndarray]:
        """The whole ring as flat NumPy arrays, from which `restore` gives an equal state."""
        added = (int(state.base[0]) << 32 | int(state.base[1])) + int(state.head)
        columns = {
            path: snapshot.plain(field, np.asarray(self._columns[path].decode(state.columns[path])))
            for path, field in self.spec.columns.items()
        }
        return snapshot.pack(
            self,
            columns,
            np.asarray(state.flags),
            np.full(self.num_envs, added, np.int64),
            faults=np.asarray(state.faults, np.uint32),
        )

    def restore(self, arrays: Mapping[str, np.ndarray]) -> PondState:
        """The state that was exported, by this Pond or by a HostPond of the same shape."""
        saved = snapshot.unpack(self, arrays)
        added = int(saved.added[0])
        if np.any(saved.added != added):
            raise BadState(
                "Pond: the exported streams are not in lockstep; restore them into a HostPond"
            )
        shape = (self.length, self.num_envs)
        head, lap = added % self.length, added - added % self.length
        newest = saved.flags[head - 1] if added else np.full(self.num_envs, CUT, np.uint8)
        values, borders = saved.faults
        return PondState(
            columns={
                p: c.encode(jnp.asarray(snapshot.value(c.field, saved.columns[p])), shape)
                for p, c in self._columns.items()
            },
            flags=jnp.asarray(saved.flags),
            last=jnp.asarray(newest),
            head=jnp.int32(head),
            size=jnp.int32(min(added, self.length)),
            base=jnp.array([lap >> 32, lap & 0xFFFFFFFF], np.uint32),
            faults=Faults(jnp.uint32(values), jnp.uint32(borders)),
            zero=jnp.uint32(0),
        )


def ring_length(capacity: int, num_envs: int) -> int:
    """Rows per env of a ring of exactly `capacity` rows, or BadConfig: never rounded."""
    if not isinstance(num_envs, int) or num_envs < 1:
        raise BadConfig(f"num_envs must be a whole number >= 1, got {num_envs!r}")
    if not isinstance(capacity, int) or capacity < 1:
        raise BadConfig(f"capacity must be a whole number of rows >= 1, got {capacity!r}")
    if capacity % num_envs:
        lower = capacity - capacity % num_envs
        raise BadConfig(
            f"capacity {capacity} does not divide among {num_envs} envs and is never rounded; "
            f"use {lower} or {lower + num_envs}"
        )
    return capacity // num_envs


def _rows(ring: Array, position: Array, env: Array) -> Array:
    """ring[length, env, ...] at (position, env), as one gather of rows."""
    flat = ring.reshape(-1, *ring.shape[2:])
    return flat.at[position * ring.shape[1] + env].get(mode="promise_in_bounds")


def _blank(values: Array, padded: Array) -> Array:
    padded = padded.reshape(*padded.shape, *(1,) * (values.ndim - 2))
    return jnp.where(padded, values.dtype.type(0), values)


def _integers(key: Array, shape: tuple[int, ...], below: Array) -> Array:
    """int32 in [0, below), by the high half of a 32 x 32 bit product: bias under below / 2^32."""
    bits = jax.random.bits(key, shape, np.uint32)
    low = (bits & 0xFFFF) * (below & 0xFFFF)
    mid = (bits >> 16) * (below & 0xFFFF) + (low >> 16)
    carry = (bits & 0xFFFF) * (below >> 16) + (mid & 0xFFFF)
    high = (bits >> 16) * (below >> 16) + (mid >> 16) + (carry >> 16)
    return high.astype(np.int32)


def _plus(a: Array, b: Array) -> Array:
    low = a[1] + b[1]
    return jnp.stack([a[0] + b[0] + (low < a[1]), low])


def _fold(leaf: Array) -> Array:
    """Any array's bits, ored into one uint32."""
    if leaf.dtype == bool:
        leaf = leaf.astype(np.uint8)
    bits = jax.lax.bitcast_convert_type(leaf, f"uint{leaf.dtype.itemsize * 8}")
    whole = jax.lax.reduce(bits, bits.dtype.type(0), jax.lax.bitwise_or, range(bits.ndim))
    return whole.astype(np.uint32)


def _mix(block: Array, zero: Array) -> Array:
    """The block, unchanged, but computed from `zero`."""
    if block.dtype == bool:
        return block | (zero != 0)
    word = f"uint{block.dtype.itemsize * 8}"
    bits = jax.lax.bitcast_convert_type(block, word) | zero.astype(word)
    return jax.lax.bitcast_convert_type(bits, block.dtype)
