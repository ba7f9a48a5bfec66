"""`DeviceRing`: the memory of a device ring, its cursor, and how it is written. Pure functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import CUT, Array, breaks
from ..spec import Spec
from .bits import around, minus, mix, plus, settle, words
from .columns import Column
from .layouts import Layout
from .priorities import Priorities
from .ring import write, write_pair


class PondState(NamedTuple):
    """The state of a ring, in few arrays, since every array adds to the cost of a jitted call.

    `state = pond.init()`; donate it to every jitted call, and continue with the returned state.
    """

    columns: dict[str, Array]
    flags: Array  # uint8[*lead]; CUT wherever nothing was written yet
    # uint32[4], in layout per_env one per stream: where the next row goes, rows stored, and the
    # 64-bit id of the row at position 0 in this lap as two words, high and low.
    cursor: Array
    # uint32[2, streams]: how many rows were excluded for a value out of bounds or NaN, and how many
    # had flags that contradicted the row before. Inside jit nothing can raise.
    faults: Array
    priorities: Priorities | None
    # Always 0, which the compiler cannot know: `sample` makes it depend on the batch, `add` mixes
    # it into what it writes. So reads finish before writes, and the ring is never copied.
    zero: Array

    @property
    def head(self) -> Array:
        """int32[...]: where the next row goes."""
        return self.cursor[..., 0].astype(np.int32)

    @property
    def size(self) -> Array:
        """int32[...]: rows stored per stream."""
        return self.cursor[..., 1].astype(np.int32)

    @property
    def base(self) -> Array:
        """uint32[..., 2]: id of the row at position 0 in this lap."""
        return self.cursor[..., 2:]


class DeviceRing:
    """Reads and writes the rows of a `PondState`, without interpreting them."""

    def __init__(self, spec: Spec, layout: Layout, stretched: bool = False) -> None:
        """`stretched`: store the rows of each stream contiguously, for reading long sequences."""
        self.layout = layout
        # Stored as [stream, length, ...] even though all streams share one head.
        self._turned = stretched and not layout.own_heads
        self._axis = int(self._turned)  # the time axis, when all streams share one head
        self.lead = layout.lead[::-1] if self._turned else layout.lead
        self.length, self.streams = layout.length, layout.streams
        fields = layout.columns(spec)
        words = jax.default_backend() != "cpu"
        self.columns = {path: Column(path, field, words) for path, field in fields.items()}

    def init(self, priorities: Priorities | None) -> PondState:
        """An empty ring."""
        heads = (self.streams,) if self.layout.own_heads else ()
        return PondState(
            columns={
                path: jnp.zeros((*self.lead, *column.shape), column.dtype)
                for path, column in self.columns.items()
            },
            flags=jnp.full(self.lead, CUT, np.uint8),
            cursor=jnp.zeros((*heads, 4), np.uint32),
            faults=jnp.zeros((2, self.streams), np.uint32),
            priorities=priorities,
            zero=jnp.uint32(0),
        )

    def encode(self, values: dict[str, Array]) -> dict[str, Array]:
        """Values [time, stream, *shape] by path, converted to what is stored."""
        return {
            path: column.encode(values[path], values[path].shape[:2])
            for path, column in self.columns.items()
        }

    def take(
        self, state: PondState, path: str, stream: Array, position: Array, padded: Any = None
    ) -> Array:
        """The values of one field at positions of streams; zeros where padded."""
        return self.columns[path].decode(self.stored(state, path, stream, position, padded))

    def stored(
        self, state: PondState, path: str, stream: Array, position: Array, padded: Any = None
    ) -> Array:
        """The same, as stored, to be decoded later."""
        stored = _gather(state.columns[path], self._place(stream, position))
        if padded is not None:
            # Blanked while still words, so that decoding to bytes is a mere reinterpretation.
            padded = padded.reshape(*padded.shape, *(1,) * (stored.ndim - padded.ndim))
            stored = jnp.where(padded, stored.dtype.type(0), stored)
        return stored

    def flags_at(self, state: PondState, stream: Array, position: Array) -> Array:
        """The flags bytes of rows at positions of streams."""
        return _gather(state.flags, self._place(stream, position))

    def _place(self, stream: Array, position: Array) -> Array:
        """Index of a row in a column whose leading axes are flattened."""
        if self._turned:
            return stream * self.length + position
        return self.layout.slot(stream, position)

    def turned(self, column: Array) -> Array:
        """Convert a column from the layout's leading axes to those stored, or back."""
        return column.swapaxes(0, 1) if self._turned else column

    def ids(self, state: PondState, stream: Array, position: Array) -> Array:
        """The ids uint32[batch, 2] of the rows at these positions of streams."""
        head, base = state.head, state.base
        if self.layout.own_heads:
            head, base = head[stream], base[stream]
        base = jnp.broadcast_to(base, (*position.shape, 2))
        newer = plus(base, position.astype(np.uint32))
        # Positions at or after the head were written one lap earlier.
        earlier = (position >= head).astype(np.uint32) * np.uint32(self.length)
        return minus(newer, earlier)

    def last(self, state: PondState) -> Array:
        """uint8[streams]: flags byte of every stream's newest row."""
        newest = around(state.head - 1, self.length)
        if self.layout.own_heads:
            return self.flags_at(state, np.arange(self.streams), newest)
        # Settled, because the ring is about to be written.
        last = jax.lax.dynamic_slice_in_dim(state.flags, newest, 1, self._axis)
        return settle(last.reshape(-1), state.zero)

    def append(
        self, state: PondState, encoded: dict[str, Array], flags: Array, bad: Array
    ) -> PondState:
        """Write a block [time, stream] of encoded rows; all streams share one head.

        `bad` rows are counted as faults; their flags must already contain CUT.
        """
        time = flags.shape[0]
        kept = min(time, self.length)  # if there are more rows than fit, only the newest
        start = (state.head + (time - kept)) % self.length
        joined, broken = self.join(state, flags, bad)
        joined = mix(joined, state.zero)
        news = {
            path: self.turned(mix(new[time - kept :], state.zero)) for path, new in encoded.items()
        }
        head = state.head + time % self.length
        return state._replace(
            columns=write(state.columns, news, start, self._axis),
            flags=self._write_flags(state.flags, joined, kept, start),
            cursor=self._advance(state, head, time),
            faults=state.faults + _counts(bad, broken),
        )

    def append_masked(
        self, state: PondState, encoded: dict[str, Array], flags: Array, bad: Array, keep: Array
    ) -> PondState:
        """Write one step of the streams in keep[stream], each at its own head."""
        joined, broken = self.join(state, flags[None], bad[None])
        stream = np.arange(self.streams)
        slot = jnp.where(keep, self.layout.slot(stream, state.head), self.layout.capacity)
        before = self.layout.slot(stream, (state.head - 1) % self.length)
        before = jnp.where(keep, before, self.layout.capacity)

        def put(ring: Array, slots: Array, new: Array) -> Array:
            flat = ring.reshape(self.layout.capacity, *ring.shape[2:])
            flat = flat.at[slots].set(mix(new, state.zero), mode="drop", unique_indices=True)
            return flat.reshape(ring.shape)

        head = state.head + keep
        return state._replace(
            columns={path: put(state.columns[path], slot, new) for path, new in encoded.items()},
            flags=put(put(state.flags, before, joined[0]), slot, joined[1]),
            cursor=self._advance(state, head, keep),
            faults=state.faults + _counts(bad[None], broken & keep),
        )

    def join(self, state: PondState, flags: Array, bad: Array) -> tuple[Array, Array]:
        """Flags [1 + time, stream] of the newest row and the new ones, and which of these break.

        With a CUT before rows that contradict the row before, and before bad rows, from whose
        observations the row before would bootstrap.
        """
        if self.layout.whole:  # neighbours in a shared ring are unrelated
            return jnp.concatenate([flags[:1], flags]), jnp.zeros(flags.shape, bool)
        joined = jnp.concatenate([self.last(state)[None], flags])
        broken = breaks(joined[:-1], joined[1:])
        cut = jnp.where(jnp.logical_or(broken, bad), joined[:-1] | np.uint8(CUT), joined[:-1])
        return jnp.concatenate([cut, joined[-1:]]), broken

    def _write_flags(self, flags: Array, joined: Array, kept: int, start: Array) -> Array:
        """Write the new rows' flags, and those of the row before, which may have become a cut."""
        axis = self._axis
        if kept == self.length or self.layout.whole:
            return write(flags, self.turned(joined[-kept:]), start, axis)
        before = (start - 1) % self.length
        if kept == 1:
            return write_pair(flags, self.turned(joined), before, axis)
        return write(flags, self.turned(joined[-kept - 1 :]), before, axis)

    def _advance(self, state: PondState, head: Array, added: Any) -> Array:
        """The cursor after adding `added` rows; `head` may be past the ring's end."""
        wrapped = (head >= self.length).astype(np.uint32) * np.uint32(self.length)
        base = plus(state.base, wrapped)
        if isinstance(added, int) and added >= self.length:
            laps = words(added - added % self.length)
            base = plus(base, laps[1]) + jnp.array([laps[0], 0], np.uint32)
        size = jnp.minimum(state.size + added, self.length)
        place = jnp.stack([around(head, self.length), size], axis=-1).astype(np.uint32)
        return jnp.concatenate([place, base], axis=-1)

    def cut(self, state: PondState, which: Array) -> PondState:
        """Set CUT on the newest row of the streams in which[stream]."""
        last = self.last(state)
        last = mix(jnp.where(which, last | np.uint8(CUT), last), state.zero)
        newest = (state.head - 1) % self.length
        if not self.layout.own_heads:
            last = self.turned(last[None])
            return state._replace(flags=write(state.flags, last, newest, self._axis))
        flat = state.flags.reshape(-1)
        slots = self.layout.slot(np.arange(self.streams), newest)
        flat = flat.at[slots].set(last, unique_indices=True)
        return state._replace(flags=flat.reshape(state.flags.shape))


def _counts(bad: Array, broken: Array) -> Array:
    """uint32[2, streams] to add to the faults, from two bool[time, streams]."""
    return jnp.stack([bad, broken]).sum(axis=1, dtype=np.uint32)


def _gather(ring: Array, slots: Array) -> Array:
    """Rows of ring[a, b, ...] at flat slots, as one gather."""
    flat = ring.reshape(-1, *ring.shape[2:])
    return flat.at[slots].get(mode="promise_in_bounds")
