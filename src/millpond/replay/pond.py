"""`Pond`: replay in device memory, as pure functions over a state."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Generic, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import check_batch_size, checked_sampler, checked_window
from ..errors import BadConfig, BadState, FaultsFound
from ..intake import KNOWN_FLAGS, Intake, pack_values
from ..rows import (
    CUT,
    Array,
    Batch,
    Draw,
    Rows,
    Tree,
    unpack_rows,
)
from ..samplers import Eligible, Prioritized, Sampler
from ..sequence import AnyBatch, AnyWindow, Sequence, SequenceBatch
from ..spec import Spec
from ..window import Window
from . import snapshot
from .bits import KeyRandom, around, finished, minus, plus, remainder, settle, together
from .device_batches import DeviceBatches
from .device_ranks import DeviceRanks
from .device_ring import DeviceRing, PondState
from .device_sequences import DeviceSequences
from .layouts import LayoutName, make_layout, which_envs
from .one_program import CompiledCalls, one_program
from .priorities import LARGEST


class Pond(Generic[AnyBatch]):
    """A ring in device memory that keeps the newest `capacity` rows, exactly.

    `init`, `add`, `sample`, `update_priorities`, `can_sample`, `size` and `cut` are pure and run
    inside jit, scan and vmap; donate the state. Outside jit, each call runs as one compiled
    program. Layouts: see docs/replay.md.

        pond = Pond(spec, capacity=499_712, num_envs=2048, window=Window(n_step=3))
        state = jax.jit(pond.add, donate_argnums=0)(pond.init(), rows)
        state, batch = pond.sample(state, key, 4096)

    With `window=Sequence(...)`, `sample` returns a `SequenceBatch`.
    """

    @overload
    def __init__(
        self: Pond[Batch],
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: Window | None = None,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
    ) -> None: ...

    @overload
    def __init__(
        self: Pond[SequenceBatch],
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        *,
        window: Sequence,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
    ) -> None: ...

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        num_envs: int = 1,
        window: AnyWindow | None = None,
        sampler: Sampler | None = None,
        layout: LayoutName = "stream",
    ) -> None:
        self.spec, self.num_envs, self.capacity = spec, num_envs, capacity
        self.window, self.sampler = checked_window("Pond", window), checked_sampler("Pond", sampler)
        self.layout = make_layout(layout, spec, capacity, num_envs, self.window, "Pond")
        if capacity >= 2**31:
            raise BadConfig(
                f"Pond: capacity {capacity} needs 64-bit positions, which JAX lacks on a device; "
                "use several Ponds, HostPond or a Lake"
            )
        self.length, self.streams = self.layout.length, self.layout.streams
        self._intake = Intake(spec, self.layout.whole)
        self._ring = DeviceRing(spec, self.layout, stretched=isinstance(self.window, Sequence))
        ranked = isinstance(self.sampler, Prioritized)
        self._judging = self.window.ranked if ranked else self.window
        if isinstance(self._judging, Sequence):
            self._batches: Any = DeviceSequences(spec, self._judging, self._ring)
        else:
            self._batches = DeviceBatches(spec, self._judging, self._ring)
        self._ranks, self._programs = None, CompiledCalls()
        if isinstance(self.sampler, Prioritized):
            self._ranks = DeviceRanks(self.sampler, self._batches)

    @functools.cached_property
    def packed(self) -> Pond[AnyBatch]:
        """A Pond over the same states that takes and returns binary observations as bytes.

        An eighth of the data to transfer: `pond.packed.read(state, ...)`, `pond.packed.add(...)`.
        """
        spec, layout = self.spec.packed, cast(LayoutName, self.layout.name)
        if spec.fingerprint() == self.spec.fingerprint():
            return self
        how: Any = self.window
        other = Pond(spec, self.capacity, self.num_envs, how, self.sampler, layout)
        return cast(Pond[AnyBatch], other)

    @one_program
    def init(self) -> PondState:
        """An empty ring."""
        return self._ring.init(self._ranks and self._ranks.init())

    @property
    def nbytes(self) -> int:
        """Bytes of a state: the ring, its cursors and, if prioritised, its sum tree."""
        leaves = jax.tree.leaves(jax.eval_shape(self.init))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    @property
    def axes(self) -> Any:
        """vmap axes of a state, for several agents' ponds that are written together.

        In lockstep the head is shared; a batched head would turn every write into a scatter.
        `jax.vmap(pond.add, in_axes=(pond.axes, 0), out_axes=pond.axes)(states, rows)`.
        """
        heads = 0 if self.layout.own_heads else None
        axes = jax.tree.map(lambda _: 0, jax.eval_shape(self.init))
        return axes._replace(cursor=heads)

    @one_program
    def init_many(self, agents: int) -> PondState:
        """Empty rings for `agents` agents, to be vmapped with `axes`."""
        return jax.tree.map(
            lambda axis, leaf: leaf if axis is None else jnp.repeat(leaf[None], agents, axis),
            self.axes,
            self.init(),
            is_leaf=lambda axis: axis is None,
        )

    def one(self, states: PondState, agent: int) -> PondState:
        """The ring of one agent, from `init_many`: `pond.export(pond.one(states, 0))`."""
        return jax.tree.map(
            lambda axis, leaf: leaf if axis is None else leaf[agent],
            self.axes,
            states,
            is_leaf=lambda axis: axis is None,
        )

    def add(
        self,
        state: PondState,
        rows: Rows,
        next_obs: Tree | None = None,
        mask: Array | None = None,
        final_obs: Tree | None = None,
    ) -> PondState:
        """Append any number of rows, [env] or [time, env]; the newest `capacity` remain.

        Layout `shared` takes rows [batch] with their `next_obs`; layout `per_env` accepts a `mask`
        of the rows to add. Wrong names, shapes and dtypes raise. A row with a bad value is cut off
        from the rows before and after it, so that it is part of no sample, and counted in
        `state.faults`: see `check`. `final_obs`, shaped like the observations, is for envs that
        reset in the same step: the true final observations of the rows that ended an episode.
        """
        values, keep = self.layout.blocks(self._intake, rows, next_obs, mask)
        final = None
        if final_obs is not None:
            self._can_close()
            following = final_obs if self.layout.whole else None
            last = rows._replace(obs=final_obs)
            final, _ = self.layout.blocks(self._intake, last, following, None)
        if not values["flags"].size:
            return state  # no rows: nothing to add
        return self._write(state, values, keep, final)

    @one_program
    def _write(
        self, state: PondState, values: dict[str, Array], keep: Array | None, final: Any
    ) -> PondState:
        """Write values [time, stream] whose names, shapes and dtypes have been checked."""
        if final is not None:
            values, keep = self.layout.with_final(self._intake, values, final, keep, jnp)
        bad = self._intake.bad_values(values, rank=2, xp=jnp)
        values["reward"] = jnp.where(jnp.isfinite(values["reward"]), values["reward"], 0)
        values["flags"] = values["flags"] & np.uint8(KNOWN_FLAGS)
        flags = jnp.where(bad, np.uint8(CUT), np.uint8(0)) | pack_values(values)
        bad = bad if keep is None else bad & keep
        encoded = self._ring.encode(values)
        step_by_step = self.layout.own_heads or (self._ranks and not self.layout.whole)
        if not step_by_step:
            written = self._ring.append(state, encoded, flags, bad)
            return self._ranks.whole(written, state.head, flags) if self._ranks else written
        keep = jnp.ones(flags.shape, bool) if keep is None else jnp.asarray(keep)
        if flags.shape[0] == 1:
            one = jax.tree.map(lambda leaf: leaf[0], (encoded, flags, bad, keep))
            return self._add_step(state, *one)

        def step(state: PondState, new: Any) -> tuple[PondState, None]:
            return self._add_step(state, *new), None

        return jax.lax.scan(step, state, (encoded, flags, bad, keep))[0]

    def _can_close(self) -> None:
        """Raise BadConfig if the layout cannot add border rows to some envs only."""
        if self.layout.name == "stream":
            raise BadConfig(
                "Pond: final_obs adds a row to the envs that ended and to no other, and layout "
                "'stream' keeps all envs in step on a device; use layout 'per_env' or 'shared', "
                "HostPond, or an env that resets in the next step"
            )

    def _add_step(
        self, state: PondState, encoded: dict[str, Array], flags: Array, bad: Array, keep: Array
    ) -> PondState:
        """Write one step of the streams in keep[stream], and the masses of new starts."""
        ring, old = self._ring, state.priorities
        judged: Any = None
        if self._ranks:
            last = ring.join(state, flags[None], bad[None])[0][0]
            judged = self._ranks.newly_valid(state, last, keep)
            # `judged` was read from the ring: finish that before the ring is written.
            judged, zero = finished(judged, state.zero)
            state = state._replace(zero=zero)
        if self.layout.own_heads:
            state = ring.append_masked(state, encoded, flags, bad, keep)
        else:
            block = {path: new[None] for path, new in encoded.items()}
            state = ring.append(state, block, flags[None], bad[None])
        if self._ranks and judged:
            slots, valid, retired = judged
            return self._ranks.give(state, slots, valid, old, retired)
        return state

    def cut(self, state: PondState, envs: Array | None = None) -> PondState:
        """Cut the streams of `envs` (an index, bool[env], or all) after their newest rows."""
        which = which_envs(envs, self.num_envs, jnp)
        return state if self.layout.whole else self._cut(state, which)

    @one_program
    def _cut(self, state: PondState, which: Array) -> PondState:
        return self._ring.cut(state, which)

    def size(self, state: PondState) -> Array:
        """Rows stored, over all streams: int32."""
        return state.size.sum() if self.layout.own_heads else state.size * self.streams

    @one_program
    def can_sample(self, state: PondState) -> Array:
        """Whether the ring holds any possible start by age: bool."""
        return (self.layout.eligible(self._judging, state.size)[1] > 0).any()

    @one_program
    def sample(self, state: PondState, key: Array, batch_size: int) -> tuple[PondState, AnyBatch]:
        """Draw `batch_size` transitions or sequences; continue with the returned state.

        Where no valid start was found, `batch.mask` is false.
        """
        check_batch_size(batch_size)
        if self._ranks:
            return self._ranks.sample(state, key, batch_size)
        assert not isinstance(self.sampler, Prioritized)
        first, count = self._multiples(state)
        tries, every = self.sampler.tries, self.window.every
        interleaved = self.num_envs if self.layout.whole else 1
        eligible = Eligible(count, self.streams, interleaved / every)
        random = KeyRandom(key, self.capacity)
        drawn = self.sampler.propose(random, tries, batch_size, eligible)
        oldest = state.head - state.size + first
        begin = oldest[drawn.stream] if self.layout.own_heads else oldest
        tried, position = drawn.stream, around(begin + drawn.age * every, self.length)
        if isinstance(self.window, Sequence):  # of each candidate many flags are read
            tried, position = settle((tried, position), state.zero)
        flags = self._batches.flags(state, tried, position)
        enough = (count > 0)[tried] if self.layout.own_heads else count > 0
        valid = self.window.judge(flags, jnp).valid & enough
        # The first valid candidate; if there is none, the last one, masked. Only slots and flags
        # are selected, and the rest is recomputed: on a GPU, every selected array costs a kernel.
        slots = self.layout.slot(tried, position)
        known = (slots, jnp.moveaxis(flags, 0, -1))
        *candidates, valid = settle((*known, valid), state.zero)
        chosen = [leaf[-1] for leaf in candidates]
        for turn in range(tries - 2, -1, -1):
            chosen = [
                jnp.where(valid[turn].reshape(-1, *(1,) * (so_far.ndim - 1)), leaf[turn], so_far)
                for leaf, so_far in zip(candidates, chosen, strict=True)
            ]
        slots, flags = chosen
        stream, position, flags = together((*self.layout.place(slots), flags))
        verdict = self.window.judge(jnp.moveaxis(flags, -1, 0), jnp)
        mask = verdict.valid & ((count > 0)[stream] if self.layout.own_heads else count > 0)
        batch, zero = self._batches.fill(state, stream, position, verdict, mask)
        return state._replace(zero=zero), batch

    def _multiples(self, state: PondState) -> tuple[Array, Array]:
        """(first, count): each stream's possible starts by age, counted from its oldest row.

        Only rows whose ids are multiples of the window's `every`.
        """
        first, count = self.layout.eligible(self._judging, state.size)
        every = self.window.every
        if every == 1:
            return first, count
        ago = (state.size - first).astype(np.uint32)
        oldest = minus(plus(state.base, state.head.astype(np.uint32)), ago)
        skip = (every - remainder(oldest, every).astype(np.int32)) % every
        return first + skip, jnp.maximum(count - skip + every - 1, 0) // every

    def update_priorities(self, state: PondState, draw: Draw, priorities: Array) -> PondState:
        """Set new priorities[batch] for drawn rows; rows overwritten since are ignored.

        A priority that is negative, NaN or above 1e25 is ignored and counted.
        """
        if not (self._ranks and state.priorities):
            raise BadConfig("Pond: update_priorities needs sampler=prioritized()")
        return self._rank(state, draw, priorities)

    @one_program
    def _rank(self, state: PondState, draw: Draw, priorities: Array) -> PondState:
        assert self._ranks
        return self._ranks.update(state, draw, priorities)

    @one_program
    def take(self, state: PondState, stream: Array, position: Array) -> AnyBatch:
        """What starts at ring position[batch] of stream[batch]; masked where nothing does."""
        verdict = self._batches.judge(state, stream, position)
        first, count = self.layout.eligible(self._judging, state.size)
        age = (jnp.arange(self.length) - (state.head - state.size)[..., None]) % self.length
        inside = (age >= first[..., None]) & (age < (first + count)[..., None])
        inside = inside[stream, position] if self.layout.own_heads else inside[position]
        inside = inside & (stream >= 0) & (stream < self.streams)
        inside = inside & (position >= 0) & (position < self.length)
        return self._batches.fill(state, stream, position, verdict, verdict.valid & inside)[0]

    @one_program
    def read(self, state: PondState, stream: Array, position: Array) -> Rows:
        """The rows at ring positions of streams, of any shape, as they were added. Pure."""

        flags = self._ring.flags_at(state, stream, position)
        return unpack_rows(
            self.spec, flags, lambda path: self._ring.take(state, path, stream, position)
        )

    def added(self, state: PondState) -> np.ndarray:
        """Host: rows ever added per stream, int64[streams]; the newest row's id is one less."""
        base = np.atleast_2d(np.asarray(state.base)).astype(np.int64)
        added = (base[:, 0] << 32) + base[:, 1] + np.asarray(state.head)
        return np.broadcast_to(added, self.streams).copy()

    def check(self, state: PondState) -> None:
        """Host: raise FaultsFound if bad values were ignored inside jit since `init`."""
        values, borders = np.moveaxis(np.asarray(state.faults), -2, 0)  # may be vmapped over agents
        ranked = state.priorities
        refused = int(np.sum(np.asarray(ranked.refused))) if ranked else 0
        if values.any() or borders.any() or refused:
            worst = int(np.argmax((values + borders).reshape(-1, self.streams).sum(0)))
            raise FaultsFound(
                f"Pond: {values.sum()} rows with a value outside its bounds or a reward that is "
                f"not a number, {borders.sum()} rows whose flags contradict the row before (most "
                f"in stream {worst}), {refused} priorities that are negative, not a number or "
                f"above {LARGEST:g}; they were kept out of every sample; look at the env, or add "
                "to a HostPond, which names the row"
            )

    def export(self, state: PondState) -> dict[str, np.ndarray]:
        """The whole ring as flat NumPy arrays, from which `restore` makes an equal state."""
        lead, turned = self._ring.lead, self._ring.turned
        if state.flags.shape != lead:
            raise BadState(
                f"Pond: export takes one ring, flags {lead}, got {state.flags.shape}; "
                "export the rings of several agents one by one: pond.export(pond.one(states, 0))"
            )
        decoded = jax.tree.map(np.asarray, self._decoded(state.columns))
        columns = {path: turned(column) for path, column in decoded.items()}
        ranked = state.priorities
        return snapshot.pack(
            self,
            columns,
            turned(np.asarray(state.flags)),
            self.added(state),
            faults=np.asarray(state.faults),
            priorities=self._ranks and ranked and self._ranks.pack(ranked),
        )

    @one_program
    def _decoded(self, columns: dict[str, Array]) -> dict[str, Array]:
        return {path: column.decode(columns[path]) for path, column in self._ring.columns.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> PondState:
        """The state that was exported, by this Pond or by a HostPond of the same shape."""
        saved = snapshot.unpack(self, arrays)
        heads: Any = saved.added if self.layout.own_heads else saved.added[0]
        if np.any(saved.added != heads):
            raise BadState(
                "Pond: the exported streams are not in lockstep; restore them into a HostPond, "
                "or use layout 'per_env'"
            )
        head = heads % self.length
        lap, size = heads - head, np.minimum(heads, self.length)
        cursor = np.stack([head, size, lap >> 32, lap & 0xFFFFFFFF], -1).astype(np.uint32)
        columns = {path: saved.columns[path] for path in self._ring.columns}
        faults = np.asarray(saved.faults, np.uint32)
        ranked = None
        if self._ranks:
            mass, highest, samples = saved.priorities
            ranked = np.asarray(mass, np.float32), np.float32(highest), np.uint32(samples)
        return self._restored(columns, saved.flags, cursor, faults, ranked)

    @one_program
    def _restored(
        self, columns: dict[str, Array], flags: Array, cursor: Array, faults: Array, ranked: Any
    ) -> PondState:
        """The state, in copies made by JAX: the given arrays may change later."""
        turned = self._ring.turned
        return PondState(
            columns={
                path: turned(column.encode(columns[path], self.layout.lead))
                for path, column in self._ring.columns.items()
            },
            flags=turned(jnp.asarray(flags)),
            cursor=cursor,
            faults=faults,
            priorities=self._ranks and self._ranks.unpack(ranked),
            zero=jnp.uint32(0),
        )
