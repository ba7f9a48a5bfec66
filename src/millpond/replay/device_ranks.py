"""`DeviceRanks`: priorities of a device ring's starts, and sampling by them. Pure functions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..rows import Array, Draw
from ..samplers import Prioritized
from .bits import minus, mix, plus
from .device_batches import DeviceBatches
from .device_ring import PondState
from .device_sequences import DeviceSequences
from .priorities import LARGEST, DeviceTree, Priorities, one_per_draw

_ONE_SAMPLE = np.array([0, 1, 0], np.uint32)


class DeviceRanks:
    """A sum tree over the valid starts of one ring; a start's mass is priority^alpha."""

    def __init__(self, sampler: Prioritized, batches: DeviceBatches | DeviceSequences) -> None:
        self._sampler = sampler
        self._batches: Any = batches
        self._window, self.ring = batches.window, batches.ring
        self.tree = DeviceTree(self.ring.layout.capacity, sampler.fan)

    def init(self) -> Priorities:
        """Priorities of an empty ring: all masses are 0."""
        return Priorities.new(self.tree.init())

    def pack(self, ranked: Priorities) -> tuple[np.ndarray, float, int]:
        """Host: masses of all slots, the highest mass seen, and how many batches were drawn."""
        mass = np.asarray(ranked.tree)[: self.tree.capacity]
        return mass, float(ranked.highest), int(ranked.samples)

    def unpack(self, packed: tuple[Any, Any, Any]) -> Priorities:
        """Restore what `pack` returned."""
        mass, highest, samples = packed
        tree = self.tree.rebuild(jnp.asarray(mass, np.float32))
        return Priorities.new(tree, highest, samples)

    def whole(self, state: PondState, head: Array, flags: Array) -> PondState:
        """Layout `shared`: rows just written at `head` become starts at once, if valid."""
        kept = min(len(flags), self.ring.length)
        start = head + (len(flags) - kept)
        slots = (start + np.arange(kept, dtype=np.int32)) % self.ring.length
        valid = self._window.judge(flags[None, -kept:, 0], jnp).valid
        return self.give(state, slots, valid, state.priorities)

    def newly_valid(self, state: PondState, last: Array, keep: Array) -> tuple[Array, Array, Array]:
        """Before a step is written: the slots that become possible starts, which of them are valid,
        and the slots that stop being starts. A slot >= capacity means none."""
        window, stream = self._window, np.arange(self.ring.streams)
        size = jnp.minimum(state.size + keep, self.ring.length)
        _, count = self.ring.layout.eligible(window, size)
        reach = np.arange(-window.n_step - window.before, 0)[:, None]
        flags = self.ring.flags_at(state, stream, (state.head + reach) % self.ring.length)
        flags = jnp.concatenate([flags[:-1], last[None]])
        position = (state.head - window.n_step) % self.ring.length
        start = self.ring.layout.slot(stream, position)
        slots = jnp.where(keep & (count > 0), start, self.ring.layout.capacity)
        old = np.arange(-1, window.stack - 1)[:, None]  # relative to the oldest row after the write
        retired = self.ring.layout.slot(stream, (state.head + keep + old) % self.ring.length)
        retired = jnp.where(size == self.ring.length, retired, self.ring.layout.capacity)
        valid = window.judge(flags, jnp).valid
        if window.every > 1:
            position = jnp.broadcast_to(position, stream.shape)
            valid = valid & self._batches.aligned(state, stream, position)
        return slots, valid, retired.reshape(-1)

    def give(
        self,
        state: PondState,
        slots: Array,
        valid: Array,
        old: Priorities | None,
        retired: Array | None = None,
    ) -> PondState:
        """Give valid new starts the highest mass seen, and retired ones 0."""
        assert old
        mass = mix(jnp.where(valid, old.highest, 0), state.zero)
        if retired is not None:
            slots = jnp.concatenate([slots, retired])
            mass = jnp.concatenate([mass, jnp.zeros(retired.shape, np.float32)])
        # A step of all envs fills adjacent slots, unless every env has its own head.
        run = 1 if self.ring.layout.own_heads else self.ring.streams
        tree = self.tree.assign(old.tree, slots, mass, run)
        return state._replace(priorities=old._replace(tree=tree))

    def sample(self, state: PondState, key: Array, batch_size: int) -> tuple[PondState, Any]:
        """`Pond.sample`, by priority."""
        assert state.priorities
        slots, mass, total = self.tree.draw(state.priorities.tree, key, batch_size, state.zero)
        stream, position = self.ring.layout.place(slots)
        verdict = self._batches.judge(state, stream, position)
        chance = mass / jnp.maximum(total, jnp.finfo(np.float32).tiny)
        batch, zero = self._batches.fill(state, stream, position, verdict, mass > 0)
        weight = self._sampler.weights(mass, state.priorities.samples, jnp)
        batch = batch._replace(weight=weight, draw=batch.draw._replace(probability=chance))
        ranked = state.priorities._replace(notes=state.priorities.notes + _ONE_SAMPLE)
        return state._replace(zero=zero, priorities=ranked), batch

    def update(self, state: PondState, draw: Draw, priorities: Array) -> PondState:
        """See `Pond.update_priorities`."""
        ranked = state.priorities
        assert ranked
        priorities = one_per_draw(draw, jnp.asarray(priorities))
        good = (priorities >= 0) & (priorities <= LARGEST)
        head, base = state.head, state.base
        size = state.size
        if self.ring.layout.own_heads:
            head, base, size = head[draw.stream], base[draw.stream], size[draw.stream]
        first, count = self.ring.layout.eligible(self._window, size)
        # How many rows ago: (base + head) - id. The high word is 0 for every row still stored.
        newest = plus(jnp.broadcast_to(base, draw.row.shape), head.astype(np.uint32))
        ago = minus(newest, draw.row[..., 1])
        ago = ago.at[..., 0].add(-draw.row[..., 0])
        age = size - ago[..., 1].astype(np.int32)
        here = (ago[..., 0] == 0) & (ago[..., 1] <= size.astype(np.uint32))
        here = here & (age >= first) & (age < first + count)
        position = (head - size + age) % self.ring.length
        here = here & self._batches.judge(state, draw.stream, position).valid
        slot = self.ring.layout.slot(draw.stream, position)
        mass = jnp.where(good, priorities, 0).astype(np.float32) ** np.float32(self._sampler.alpha)
        slot = jnp.where(here & good, slot, self.ring.layout.capacity)
        highest = jnp.maximum(ranked.highest, jnp.where(here & good, mass, 0).max(initial=0))
        tree = self.tree.largest(ranked.tree, slot, mass)
        refused = ranked.refused + (~good).sum(dtype=np.uint32)
        return state._replace(priorities=Priorities.new(tree, highest, ranked.samples, refused))
